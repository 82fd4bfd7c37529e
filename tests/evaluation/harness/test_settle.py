"""No score depends on the batch: near ties are settled alone, memory halves what is too much."""

from typing import Any

import pytest
import torch

from layerlab.evaluation.harness.settle import APART, close_rows, is_close, is_turnable
from tests.evaluation.candidate import Writing, candidate, writings

pytest.importorskip("lm_eval")

from layerlab.evaluation.harness.lm import HarnessModel
from layerlab.evaluation.harness.model_checks import ROWS_ON_CPU
from tests.evaluation.lm_eval_tasks.own_tasks import KINDS, folder, run

__all__ = ["folder"]


@pytest.mark.parametrize(
    ("sums", "texts", "close"),
    [
        ([-2.0, -2.0], [" a", " b"], True),
        ([-2.0, -2.1], [" a", " b"], False),
        ([-2.0, -4.00001], [" a", " bb"], True),  # alike per character
        ([-2.0, -6.00001], [" a", " 好"], True),  # alike per byte
        ([-2.0, -2.0], [" a", " bbb"], True),
        ([-2.0], [" a"], False),
    ],
)
def test_options_are_close_by_any_measure_of_their_length(sums, texts, close):
    assert is_close(sums, texts, 1e-4) == close


@pytest.mark.parametrize(
    ("sums", "turnable"),
    [
        ([-9.0, -9.00001, -2.0, -5.0], True),  # alike behind the question
        ([-9.0, -8.0, -3.0, -2.00001], True),  # alike once what they are by themselves is off
        ([-9.0, -8.0, -3.0, -3.00001], False),  # alike by themselves alone
    ],
)
def test_options_without_their_question_stand_beside_no_other(sums, turnable):
    asked = [("Q:", " a"), ("Q:", " b"), ("", " a"), ("", " b")]
    assert is_turnable(sums, asked, 1e-4) == turnable


def test_options_of_a_question_without_a_text_are_compared():
    assert is_turnable([-2.0, -2.00001], [("", " a"), ("", " b")], 1e-4)
    assert not is_turnable([-2.0, -3.0], [("", " a"), ("", " b")], 1e-4)
    assert is_turnable([-2.0, -2.00001], [("Q:", " a"), ("", " a")], 1e-4)


def test_a_row_is_close_where_two_tokens_are():
    logits = torch.tensor([[[1.0, 2.0, 0.0], [5.0, 5.0001, 0.0]], [[1.0, 2.0, 0.0], [5.0, 6, 0.0]]])
    assert close_rows(logits, 1e-4).tolist() == [True, False]
    assert close_rows(logits[:, 1], 1e-4).tolist() == [True, False]


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_score_depends_on_the_batch(folder, dtype):
    model = candidate(512).model.to(dtype)
    tasks = [folder / f"{name}.yaml" for name in KINDS]
    found = [run(tasks, model=model, batch_size=size).content["tasks"] for size in (1, 3, "auto")]
    for alone, three, automatic in zip(*found, strict=True):
        if alone["kind"] == "loglikelihood_rolling":
            continue  # perplexities are no decisions: as exact as their format
        if alone["kind"] == "generate_until" and dtype == torch.bfloat16:
            continue  # answers stay as their batch wrote them
        for other in (three, automatic):
            assert other["scores"] == alone["scores"], alone["task"]
            for one, its in zip(alone["measured"], other["measured"], strict=True):
                same = one["value"] == its["value"]
                rounded = one["value"] == pytest.approx(its["value"], rel=10 * APART[dtype])
                assert same or (one["metric"] == "perplexity" and rounded)


