"""Plans of small models, and a machine of which nothing has been measured."""

from pathlib import Path
from typing import Any

import pytest

from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.training import flops
from layerlab.training.run_spec import RunSpec

EXTENT = CorpusSize(vocab=300, tokens=10_000, digest="d")
SIZES = {"width": 32, "layers": 2, "heads": 2, "context": 16}


def recipe(model: dict[str, Any] | None = None, **sections: Any) -> TrainingRecipe:
    given: dict[str, Any] = {"model": {**SIZES, **(model or {})}, "train": {"max_steps": 20}}
    return make_recipe({**given, **sections})


def runs(**sections: Any) -> list[RunSpec]:
    compare = {"arms": ["llama", "gpt2"], "seeds": [1, 2], **sections.pop("compare", {})}
    return plan(recipe(compare=compare, **sections), EXTENT)


@pytest.fixture(autouse=True)
def unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No peak of an earlier test, and none that is measured where it does not matter."""
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(flops, "matmul_peak", lambda *_: 1e11)
