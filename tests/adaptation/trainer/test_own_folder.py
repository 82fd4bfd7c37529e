"""Old checkpoints go, and nothing else does."""

from layerlab.adaptation.trainer.own_folder import remove_checkpoints


def test_the_newest_checkpoints_stay_by_their_numbers(tmp_path):
    for name in ("8", "9", "10", "100", "8-mine"):
        (tmp_path / f"checkpoint-{name}").mkdir()
    (tmp_path / "checkpoint-8" / "mine.txt").write_text("precious")
    remove_checkpoints(tmp_path, 2)
    kept = {one.name.removeprefix("checkpoint-") for one in tmp_path.iterdir()}
    assert kept == {"8", "10", "100", "8-mine"}
