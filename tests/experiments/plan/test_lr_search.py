"""A planted optimum is found, by a grid and by optuna, and the end of a range is called that."""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.lr_search import (
    GridSearch,
    Optuna,
    Search,
    best,
    next_rate,
    search_rates,
    wider,
)
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.result import read_result
from layerlab.training.run_spec import RunSpec
from tests.support.refused import refuses
from tests.training.support.drawn import record, write

LOW, HIGH = 1e-4, 3e-2


def valley(optimum: float) -> Callable[[float], float]:
    """A loss that is quadratic in the logarithm of the rate."""
    return lambda rate: 3 + 0.3 * math.log(rate / optimum) ** 2


def tried(found: Search, loss: Callable[[float], float]) -> dict[float, float]:
    results: dict[float, float] = {}
    while (rate := found.propose(results)) is not None:
        results[rate] = loss(rate)
    return results


def section(**given: object) -> CompareSection:
    return CompareSection(**given)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8, unique=True), st.integers(0, 7))
def test_a_grid_tries_every_rate_once_and_finds_the_planted_one(rates, place):
    optimum = rates[place % len(rates)]
    results = tried(GridSearch(tuple(rates)), valley(optimum))
    assert sorted(results) == sorted(rates)
    assert results[best(results).rate] == results[optimum]


@pytest.mark.full
@pytest.mark.parametrize("optimum", [4e-4, 2.2e-3, 1e-2])
def test_optuna_comes_nearer_than_a_grid_of_as_many(optimum):
    results = tried(Optuna(LOW, HIGH, 8), valley(optimum))
    assert len(results) == 8
    found = best(results)
    assert found.edge is None
    assert abs(math.log(found.rate / optimum)) < math.log(HIGH / LOW) / 7 / 2
    assert abs(math.log(found.rate / optimum)) < 0.1


@pytest.mark.full
def test_optuna_goes_on_from_results_as_if_it_had_never_stopped():
    whole = tried(Optuna(LOW, HIGH, 6), valley(1e-3))
    part = dict(list(whole.items())[:4])
    again = Optuna(LOW, HIGH, 6)
    assert again.propose(part) == Optuna(LOW, HIGH, 6).propose(part) == list(whole)[4]


@pytest.mark.full
def test_optuna_walks_away_from_where_runs_diverge():
    def loss(rate: float) -> float:
        return math.inf if rate > 3e-3 else valley(2e-3)(rate)

    results = tried(Optuna(LOW, HIGH, 8), loss)
    assert sum(map(math.isinf, results.values())) <= 4
    assert abs(math.log(best(results).rate / 2e-3)) < 0.5


def test_optuna_never_proposes_a_rate_twice_nor_outside():
    results = tried(Optuna(1e-3, 1.01e-3, 9), lambda rate: 3.0)
    assert all(1e-3 <= rate <= 1.01e-3 for rate in results)
    assert len(results) >= 4


def test_the_best_at_an_end_says_which_and_where_to_go_on():
    results = {rate: valley(1e-1)(rate) for rate in (1e-3, 3e-3, 1e-2)}
    assert best(results).edge == "largest"
    assert wider(results, "largest") == 0.03
    assert best({rate: valley(1e-5)(rate) for rate in results}).edge == "smallest"
    assert wider(results, "smallest") == 3e-4
    assert best({1e-3: 3.0}).edge is None
    assert best({1e-3: math.inf, 3e-3: 3.0, 1e-2: math.inf}).rate == 3e-3


def test_a_rate_between_others_is_at_no_end_though_one_of_them_diverged():
    assert best({1e-3: 3.1, 3e-3: 3.0, 1e30: math.inf}).edge is None
    assert best({1e-30: math.inf, 1e-3: 3.0, 3e-3: 3.1, 1e-2: 3.2}).edge is None
    assert best({1e-3: 3.0, 3e-3: 3.1, 1e30: math.inf}).edge == "smallest"
    assert best({1e29: math.inf, 1e30: math.inf}).edge is None
    assert best({1e-4: 3.2, 2.9e-3: 3.0, 3e-3: 3.1}).edge == "largest"


