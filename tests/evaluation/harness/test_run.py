"""What the result of a task is kept under."""

from pathlib import Path

import pytest

import layerlab

pytest.importorskip("lm_eval")

from layerlab.evaluation.harness import run as sitting
from tests.evaluation.candidate import candidate, tokenizer
from tests.evaluation.shelf import run, shelf

__all__ = ["shelf"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("part", "whose", "kept"),
    [("builder", "ours", 1), ("builder", "theirs", 0), ("rounder", "theirs", 1)],
)
def test_other_code_of_a_model_of_ours_or_of_a_format_is_another_model(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, whose: str, kept: int
) -> None:
    """What is rounded hangs on the code that rounds, and what is not does not."""
    sizes = {"width": 16, "layers": 1, "heads": 2, "context": 512, "vocab": len(tokenizer())}
    model = candidate(512).model if whose == "theirs" else layerlab.build("llama", **sizes)

    def keys() -> int:
        run(shelf, "boolq", model=model, out=tmp_path / "out", limit=1, format="bf16")
        return len(list((tmp_path / "out" / "leaves").iterdir()))

    assert keys() == 2
    monkeypatch.setattr(sitting, part, lambda: "another")
    # Each model is asked as it is and under the format.
    assert keys() == 2 + kept * (2 if part == "builder" else 1)
