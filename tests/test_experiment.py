"""Training as a function: what is said where there is nothing to train, or nothing to keep."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from layerlab import UserError, compare, train
from layerlab.experiment import Trained, judged, prepared

SMALL = {
    "name": "small",
    "model": {"width": 16, "layers": 1, "heads": 2, "context": 16},
    "data": {"vocab": 300},
    "train": {"updates": 2, "batch": 2},
    "evaluate": {"blocks": 2},
}
LOST = {**SMALL, "name": "lost", "train": {"updates": 6, "batch": 2, "rate": 1e30, "clip": 0.0}}
TWO = {**SMALL, "compare": {"arms": ["llama", "gpt2"]}}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A run that is finished; the text that it read is kept for all tests here."""
    folder = tmp_path_factory.mktemp("experiment")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERLAB_CACHE", str(folder / "cache"))
        yield train(SMALL, out=folder, progress=False)


def test_a_run_gives_its_result_its_model_its_curves_and_a_page(ended: Trained) -> None:
    assert ended.folder.parent.name == "runs" and ended.page.is_file()
    assert ended.result["updates"] == 2 and ended.model().config.hidden_size == 16
    assert ended.frame()["update"].tolist() == [1, 2]
    assert ended.frame("evaluation")["nats"].iloc[-1] == ended.result["nats"]
    said = ended.told().splitlines()
    assert said[0].startswith(f"{ended.result['run']}: {ended.result['nats']:.4f} nats per token, ")
    assert said[1:] == [f"The model: {ended.folder / 'model'}", f"The page: {ended.page}"]


def test_a_run_that_keeps_no_model_does_not_name_one(ended: Trained) -> None:
    settings = {"run.model": False, "train.seed": 1}
    run = train(SMALL, out=ended.folder.parents[2], progress=False, settings=settings)
    assert "The model" not in run.told() and "The page" in run.told()
    with pytest.raises(UserError, match=r"kept no model; write run\.model = true, delete it"):
        run.model()


def test_a_finished_run_is_kept(ended: Trained) -> None:
    before = (ended.folder / "result.json").stat().st_mtime_ns
    again = train(SMALL, out=ended.folder.parents[2], progress=False)
    assert again.result == ended.result and again.folder == ended.folder
    assert (ended.folder / "result.json").stat().st_mtime_ns == before


def test_a_comparison_is_not_trained_and_a_single_run_not_compared(
    ended: Trained, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="'small' compares several arms; type layerlab compare in"):
        train(TWO, out=tmp_path, progress=False)
    with pytest.raises(UserError, match="'small' has no compare section; type layerlab train in"):
        compare(SMALL, out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_there_is_nothing_to_judge_before_anything_has_run(ended: Trained, tmp_path: Path) -> None:
    task = prepared(TWO, tmp_path, progress=False)
    with pytest.raises(
        UserError, match=r"nothing has run yet in .*; type layerlab compare without"
    ):
        judged(task)
    assert not list(tmp_path.iterdir())


def test_arms_that_could_not_be_compared_are_refused_before_anything_runs(
    ended: Trained, tmp_path: Path
) -> None:
    half = {"name": "half", "variant": "llama", "set": {"train.batch": 1}}
    unequal = {**SMALL, "compare": {"arms": ["llama", half]}}
    for begun in (compare, prepared):
        with pytest.raises(UserError, match=r"train\.batch is 2 in llama.* and 1 in half-s1-"):
            begun(unequal, out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_seed_that_is_added_after_a_look_is_told_however_often_it_is_judged(
    ended: Trained, tmp_path: Path
) -> None:
    section = {"arms": ["llama", "gpt2"], "lockstep": True, "seeds": [1]}
    once = {**SMALL, "compare": section}
    more = {**SMALL, "compare": {**section, "seeds": [1, 2]}}
    first = compare(once, out=tmp_path, progress=False)
    assert not any("after a look" in one for one in first.content["remarks"])
    said = "seeds added after a look: 2; a table of seeds 1 had been shown before"
    second = compare(more, out=tmp_path, progress=False)
    again = judged(prepared(more, tmp_path, progress=False))
    for found in (second, again):
        assert sum(one.startswith(said) for one in found.content["remarks"]) == 1


def test_a_name_that_is_no_recipe_is_told_all_there_are(tmp_path: Path) -> None:
    said = r"no recipe 'eight'; .*expected a TOML file or one of .*eight-residuals-twin"
    with pytest.raises(UserError, match=said):
        train("eight", out=tmp_path, progress=False)


def test_a_run_that_diverged_is_not_tried_again_and_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"lower train\.rate"):
        train(LOST, out=tmp_path, progress=False)
    with pytest.raises(UserError, match="; the run is kept in ") as told:
        train(LOST, out=tmp_path, progress=False)
    (run,) = (tmp_path / "lost" / "runs").iterdir()
    assert str(told.value).endswith(str(run))