@given(st.floats(1e-6, 1), st.floats(1.001, 1e40))
def test_the_rate_to_add_lies_beyond_the_end_and_within_a_decade_or_so(low, ratio):
    rates = {low: 3.0, low * ratio: 3.1}
    assert low / 16 < wider(rates, "smallest") < low
    assert low * ratio < wider(rates, "largest") < low * ratio * 16


def test_the_rate_to_add_is_one_that_a_sweep_would_have():
    assert wider({1e-3: 3.0, 1e30: math.inf}, "smallest") == 1e-4
    assert wider({3e-3: 3.0, 1e-2: 3.1}, "smallest") == 9e-4
    assert wider({1e-3: 3.1, 3e-3: 3.0}, "largest") == 9e-3
    halves = {3e-3 * 2**n: 3.0 for n in range(4)}
    assert (wider(halves, "smallest"), wider(halves, "largest")) == (1.5e-3, 0.05)


def test_a_section_chooses_its_search():
    grid = section(arms=("llama",), learning_rates=(1e-2, 1e-3))
    assert next_rate(grid) == GridSearch((1e-2, 1e-3))
    asked = section(arms=("llama",), learning_rates=(1e-2, 1e-3), search="optuna", trials=5)
    assert next_rate(asked, seed=3) == Optuna(1e-3, 1e-2, 5, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"learning_rates": ()}, "needs a smallest and a largest rate, got"),
        ({"learning_rates": (1e-3,)}, "needs a smallest and a largest rate, got"),
        ({"trials": 2}, "a search begins with both ends and their middle"),
    ],
)
def test_optuna_needs_a_range_and_three_trials(options, said):
    given = {"arms": ("llama",), "learning_rates": (1e-3, 1e-2), "search": "optuna", **options}
    refuses(said, next_rate, section(**given))
    refuses("no learning rate was tried; expected at least", best, {})


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError) as told:
        next_rate(section(arms=("llama",), learning_rates=(1e-3, 1e-2), search="optuna"))
    assert "needs optuna, which is not installed" in str(told.value)
    assert "type: pip install '.[tune]', or write" in str(told.value)


EXTENT = CorpusSize(vocab=300, tokens=10_000, digest="a")
BEST = {"llama": 3e-3, "history-3": 1e-2}


def recipe(search: str) -> TrainingRecipe:
    return make_recipe(
        {
            "model": {"width": 32, "layers": 2, "heads": 2, "context": 16},
            "train": {"max_steps": 4, "batch_size": 2},
            "compare": {
                "arms": list(BEST),
                "seeds": [1, 2],
                "learning_rates": [1e-4, 1e-1],
                "search": search,
                "trials": 8,
            },
        }
    )


def planted(out: Path, run: RunSpec) -> None:
    """The result of a run whose loss is a parabola in the logarithm of its rate."""
    loss = 3 + math.log(run.rate / BEST[run.arm]) ** 2 + 0.01 * run.seed
    # The rate at the top diverges for the one arm.
    lost = "at once" if run.arm == "llama" and run.rate == 0.1 else None
    write(out, record(run, loss, diverged=lost))


@pytest.mark.full
def test_every_arm_finds_its_own_rate(tmp_path):
    found = recipe("optuna")
    assert found.compare is not None
    rounds: list[int] = []

    def carry(runs: list[RunSpec]) -> None:
        rounds.append(len(runs))
        for run in runs:
            if read_result(tmp_path / run.name) is None:
                planted(tmp_path, run)

    runs = plan(found, EXTENT)
    made = search_rates(found.compare, runs, tmp_path, carry)
    assert len(rounds) <= 8 and len(made) == sum(rounds)
    for arm, wanted in BEST.items():
        results = {
            run.rate: (read_result(tmp_path / run.name) or {})["nats"]
            for run in made
            if run.arm == arm and run.seed == 1
        }
        best = min((nats, rate) for rate, nats in results.items() if nats is not None)[1]
        assert abs(math.log(best / wanted)) < 0.3
    # What was found once is found again, and nothing new is run.
    assert [run.name for run in search_rates(found.compare, runs, tmp_path, carry)] == [
        run.name for run in made
    ]
