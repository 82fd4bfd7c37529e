"""How often verdicts are false, and how often they find what is there.

Comparisons are simulated and judged by the code that judges trained ones; every figure stands with
twice its Monte-Carlo error. Noise is from seed to seed, of standard deviation 1 in each arm (and 2,
four times the variance, where one is noisier); effects are in that unit.

    python bench/judging/statistics.py

    --draws N     simulated comparisons of each setting (default 20000)
    --workers N   processes (default: one for each core)
    --part NAME   noise, claims, text, divergence, rates, looks, margins or found (default: all)
"""

# ruff: noqa: E402
import sys

# Files beside this one share names with modules of the standard library.
del sys.path[0]

import argparse
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from scipy.special import stdtr, stdtrit

from bench.judging.simulated import (
    ALPHA,
    BASE,
    Row,
    comparison,
    ended,
    false_words,
    share,
    table,
    whole,
)
from layerlab.experiments.analysis.evidence import look_at_runs
from layerlab.experiments.statistics.additive_model import FEWEST, Additive
from layerlab.experiments.statistics.differences import Difference, Level, spread_limits
from layerlab.experiments.statistics.moderated_variance import LENT, MOST, prior
from layerlab.experiments.statistics.multiple_comparisons import PairTest

SEEDS = (3, 5, 10)
ARMS = (2, 3, 4, 8, 18)
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw lognormal numbers of mean 0 and variance 1."""
    return (rng.lognormal(0, 1, shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


NOISE: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t(3)": lambda rng, shape: rng.standard_t(3, shape) / math.sqrt(3),
    "skewed": skewed,
    "noisy arm": lambda rng, shape: scaled(rng, shape, 1),
    "noisy baseline": lambda rng, shape: scaled(rng, shape, 0),
    "skewed arm": lambda rng, shape: bent(rng, shape),
}


def scaled(rng: np.random.Generator, shape: tuple[int, ...], arm: int) -> np.ndarray:
    """Draw normal numbers, with four times the variance in one arm."""
    found = rng.standard_normal(shape)
    found[:, arm] *= 2
    return found


def bent(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw normal numbers, but skewed ones in one arm: no t-test is made for them."""
    found = rng.standard_normal(shape)
    found[:, 1] = skewed(rng, shape[::2])
    return found


def judged(table: np.ndarray, level: Level) -> list[Difference]:
    """Compare every arm of a table with the first, as a comparison does it."""
    values = {f"a{arm}": dict(enumerate(row)) for arm, row in enumerate(table.tolist())}
    model = Additive(values, {BASE: 1.0})
    return [model.difference(arm, BASE, level) for arm in list(values)[1:]]