@pytest.mark.parametrize(
    ("dtype", "share", "batch", "near"),
    [
        (torch.bfloat16, True, 4, {0}),
        (torch.float16, True, 4, {0}),
        (torch.float32, False, 4, {0}),  # emulated
        (torch.bfloat16, True, 1, None),
        (torch.float32, True, 4, None),
        (torch.float64, True, 4, None),
    ],
)
def test_answers_with_near_ties_stay_in_16_bits_and_are_counted(dtype, share, batch, near):
    subject, sizes = candidate(64), list[int]()
    subject.model.to(dtype)
    assert subject.tokenizer is not None
    prompts = ("Which number? one", "Which number? two")
    own = subject.tokenizer(prompts[0])["input_ids"]

    def steer(module: Any, args: Any, given: Any, found: Any) -> None:
        """The first cannot choose between two tokens, and the second ends at once."""
        rows = given["input_ids"].tolist()
        sizes.append(len(rows))
        for row, ids in enumerate(rows):
            found.logits[row, -1] = 0.0
            found.logits[row, -1, 0] = 9.0
            if ids[-len(own) :] == own:
                found.logits[row, -1, 5:7] = 99.0

    handle = subject.model.register_forward_hook(steer, with_kwargs=True)
    engine = HarnessModel(subject, batch=batch, scoring="gen", share=share)
    subject.batching("left")
    sizes.clear()
    answers = engine.generate_until(writings(prompts, 2))
    handle.remove()
    assert answers[0] and not answers[1] and engine.near == near
    assert ({*sizes} == {2}) == (near is not None)
    engine.overlong = {0}
    engine.loglikelihood([Writing(0, (prompts[0], " A"), "loglikelihood")])  # type: ignore[arg-type]
    assert engine.near is None and engine.overlong == set()


@pytest.mark.full
def test_what_rounding_turns_is_asked_again_alone(folder, monkeypatch):
    """Every batch but one of a single row gets noise as large as may be, and no score moves."""
    plain = run(folder / "own_choice.yaml", batch_size=1).content["tasks"]
    call = HarnessModel._model_call
    draw = torch.Generator().manual_seed(0)

    def noisy(self: Any, inps: torch.Tensor, *args: Any) -> Any:
        found = call(self, inps, *args)
        noise = torch.rand(found.shape, generator=draw) - 0.5
        return found + 2e-5 * noise if len(inps) > 1 else found

    monkeypatch.setattr(HarnessModel, "_model_call", noisy)
    monkeypatch.setitem(APART, torch.float32, 0.3)  # so that some questions are near ties
    asked: list[int] = []
    settle = HarnessModel._likelihoods

    def counted(self: Any, requests: Any) -> Any:
        asked.append(len(requests))
        return settle(self, requests)

    monkeypatch.setattr(HarnessModel, "_likelihoods", counted)
    found = run(folder / "own_choice.yaml", batch_size=8).content["tasks"]
    assert found[0]["scores"] == plain[0]["scores"] and len(asked) > 1


@pytest.mark.full
def test_memory_halves_the_batch_with_one_line_and_no_other_score(folder, monkeypatch):
    tasks = [folder / "own_choice.yaml", folder / "own_written.yaml"]
    plain = run(tasks)
    call, write = HarnessModel._model_call, HarnessModel._model_generate

    def full(given: torch.Tensor) -> None:
        if len(given) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def small(self: Any, inps: torch.Tensor, *args: Any) -> Any:
        full(inps)
        return call(self, inps, *args)

    def short(self: Any, context: torch.Tensor, **options: Any) -> Any:
        full(context)
        return write(self, context, **options)

    monkeypatch.setattr(HarnessModel, "_model_call", small)
    monkeypatch.setattr(HarnessModel, "_model_generate", short)
    found = run(tasks)
    notes = [one for one in found.content["remarks"] if "memory ran out" in one]
    assert notes[0] == (
        f"own_choice: memory ran out with {ROWS_ON_CPU} prompts at once, and from then on "
        f"{ROWS_ON_CPU // 2} were run"
    )
    assert len(notes) == 6  # 32, 16 and 8, for what is chosen and for what is written
    for ours, theirs in zip(found.content["tasks"], plain.content["tasks"], strict=True):
        assert ours["scores"] == theirs["scores"]
