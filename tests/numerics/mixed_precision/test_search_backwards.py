"""Where errors cancel, one more place at a time ends too early: then the search goes backwards."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

import layerlab
from layerlab import UserError
from layerlab.numerics.mixed_precision import select_policy
from layerlab.numerics.mixed_precision.advice import Advice
from layerlab.numerics.mixed_precision.policy_runs import PolicyRuns
from layerlab.numerics.mixed_precision.select_policy import advise

# Alone, each of the first three leaves more than nothing kept: their errors cancel. The last helps
# alone and costs the most.
ERRORS = {"one": 5.0, "two": 5.0, "three": -8.0, "large": 0.1}
WIDTHS = {"one": 1, "two": 1, "three": 1, "large": 8}
CANCELLING = {"one", "two", "three"}


class Sum(nn.Module):
    """A model that adds up what its tables hold."""

    def __init__(self) -> None:
        super().__init__()
        for name, width in WIDTHS.items():
            table = nn.Embedding(4, width)
            table.weight.data.fill_(0.3)
            self.add_module(name, table)

    def forward(self, ids: Tensor) -> Tensor:
        return sum(table(ids).sum(-1, keepdim=True) for table in self.children())


def share(kept: frozenset[str], beyond: float = 0.0) -> float:
    """Return what is left of the squared error, at least `beyond`."""
    left = sum(error for name, error in ERRORS.items() if name not in kept)
    return max((left / sum(ERRORS.values())) ** 2, beyond)


class Planted(PolicyRuns):
    """Runs whose errors are known."""

    plan: Callable[[frozenset[str]], float] = staticmethod(share)

    def share(self, keep: Iterable[str]) -> float:
        names = frozenset(keep)
        if names not in self.shares:
            self.runs += 1
            self.shares[names] = self.plan(names)
            self.deviations[names] = 0.0
        return self.shares[names]

    def real(self, keep: Iterable[str]) -> None:
        return None


def search(
    monkeypatch: pytest.MonkeyPatch, plan: Callable[[frozenset[str]], float]
) -> tuple[Advice, list[str], list[int]]:
    """Return the advice on planted errors, the steps told, and the trials announced."""
    monkeypatch.setattr(Planted, "plan", staticmethod(plan))
    monkeypatch.setattr(select_policy, "PolicyRuns", Planted)
    steps: list[str] = []
    announced: list[int] = []
    ids = torch.arange(4)[None]
    advice = advise(Sum(), lambda model: model(ids), "bf16", 0.3, steps.append, announced.append)
    return advice, steps, announced


def test_errors_that_cancel_are_kept_together(monkeypatch):
    advice, steps, announced = search(monkeypatch, share)
    assert min(one.alone for one in advice.choices if one.keep in CANCELLING) > 1
    assert set(advice.policy.keep) == CANCELLING
    assert advice.reached and advice.shortfall == ""
    assert advice.left == share(frozenset(CANCELLING)) < 0.01
    assert announced == [2 * len(ERRORS)]
    begun = steps.index("everything kept")
    # One for everything, one for each place, and pruning of the three that are left.
    assert sum("without" in step for step in steps[begun:]) <= len(ERRORS) + 6


def test_where_one_at_a_time_is_enough_nothing_is_begun_anew(monkeypatch):
    advice, steps, announced = search(monkeypatch, lambda kept: 0.2 if "one" in kept else 1.0)
    assert advice.policy.keep == ("one",) and announced == []
    assert "everything kept" not in steps


def test_what_is_refused_alone_is_kept_beside_its_neighbours(monkeypatch):
    def refuse(kept: frozenset[str]) -> float:
        if kept and len(kept & {"one", "two"}) == 1:
            raise UserError("torch refuses to mix dtypes")
        return share(kept)

    advice, _, _ = search(monkeypatch, refuse)
    assert set(advice.policy.keep) == CANCELLING and advice.reached
    assert not advice.refused.keys() & CANCELLING
    frame = advice.frame()
    assert set(frame.keep[frame.chosen]) == CANCELLING


def test_what_is_refused_in_any_case_is_left_out(monkeypatch):
    def refuse(kept: frozenset[str]) -> float:
        if "large" in kept:
            raise UserError("torch refuses to mix dtypes")
        return share(kept)

    advice, _, _ = search(monkeypatch, refuse)
    assert set(advice.policy.keep) == CANCELLING and set(advice.refused) == {"large"}


def test_only_what_even_everything_leaves_is_beyond_the_budget(monkeypatch):
    advice, _, _ = search(monkeypatch, lambda kept: share(kept, beyond=0.4))
    assert not advice.reached and advice.policy.keep == ("large",)
    assert "one that keeps everything does not reach it either" in advice.shortfall
    assert "at least" not in str(advice)


def test_memory_that_ran_out_is_no_verdict(monkeypatch):
    def run_out(kept: frozenset[str]) -> float:
        if len(kept) == len(ERRORS):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return share(kept)

    with pytest.raises(torch.OutOfMemoryError):
        search(monkeypatch, run_out)


@pytest.mark.full
def test_a_built_in_model_reaches_a_budget_that_one_at_a_time_did_not(capfd):
    advice = layerlab.precision("llama", budget=0.15, samples=1, context=64)
    assert advice.reached and max(advice.left, advice.real or 0.0) <= 0.15
    assert "llama, backwards" in capfd.readouterr().err
    # Twice for each place and two, and a few to prune, beside what was run before.
    assert advice.runs <= 100