def together(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, errors and degrees of many tables: `Additive`, without missing cells.

    A comparison takes milliseconds by the package's own code; here are millions. The first tables
    are judged by both, and have to agree.
    """
    arms, seeds = tables.shape[1:]
    means = tables[:, 1:].mean(2) - tables[:, :1].mean(2)
    if arms < FEWEST:
        return *single(tables)[:2], np.full_like(means, seeds - 1)
    rest = tables - tables.mean(2, keepdims=True) - tables.mean(1, keepdims=True)
    rest += tables.mean((1, 2))[:, None, None]
    own, whole = (seeds - 1) * (arms - 1) / arms, (seeds - 1) * (arms - 1)
    variances = (rest**2).sum(2) / own
    common = [prior(row, [own] * arms) for row in variances]
    most = [[min(one.freedom, MOST, arms - 1.0)] for one in common]
    lent = np.repeat(np.array(most, float), arms, axis=1)
    lent[:, 0] = np.minimum(lent[:, 0], LENT * own)
    middle = np.array([[one.variance] for one in common])
    parts = (lent * middle + own * variances) / (lent + own) / seeds
    both = parts[:, 1:] + parts[:, :1]
    squares = parts**2 / (lent + own)
    freedom = np.minimum(both**2 / (squares[:, 1:] + squares[:, :1]), whole)
    return means, np.sqrt(both), freedom


def single(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare every arm with the first by a paired t-test of its own."""
    gaps = tables[:, 1:] - tables[:, :1]
    seeds = tables.shape[2]
    errors = gaps.std(2, ddof=1) / math.sqrt(seeds)
    return gaps.mean(2), errors, np.full_like(errors, seeds - 1)


def words(means: np.ndarray, errors: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Return which arms get a word after Holm's correction."""
    p = np.sort(2 * stdtr(freedom, -np.abs(means) / errors), axis=1)
    order = np.argsort(2 * stdtr(freedom, -np.abs(means) / errors), axis=1)
    left = p.shape[1] - np.arange(p.shape[1])
    passed = np.logical_and.accumulate(p * left < ALPHA, axis=1)
    return np.take_along_axis(passed, np.argsort(order, axis=1), axis=1)


def noise(kind: str, arms: int, seeds: int, draws: int) -> Row:
    """Return false words, coverage of the interval, and the power to find an effect of 2."""
    rng, level = np.random.default_rng(1), Level(comparisons=arms - 1)
    tables = NOISE[kind](rng, (draws, arms, seeds))
    means, errors, freedom = together(tables)
    for number in range(20):
        own = judged(tables[number], level)
        assert np.allclose([one.error for one in own], errors[number])
        assert np.allclose([one.freedom for one in own], freedom[number])
        assert np.allclose([one.mean for one in own], means[number])
    false = words(means, errors, freedom).any(1).mean()
    covered = (np.abs(means) / errors < -stdtrit(freedom, ALPHA / 2)).mean()
    tables[:, -1] += 2
    power, before = (words(*way(tables))[:, -1].mean() for way in (together, single))
    return (
        f"{kind}, {arms} arms, {seeds} seeds",
        share(false, draws),
        share(covered, draws),
        share(power, draws),
        share(before, draws),
        f"{power / before:.1f}" if before else "-",
    )


def claims(kind: str, noisy: int, arms: int, seeds: int, draws: int) -> Row:
    """Return false words of arms and claims together, where one arm has four times the variance."""
    rng = np.random.default_rng(7)
    others = [f"a{arm}" for arm in range(2, arms)]
    hub = {"relation": "better", "arms": others, "against": "a1"}
    half = arms // 2
    order = {
        "relation": "order",
        "arms": [[f"a{arm}" for arm in range(half)], [f"a{arm}" for arm in range(half, arms)]],
    }
    claim = {"source": "Own", "says": "x", **{"hub": hub, "order": order}[kind]}
    section = comparison(arms, seeds, claims=[claim])
    false = 0
    for _ in range(draws):
        table = rng.standard_normal((arms, seeds))
        table[noisy] *= 2
        false += false_words(section, arms, whole(10 + table))
    told = {"hub": "others against a1", "order": "one half before the other"}[kind]
    return f"{told}, a{noisy} noisy, {arms} arms, {seeds} seeds", share(false / draws, draws)


def text(share_: float, arms: int, seeds: int, variance: str, draws: int) -> Row:
    """Return false words where the text adds this share of what seeds add to the variance."""
    rng, section = np.random.default_rng(8), comparison(arms, seeds, variance=variance)
    count, false = 64, 0
    for _ in range(draws):
        table = (
            100 + rng.standard_normal((arms, seeds, 1)) + rng.standard_normal((arms, seeds, count))
        )
        table += math.sqrt(share_ * count / seeds) * rng.standard_normal((arms, 1, count))
        runs = [
            ended(arm, seed, float(table[arm, seed].mean()), blocks=table[arm, seed].tolist())
            for arm in range(arms)
            for seed in range(seeds)
        ]
        false += false_words(section, arms, runs)
    head = f"text {100 * share_:g} % of seeds, {variance}, {arms} arms, {seeds} seeds"
    return head, share(false / draws, draws)


def divergence(rate: float, arms: int, seeds: int, draws: int) -> Row:
    """Return false words where every run diverges with a probability."""
    rng, section = np.random.default_rng(2), comparison(arms, seeds)
    false = 0
    for _ in range(draws):
        table, lost = 10 + rng.standard_normal((arms, seeds)), rng.random((arms, seeds)) < rate
        runs = [
            ended(arm, seed, None if lost[arm, seed] else float(table[arm, seed]))
            for arm in range(arms)
            for seed in range(seeds)
        ]
        false += false_words(section, arms, runs)
    return f"{100 * rate:g} % diverge, {arms} arms, {seeds} seeds", share(false / draws, draws)


def rates(tried: int, arms: int, seeds: int, draws: int) -> Row:
    """Return false words where one arm tries several rates, all as good, and the others one."""
    rng, section = np.random.default_rng(3), comparison(arms, seeds)
    false = 0
    for _ in range(draws):
        runs = [
            ended(arm, seed, 10 + float(rng.standard_normal()), rate=1e-3 * (1 + number))
            for arm in range(arms)
            for seed in range(seeds)
            for number in range(tried if arm == 1 else 1)
        ]
        false += false_words(section, arms, runs)
    return f"{tried} rates against 1, {arms} arms, {seeds} seeds", share(false / draws, draws)


def looks(arms: int, effect: float, draws: int) -> Row:
    """Return words after 3, 6 or 12 seeds, and the seeds needed until all arms had one."""
    rng, section = np.random.default_rng(4), comparison(arms, 12, looks=[3, 6, 12])
    found, spent = 0, 0
    for _ in range(draws):
        table = 10 + rng.standard_normal((arms, 12))
        table[1:] += effect
        for look in section.looks:
            baselines = dict.fromkeys((f"a{arm}" for arm in range(arms)), BASE)
            _, family = look_at_runs(section, baselines, whole(table[:, :look]), "nats")
            decided = [family[test].corrected < ALPHA for test in family.tests]
            if all(decided):
                break
        found += any(decided)
        spent += look
    head = f"looks at 3, 6, 12 seeds, {arms} arms, effect {effect:g}"
    return head, share(found / draws, draws), f"{spent / draws:.1f} seeds"


def margins(relation: str, spread: float, seeds: int, draws: int) -> Row:
    """Return how often a claim that is true at 0.99 of its margin is said to fail."""
    rng = np.random.default_rng(5)
    claim = {"source": "Own", "says": "x", "relation": relation, "arm": "a1", "margin": 1.0}
    section = comparison(3, seeds, claims=[claim])
    false = 0
    for _ in range(draws):
        table = 10 + spread * rng.standard_normal((3, seeds))
        table[1] -= 0.99
        baselines = {"a0": BASE, "a1": BASE, "a2": BASE}
        _, family = look_at_runs(section, baselines, whole(table), "nats")
        edge = family[PairTest("a1", BASE, -1.0)]
        false += edge.corrected < ALPHA and edge.side < 0
    return f"{relation} at 0.99 of the margin, sd {spread:g}, {seeds} seeds", share(
        false / draws, draws
    )


def found(arms: int, seeds: int, draws: int) -> Row:
    """Return how often what is truly found with 80 % lies in the ranges that are printed.

    The ranges are of the effect, and of the seeds for an effect, which hold where sigma's does.
    """
    rng, level = np.random.default_rng(6), Level(comparisons=arms - 1)
    one = [judged(rng.standard_normal((arms, seeds)), level)[-1] for _ in range(draws)]
    means = np.array([each.mean for each in one])
    sizes = np.array([each.whole for each in one])
    edges = -stdtrit(sizes[:, 1], level.strictest / 2) * sizes[:, 0]
    low, high = 0.0, 100.0
    while high - low > 1e-4:
        effect = (low + high) / 2
        enough = np.mean(np.abs(means + effect) > edges) >= level.power
        low, high = (low, effect) if enough else (effect, high)
    ranges = np.array([each.detectable for each in one])
    inside = np.mean((ranges[:, 0] <= high) & (high <= ranges[:, 1]))
    middle = np.median(ranges, axis=0)
    sigma = np.array([spread_limits(*each, level.surely) for each in sizes])
    right = np.mean((sigma[:, 0] <= math.sqrt(2 / seeds)) & (math.sqrt(2 / seeds) <= sigma[:, 1]))
    head = f"found with 80 %, {arms} arms, {seeds} seeds"
    told = f"{high:.2f} in {middle[0]:.2f} to {middle[1]:.2f}"
    return head, share(inside, draws), share(right, draws), told


PARTS: dict[str, tuple[Row, Callable[..., Row], list[tuple[Any, ...]]]] = {
    "noise": (
        ("setting", "false words %", "coverage %", "power %", "t-tests alone %", "ratio"),
        noise,
        [(kind, arms, seeds) for kind in NOISE for arms in ARMS for seeds in SEEDS],
    ),
    "claims": (
        ("setting", "false words %"),
        claims,
        [("hub", 1, 8, 3), ("hub", 1, 5, 3), ("hub", 0, 8, 5), ("order", 3, 8, 3)],
    ),
    "text": (
        ("setting", "false words %"),
        text,
        [
            *((share_, 2, seeds, "own") for share_ in (0.1, 0.3) for seeds in (2, 3, 5)),
            *((0.1, arms, 3, variance) for arms in (4, 8, 18) for variance in ("own", "moderated")),
        ],
    ),
    "divergence": (
        ("setting", "false words %"),
        divergence,
        [
            *((rate, 8, seeds) for rate in (0.01, 0.05, 0.1) for seeds in (3, 10)),
            (0.1, 2, 3),
            (0.1, 2, 10),
            (0.1, 18, 5),
        ],
    ),
    "rates": (
        ("setting", "false words %"),
        rates,
        [(8, 2, 3), (8, 2, 10), (8, 4, 3), (8, 8, 5)],
    ),
    "looks": (
        ("setting", "any word %", "until all decided"),
        looks,
        [(2, 0.0), (8, 0.0), (2, 2.0), (8, 2.0)],
    ),
    "margins": (
        ("setting", "false `fails` %"),
        margins,
        [("alike", 0.1, 3), ("alike", 1.0, 10), ("no better", 0.1, 3), ("no better", 1.0, 10)],
    ),
    "found": (
        ("setting", "effect inside %", "seeds inside %", "truth in the median range"),
        found,
        [(2, 3), (8, 3), (8, 10), (18, 5)],
    ),
}


def main() -> None:
    """Simulate and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", choices=PARTS, action="append")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.workers) as pool:
        asked = {
            name: [pool.submit(PARTS[name][1], *each, given.draws) for each in PARTS[name][2]]
            for name in given.part or PARTS
        }
        for name, waiting in asked.items():
            print(
                f"\n{name}",
                *table([PARTS[name][0], *(one.result() for one in waiting)]),
                sep="\n",
                flush=True,
            )


if __name__ == "__main__":
    main()
