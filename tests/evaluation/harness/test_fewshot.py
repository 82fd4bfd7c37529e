"""Whole examples are dropped until a prompt fits; its head and its question are never cut."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.evaluation.harness.fewshot import Shots, fit_examples, sum_up, without_examples

LENGTHS = st.lists(st.integers(1, 30), max_size=8)


class Task:
    """What `fit_examples` needs of a task of the engine: examples drawn at random, one request."""

    task_name = "own"

    def __init__(self, lengths: list[int]) -> None:
        self.examples = [f"<{place}{'x' * length}>" for place, length in enumerate(lengths)]
        self.sampler = SimpleNamespace(rnd=random.Random(0))

    def fewshot_context(self, doc: str, number: int, **_: Any) -> str:
        drawn = self.sampler.rnd.sample(self.examples, number)
        return f"head {''.join(drawn)}{doc}"

    def construct_requests(self, doc: str, ctx: str, **_: Any) -> Any:
        return SimpleNamespace(request_type="loglikelihood", args=(ctx, " A"))


@given(LENGTHS, st.integers(0, 40), st.integers(10, 150))
def test_a_prompt_keeps_head_and_question_and_loses_as_few_examples_as_possible(
    lengths, asked, room
):
    task, doc = Task(lengths), "q" * asked

    def fits(kind: str, arguments: tuple[Any, ...]) -> bool:
        return len("".join(arguments)) <= room

    with fit_examples(task, fits) as used:
        text = task.fewshot_context(doc, num_fewshot=len(lengths))
    assert text.startswith("head ") and text.endswith(doc)
    inside = text.removeprefix("head ").removesuffix(doc)
    assert used == [inside.count("<")]
    assert all(example in task.examples for example in pieces(inside))
    if used[0]:
        assert len(text) + 2 <= room
    if used[0] < len(lengths) and lengths:
        one_more = Task(lengths).fewshot_context(doc, used[0] + 1)
        assert len(one_more) + 2 > room


def pieces(text: str) -> list[str]:
    return [f"<{part}" for part in text.split("<") if part]


def test_a_prompt_that_was_tried_again_draws_no_more_random_numbers():
    tried, plain = Task([20] * 6), Task([20] * 6)
    with fit_examples(tried, lambda kind, arguments: len(arguments[0]) < 90):
        tried.fewshot_context("q", num_fewshot=5)
    plain.fewshot_context("q", 5)
    assert tried.sampler.rnd.getstate() == plain.sampler.rnd.getstate()


def test_a_task_is_as_it_was_afterwards():
    task = Task([])
    with pytest.raises(ZeroDivisionError), fit_examples(task, lambda kind, arguments: True):
        raise ZeroDivisionError
    assert "fewshot_context" not in vars(task)


def test_what_never_fits_is_the_bare_question():
    assert without_examples(3, lambda number: "s" * number, lambda text: False) == ("", 0)


@given(st.lists(st.integers(0, 5), max_size=9), st.integers(0, 3))
def test_counts_of_examples(used, unfit):
    found = sum_up(5, used, unfit)
    assert found.shortened == sum(number < 5 for number in used)
    assert found.least <= found.mean <= max(used, default=0)
    assert found.unfit == unfit


@pytest.mark.parametrize(
    ("shots", "words"),
    [
        (Shots(asked=5, mean=5.0, least=5), "5"),
        (Shots(asked=0, unfit=2), "0 (2 too long)"),
        (
            Shots(asked=5, mean=1.5, least=0, shortened=4, unfit=1),
            "1.5 of 5 (least 0, 4 shortened, 1 too long)",
        ),
    ],
)
def test_counts_in_words(shots, words):
    assert shots.summary() == words
