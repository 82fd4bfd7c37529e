"""Old checkpoints go, and nothing else does."""

from layerlab.adaptation.trainer.own_folder import remove_checkpoints


def test_the_newest_checkpoints_stay_by_their_numbers(tmp_path):
    for name in ("8", "9", "10", "100", "8-mine"):
        (tmp_path / f"checkpoint-{name}").mkdir()
    (tmp_path / "checkpoint-8" / "mine.txt").write_text("precious")
    remove_checkpoints(tmp_path, 2)
    kept = {one.name.removeprefix("checkpoint-") for one in tmp_path.iterdir()}
    assert kept == {"8", "10", "100", "8-mine"}


def test_what_a_kill_left_of_a_removal_goes_the_next_time(tmp_path):
    half = tmp_path / ".checkpoint-8.0123abcd.partial"
    (half / "optimizer").mkdir(parents=True)
    (half / "optimizer" / "weights.pt").write_text("half")
    (tmp_path / ".checkpoint-8.mine").mkdir()
    remove_checkpoints(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [".checkpoint-8.mine"]
