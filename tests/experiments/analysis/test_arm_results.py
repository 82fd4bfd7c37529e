"""One side: which rate judges which seed, and how much of a difference is the text's."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.experiments.analysis.arm_results import collect_arm, missing_seeds
from layerlab.experiments.analysis.interim import text_error
from tests.training.support.drawn import recipe, record, runs

RATES = [1e-3, 3e-3, 1e-2]


def side(losses: Any, seeds: int = 4, blocks: Any = None, rates: Any = RATES) -> Any:
    """An arm whose runs end where a function of rate and seed says."""
    given = recipe(learning_rates=list(rates), seeds=list(range(1, seeds + 1)))
    found = []
    for run in runs(given):
        if run.arm == "llama":
            kept = {} if blocks is None else {"blocks": blocks(run.rate, run.seed)}
            found.append(record(run, losses(run.rate, run.seed), **kept))
    return collect_arm("llama", found, "nats")


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_no_seed_judges_the_rate_that_it_chose(start):
    table = np.random.default_rng(start).normal(3, 0.1, (3, 4))
    found = side(lambda rate, seed: float(table[RATES.index(rate), seed - 1]))
    assert set(found.values) == {2, 3, 4}
    assert found.tried == pytest.approx(dict(zip(RATES, table.mean(1), strict=True)))
    for seed in (2, 3, 4):
        best = int(table[:, : seed - 1].mean(1).argmin())
        assert found.rates[seed] == (RATES[best], RATES[best])
        assert found.values[seed] == pytest.approx(table[best, seed - 1])


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_rates_are_those_of_the_seeds_before_whatever_lacks_or_diverged(start):
    """Held against the best of an arm that has the seeds before alone."""
    rng = np.random.default_rng(start)
    table = np.round(rng.normal(3, 0.1, (3, 6)), 1)  # with ties
    table[rng.random((3, 6)) < 0.1] = np.nan
    kept = rng.random((3, 6)) < rng.choice([0.4, 0.9])
    plan = recipe(learning_rates=RATES, seeds=[*range(1, 7)])
    found = [
        record(run, float(table[place]))
        for run in runs(plan)
        if run.arm == "llama" and kept[place := (RATES.index(run.rate), run.seed - 1)]
    ]
    seeds = sorted({one.seed for one in found})
    chosen = {
        seed: collect_arm("llama", [one for one in found if one.seed < seed], "nats").chosen
        for seed in seeds
    }
    if len({one.rate for one in found}) > 1 and len(seeds) > 1:
        expected = {seed: (one.rate, one.rate) for seed, one in chosen.items() if one is not None}
        assert collect_arm("llama", found, "nats").rates == expected


@pytest.mark.full
def test_many_seeds_have_their_rates_in_a_time_that_grows_as_they_do():
    """Eight times as many seeds take less than twenty times as long, and not 64."""
    taken = []
    for seeds in (100, 800):
        found = side(lambda rate, seed: 3.0 + 1 / (seed + 100 * rate), seeds=seeds)
        began = time.process_time()
        assert len(found.rates) == seeds - 1
        taken.append(time.process_time() - began)
    assert taken[1] < 20 * taken[0]


def test_one_rate_leaves_nothing_to_choose_and_one_seed_nobody_to_ask():
    assert side(lambda rate, seed: 3.0 + seed, rates=[1e-3]).values == {
        seed: 3.0 + seed for seed in (1, 2, 3, 4)
    }
    assert side(lambda rate, seed: 3.0 + 100 * rate, seeds=1).values == {1: pytest.approx(3.1)}


def test_a_half_of_the_text_is_judged_at_the_rate_that_the_other_half_chose():
    """The even blocks like one rate, the odd ones another: neither is chosen by those it judges."""

    def blocks(rate: float, seed: int) -> dict[str, list[float]]:
        even, odd = (2.0, 4.0) if rate == RATES[0] else (4.0, 2.0)
        return {"nats": [even, odd] * 3, "tokens": [10] * 6}

    found = side(lambda rate, seed: 3.0, blocks=blocks, rates=RATES[:2])
    assert found.rates[2] == (RATES[1], RATES[0])
    assert found.values[2] == pytest.approx(4.0)
    assert found.blocks[2].tolist() == [4.0] * 6


def test_a_rate_that_diverged_before_is_not_chosen_and_one_that_diverges_now_counts():
    def losses(rate: float, seed: int) -> float:
        return float("nan") if (rate, seed) == (RATES[0], 2) else 2.0 + 100 * rate

    found = side(losses)
    assert set(found.diverged) == {2} and found.ended == 3
    assert set(found.values) == {3, 4} and {found.rates[seed][0] for seed in (3, 4)} == {RATES[1]}


def text_of(spread: float, noise: float) -> tuple[Any, Any]:
    """Two arms whose blocks differ by the text, the seed and chance."""
    rng, blocks = np.random.default_rng(0), 64
    by_text = rng.normal(0, spread, blocks)

    def arm(own: float) -> Any:
        def kept(rate: float, seed: int) -> dict[str, list[float]]:
            nats = 3 + own * by_text + rng.normal(0, noise, blocks)
            return {"nats": nats.tolist(), "tokens": [16] * blocks}

        return side(lambda rate, seed: 3.0, seeds=5, blocks=kept, rates=[1e-3])

    return arm(1.0), arm(0.0)


def of_both(ours: Any, theirs: Any) -> Any:
    return text_error({"a": ours, "b": theirs}, {"a": 1, "b": -1})


def test_what_the_text_adds_is_its_spread_over_the_root_of_its_blocks():
    error, freedom = of_both(*text_of(0.2, 1e-6))
    assert freedom == 63 and error == pytest.approx(0.2 / 8, rel=0.2)
    # Noise of single runs is the seeds' and not the text's.
    assert of_both(*text_of(0.0, 0.2))[0] < 0.2 / 8 / 2
    bare = side(lambda rate, seed: 3.0)
    assert of_both(bare, bare) is None
    # By the byte a block of one is not the same text as that of the other.
    by_byte = [replace(one, metric="bits_per_byte") for one in text_of(0.2, 1e-6)]
    assert all(one.blocks for one in by_byte) and of_both(*by_byte) is None


def test_a_seed_of_a_grid_is_missing_without_one_rate_and_of_a_search_only_without_all():
    given = recipe(learning_rates=RATES, seeds=[2, 1]).compare
    found = side(lambda rate, seed: 3.0, seeds=1, rates=RATES[:2])
    assert missing_seeds(given, found) == [2, 1]
    assert missing_seeds(given.model_copy(update={"search": "optuna"}), found) == [2]
    assert missing_seeds(given, side(lambda rate, seed: 3.0, seeds=1)) == [2]
