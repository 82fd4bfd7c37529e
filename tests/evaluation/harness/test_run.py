"""What the result of a task is kept under."""

from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch

import layerlab
from layerlab.errors import Interrupted

pytest.importorskip("lm_eval")

from layerlab.evaluation.harness import run as sitting
from layerlab.evaluation.harness.lm import HarnessModel
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


def write(shelf: Path, out: Path | None = None, **options: Any) -> Any:
    """Answers of FinanceIQ, written in 16 bits where no other format is named."""
    model = candidate(512).model.to(options.pop("format_of", torch.bfloat16))
    return run(shelf, "financeiq", model=model, scoring="gen", out=out, **options)


@pytest.mark.full
@pytest.mark.parametrize(
    ("dtype", "scoring", "more"),
    [(torch.bfloat16, "gen", 10), (torch.bfloat16, "choice_ll", 0), (torch.float32, "gen", 0)],
)
def test_answers_written_in_16_bits_are_known_by_their_batch(shelf, tmp_path, dtype, scoring, more):
    model = candidate(512).model.to(dtype)
    kept = []
    for batch in (3, 2, 2, 3):
        found = run(
            shelf, "financeiq", model=model, scoring=scoring, batch_size=batch, out=tmp_path / "out"
        )
        kept.append(len(list((tmp_path / "out" / "leaves").iterdir())))
        if more:
            assert {one["batch"] for one in found.content["subjects"]} == {batch}
    assert kept == [10, *[10 + more] * 3]


@pytest.mark.full
def test_a_run_that_was_killed_goes_on_with_the_batch_that_memory_left(
    shelf, tmp_path, monkeypatch
):
    plain = HarnessModel._model_generate
    done: list[int] = []

    def short(self: Any, context: torch.Tensor, **options: Any) -> Any:
        if len(context) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if len(done) == 4:  # of two tasks, whose three answers each take two passes
            raise KeyboardInterrupt
        done.append(len(context))
        return plain(self, context, **options)

    with monkeypatch.context() as patched:
        patched.setattr(HarnessModel, "_model_generate", short)
        with pytest.raises(Interrupted):
            write(shelf, tmp_path / "out")
    assert len(list((tmp_path / "out" / "leaves").iterdir())) == 2
    rows = write(shelf, tmp_path / "out").content["subjects"]
    assert [one["batch"] for one in rows] == [2] * 10
    assert [one["batch"] for one in write(shelf).content["subjects"]] == [32] * 10


def test_an_evaluation_that_has_no_page_yet_has_no_tables(shelf, tmp_path, monkeypatch):
    def stop(*given: Any) -> str:
        raise Interrupted("", 130)

    monkeypatch.setattr("layerlab.api.evaluate.render", stop)
    with pytest.raises(Interrupted):
        run(shelf, "boolq", out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"leaves", "samples"}


def test_what_a_kill_has_left_half_written_goes_the_next_time(shelf, tmp_path):
    left = [tmp_path / one / ".x.json.0a1b2c3d.partial" for one in (".", "tables", "samples")]
    run(shelf, "boolq", out=tmp_path)
    for path in left:
        path.write_text("")
    mine = tmp_path / ".mine.partial"
    mine.write_text("")
    run(shelf, "boolq", out=tmp_path)
    assert [*tmp_path.rglob("*.partial")] == [mine]


@pytest.mark.full
def test_a_result_says_how_many_answers_hang_on_the_batch(shelf, tmp_path):
    alone, out = write(shelf, tmp_path / "alone", batch_size=1), tmp_path / "out"
    found = write(shelf, out, batch_size=8, against=tmp_path / "alone" / "results.json")
    near = sum(one["near"] for one in found.content["subjects"])
    said = (
        f"LlamaForCausalLM: FinanceIQ: {near} of 30 written answers hold a near tie of two tokens; "
        "in this precision they may differ with the batch, which is of 8 here; with --batch-size "
        "1, or in float32, no answer depends on it"
    )
    told = "asked differently: FinanceIQ: answers written in batches of 8 here, of 1 there"
    assert near > 5 and {said, told} <= {*found.content["remarks"]}
    page = (out / "report.html").read_text("utf-8")
    assert "30 written answers hold a near tie" in page
    assert {one["near"] for one in alone.content["subjects"]} == {None}
    whole = write(shelf, batch_size=8, format_of=torch.float32)
    assert not any(
        "near tie" in one for one in [*alone.content["remarks"], *whole.content["remarks"]]
    )


@pytest.mark.full
def test_a_result_of_an_earlier_version_is_one_of_answers_alone(shelf, tmp_path):
    old = write(shelf, batch_size=8)
    for one in old.content["subjects"]:
        del one["near"], one["batch"]
    found = write(shelf, batch_size=8, against=old.save(tmp_path / "old").folder)
    assert any("batches of 8 here, of 1 there" in one for one in found.content["remarks"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("scoring", "dtype", "method"),
    [
        ("gen", torch.bfloat16, "_model_generate"),
        ("gen", torch.float32, "_model_generate"),
        ("choice_ll", torch.float32, "_model_call"),
    ],
)
def test_a_task_that_was_interrupted_goes_on_behind_its_last_batch_to_the_same_result(
    shelf, tmp_path, monkeypatch, scoring, dtype, method
):
    plain, passes = getattr(HarnessModel, method), list[int]()

    def answer(place: str, stop: int | None) -> Any:
        def count(self: Any, *args: Any, **options: Any) -> Any:
            if len(passes) == stop:
                raise KeyboardInterrupt
            passes.append(1)
            return plain(self, *args, **options)

        passes.clear()
        monkeypatch.setattr(HarnessModel, method, count)
        model = candidate(512).model.to(dtype)
        out = tmp_path / place
        found = run(shelf, "financeiq", model=model, scoring=scoring, batch_size=2, out=out)
        return [{**one, "seconds": 0} for one in found.content["subjects"]]

    whole, asked = answer("whole", None), len(passes)
    with pytest.raises(Interrupted):
        answer("cut", 5)  # each subject has three questions, which take two batches or more
    logs = list((tmp_path / "cut" / "leaves").glob("*.jsonl"))
    assert answer("cut", None) == whole and len(passes) == asked - 5
    assert len(logs) == 1 and not logs[0].exists()
    for file in (tmp_path / "whole" / "samples").iterdir():
        assert (tmp_path / "cut" / "samples" / file.name).read_bytes() == file.read_bytes()
