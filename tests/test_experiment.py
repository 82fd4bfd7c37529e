"""Training as a function: what is said where there is nothing to train, or nothing to keep."""

from pathlib import Path

import pytest

from layerlab import UserError, train

LOST = {
    "name": "lost",
    "model": {"width": 16, "layers": 1, "heads": 2, "context": 16},
    "data": {"vocab": 300},
    "train": {"updates": 6, "batch": 2, "rate": 1e30, "clip": 0.0},
    "evaluate": {"blocks": 2},
}


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
