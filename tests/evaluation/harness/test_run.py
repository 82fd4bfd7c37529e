"""What the result of a task is kept under."""

from typing import Any

import accelerate
import pytest
import torch

import layerlab

pytest.importorskip("lm_eval")

from layerlab.evaluation.harness import run as sitting
from tests.evaluation.candidate import candidate, tokenizer
from tests.evaluation.shelf import run, shelf

__all__ = ["shelf"]
SIZES = {"width": 16, "layers": 1, "heads": 2, "context": 512}


@pytest.mark.full
@pytest.mark.parametrize(
    ("part", "whose", "kept"),
    [("builder", "ours", 1), ("builder", "theirs", 0), ("rounder", "theirs", 1)],
)
def test_other_code_of_a_model_of_ours_or_of_a_format_is_another_model(
    shelf, tmp_path, monkeypatch, part, whose, kept
):
    """What is rounded hangs on the code that rounds, and what is not does not."""
    ours = layerlab.build("llama", **SIZES, vocab=len(tokenizer()))
    model = candidate(512).model if whose == "theirs" else ours

    def keys() -> int:
        run(shelf, "boolq", model=model, out=tmp_path / "out", limit=1, format="bf16")
        return len(list((tmp_path / "out" / "leaves").iterdir()))

    assert keys() == 2
    monkeypatch.setattr(sitting, part, lambda: "another")
    # Each model is asked as it is and under the format.
    assert keys() == 2 + kept * (2 if part == "builder" else 1)


def test_a_class_or_a_tokenizer_that_was_changed_in_between_is_asked_anew(
    shelf, tmp_path, monkeypatch
):
    """What is kept is of the code that computed it, and code in memory has no version."""
    words = tokenizer()
    model = layerlab.build("llama", **SIZES, vocab=len(words))

    def told() -> bool:
        again = run(shelf, "boolq", model=model, tokenizer=words, out=tmp_path / "out", limit=4)
        return any(sitting.OTHER in one for one in again.content["remarks"])

    assert not told() and not told()
    kind = type(model)
    plain = kind.forward

    def turn(self: Any, *args: Any, **options: Any) -> Any:
        result = plain(self, *args, **options)
        result.logits = -result.logits
        return result

    monkeypatch.setattr(kind, "forward", turn)
    assert told() and not told()
    files = len(list((tmp_path / "out" / "leaves").iterdir()))
    read = words.encode
    monkeypatch.setattr(words, "encode", lambda text, **options: read(text.upper(), **options))
    told()
    assert len(list((tmp_path / "out" / "leaves").iterdir())) == files + 1


@pytest.mark.full
def test_weights_that_wait_elsewhere_are_asked_and_known_by_their_numbers(shelf, tmp_path):
    """The other's differ only at a token that the trial of a model does not read."""

    def put(row: int) -> Any:
        model = candidate(512).model
        with torch.no_grad():
            model.get_input_embeddings().weight[row] += 1
        return accelerate.cpu_offload(model, torch.device("cpu"))

    for row, kept in ((40, 1), (40, 1), (41, 2)):
        run(shelf, "boolq", model=put(row), out=tmp_path / "out", limit=2)
        assert len(list((tmp_path / "out" / "leaves").iterdir())) == kept
