"""All arms of a seed in one process: each learns what it learns alone."""

from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.training.corpus import Corpus, extent, prepare
from layerlab.training.lockstep import in_lockstep
from layerlab.training.loop import carry_out
from layerlab.training.outcome import result_of
from layerlab.training.plan import Run, plan
from layerlab.training.recipe import recipe_of
from layerlab.training.watch import Silent

SMALL: dict[str, Any] = {
    "model": {"width": 16, "layers": 2, "heads": 2, "context": 16},
    "data": {"vocab": 300},
    "train": {"updates": 4, "batch": 2, "rate": 0.01},
    "evaluate": {"blocks": 2},
}


def prepared(**comparison: Any) -> tuple[list[Run], Corpus]:
    recipe = recipe_of({**SMALL, "compare": {"arms": ["llama", "history-3"], **comparison}})
    corpus = prepare(recipe.data)
    return plan(recipe, extent(corpus, 16)), corpus


def test_each_arm_learns_what_it_learns_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    runs, corpus = prepared(seeds=[1, 2])
    in_lockstep(runs, corpus, tmp_path / "together", Silent())
    for run in runs:
        alone = carry_out(run, tmp_path / "alone" / run.name)
        together = result_of(tmp_path / "together" / run.name)
        assert together is not None and together["weights"] == alone["weights"]
    # What is finished is left alone.
    in_lockstep(runs, corpus, tmp_path / "together", Silent())


def test_one_process_has_one_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    half = {"name": "half", "set": {"train.precision": "bf16"}}
    runs, corpus = prepared(arms=["llama", half])
    said = "compare.lockstep runs all arms in one process, and they ask for"
    with pytest.raises(UserError, match=said):
        in_lockstep(runs, corpus, tmp_path, Silent())
