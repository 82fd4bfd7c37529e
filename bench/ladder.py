"""How often a ladder's words are wrong, and how often it decides what can be decided.

Ladders of three sizes are simulated with known gains that stay, shrink, end or cross, and judged by
the code that judges trained ones. Noise is from seed to seed, of 0.03 nats in each arm beside what
seeds share, as in the twins of docs/results; gains are in that unit. A word is wrong where it is of
the other sign than the truth, or the truth is none. A truth counts as decidable where a test that
knew the noise would find it with a probability of 80 % at the same level, corrected for as many
tests; beyond the ladder, where it would do so on a line.

    python bench/ladder.py

    --draws N     simulated ladders of each setting (default 400)
    --scatter S   standard deviation of sizes about the gains of a setting, drawn for each arm, in
                  the same unit (default 0); what is decidable is told as if it were 0
    --workers N   processes (default: one for each core)
"""

# ruff: noqa: E402
import sys

# Files beside this one share names with modules of the standard library.
del sys.path[0]

import argparse
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from scipy.special import ndtr, ndtri

from layerlab.experiments.analysis.evidence import look_at_recipe
from layerlab.experiments.ladder.compare import collect_tests, judge_beyond, judge_trend
from layerlab.experiments.plan.ladder import Rung
from layerlab.experiments.statistics.multiple_comparisons import PairTest
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.run import RunRecord

SIZES = (10_000_000, 30_000_000, 90_000_000)
NOISE, SEEDS_SHARE = 0.03, 0.05
SEEDS = (3, 4, 5)
# How noise changes from size to size.
SPREADS = {"alike": (1.0, 1.0, 1.0), "less with size": (1.4, 1.0, 0.7)}
# Gains at the three sizes and one step beyond, in standard deviations of a seed's difference.
TRUTHS = {
    "none": (0.0, 0.0, 0.0, 0.0),
    "stays small": (2.5, 2.5, 2.5, 2.5),
    "stays": (4.0, 4.0, 4.0, 4.0),
    "stays large": (8.0, 8.0, 8.0, 8.0),
    "grows": (2.0, 5.0, 8.0, 11.0),
    "shrinks": (8.0, 4.0, 2.0, 1.0),
    "shrinks a little": (10.0, 9.0, 8.0, 7.0),
    "ends": (6.0, 3.0, 0.0, 0.0),
    "crosses": (8.0, 2.0, -4.0, -10.0),
    "crosses beyond": (9.0, 6.0, 3.0, 0.0),
}
ARMS = (2, 4)
POWER, ALPHA = 0.8, 0.05
Count = np.ndarray


def recipe(arms: int, seeds: int) -> TrainingRecipe:
    """Return a ladder with so many arms."""
    listed = [{"name": f"a{arm}", "variant": "llama"} for arm in range(arms)]
    return make_recipe(
        {
            "name": "simulated",
            "train": {"max_steps": 1},
            "compare": {"arms": listed, "seeds": list(range(seeds))},
            "ladder": {"sizes": list(SIZES), "tokens_per_parameter": 20},
        }
    )


def ended(arm: int, seed: int, nats: float) -> RunRecord:
    """Return a run that has ended."""
    manifest = {
        "run": f"a{arm}-{seed}",
        "arm": f"a{arm}",
        "recipe": {"train": {"seed": seed, "learning_rate": 1e-3}},
    }
    return RunRecord(manifest=manifest, result={"nats": nats, "diverged": None})


def draw(
    rng: np.random.Generator, whole: TrainingRecipe, gains: np.ndarray, spread: str
) -> list[tuple[Rung, list[RunRecord]]]:
    """Draw the runs of a ladder, whose arms beside the baseline each have a row of gains."""
    section = whole.compare
    assert section is not None
    alone, found = whole.change({"ladder": None}), []
    for size, gain, times in zip(SIZES, gains.T, SPREADS[spread], strict=False):
        shape = len(section.arms), len(section.seeds)
        table = 3 + NOISE * times * rng.standard_normal(shape)
        table += SEEDS_SHARE * rng.standard_normal(shape[1])
        table[1:] -= gain[:, None] * NOISE * math.sqrt(2)
        runs = [ended(arm, seed, float(table[arm, seed])) for arm, seed in np.ndindex(*shape)]
        rung = Rung(wanted=size, parameters=size, tokens=20 * size, recipe=alone)
        found.append((rung, runs))
    return found


def words(whole: TrainingRecipe, sizes: list[tuple[Rung, list[RunRecord]]]) -> np.ndarray:
    """Return the signs of the words on each arm: by size, on the trend, one step beyond."""
    tested = collect_tests(whole, sizes)
    level, found = tested.level, []
    families = [
        look_at_recipe(rung.recipe, runs, elsewhere).family
        for (rung, runs), elsewhere in zip(sizes, tested.elsewhere, strict=True)
    ]
    for arm, corrected in zip(tested.arms, tested.corrected, strict=True):
        judged = [family[PairTest(*arm.pair)] for family in families]
        signs = [-one.side * (one.corrected < level.alpha) for one in judged]
        trend = judge_trend(arm, [], corrected[0], level)
        turn = {"grows": 1, "shrinks": -1}.get(trend["verdict"], 0)
        largest = {1: "better", -1: "worse"}.get(signs[-1], "")
        beyond = judge_beyond(arm, arm.targets[0], corrected[1], largest, level)
        signs += [turn, {"better": 1, "worse": -1}.get(beyond["verdict"], 0)]
        found.append(signs)
    return np.array(found)


def truth(gains: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the true numbers behind the words."""
    slope = gains[2] - gains[0]
    return np.array([*gains[:3], slope / 2, gains[3]])


def decidable(gains: tuple[float, ...], spread: str, arms: int, seeds: int) -> np.ndarray:
    """Return which truths a test would find that knew the noise, at the corrected level."""
    times = np.array(SPREADS[spread])
    weights = np.array([*np.eye(3), [-0.5, 0, 0.5], [-2 / 3, 1 / 3, 4 / 3]])
    errors = np.sqrt((weights**2 * times**2).sum(1) / seeds)
    edge = -ndtri(ALPHA / (5 * (arms - 1)) / 2)
    found = ndtr(np.abs(truth(gains)) / errors - edge) >= POWER
    # No line says what lies beyond where there is none, and none foretells a crossing.
    straight = math.isclose(gains[3], 2 * gains[2] - gains[1], abs_tol=1e-9)
    found[4] &= straight and math.copysign(1, gains[3]) == math.copysign(1, gains[2])
    found[4] &= math.isclose(gains[2], 2 * gains[1] - gains[0], abs_tol=1e-9)
    return found


def setting(
    kind: str, spread: str, arms: int, seeds: int, draws: int, scatter: float
) -> tuple[str, Count, Count]:
    """Return ladders with a wrong word, wrong words, and words where they could be had."""
    place = list(TRUTHS).index(kind), list(SPREADS).index(spread)
    rng, whole = np.random.default_rng([*place, arms, seeds]), recipe(arms, seeds)
    open_ = decidable(TRUTHS[kind], spread, arms, seeds)
    wrong, right = np.zeros(6), np.zeros(5)
    for _ in range(draws):
        gains = TRUTHS[kind] + scatter * rng.standard_normal((arms - 1, len(TRUTHS[kind])))
        signs = np.sign([truth(one) for one in gains])
        said = words(whole, draw(rng, whole, gains, spread))
        false = (said != 0) & (said != signs)
        wrong += [false.any(), *false.mean(0)]
        right += ((said == signs) & (said != 0)).mean(0)
    head = f"{kind}, noise {spread}, {arms} arms, {seeds} seeds"
    return head, wrong / draws, np.where(open_, right / draws, np.nan)


def told(values: np.ndarray) -> list[str]:
    """Return shares in percent."""
    return ["-" if np.isnan(one) else f"{100 * one:.1f}" for one in values]


def main() -> None:
    """Simulate and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--scatter", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    asked = [
        (kind, spread, arms, seeds)
        for kind in TRUTHS
        for spread in SPREADS
        for arms in ARMS
        for seeds in SEEDS
    ]
    with ProcessPoolExecutor(given.workers) as pool:
        waiting = [pool.submit(setting, *each, given.draws, given.scatter) for each in asked]
        rows = [one.result() for one in waiting]
    heads = ("any", "10 M", "30 M", "90 M", "trend", "beyond")
    print(f"{'wrong words % (of ladders; by word)':48}", *(f"{head:>7}" for head in heads))
    for head, wrong, _ in rows:
        print(f"{head:48}", *(f"{one:>7}" for one in told(wrong)))
    print(f"\n{'decided %, where that can be':48}", *(f"{head:>7}" for head in ("", *heads[1:])))
    for head, _, right in rows:
        print(f"{head:48}", *(f"{one:>7}" for one in ["", *told(right)]))
    wrongs, rights = (np.array([row[place] for row in rows]) for place in (1, 2))
    print(
        f"\nladders with a wrong word: {100 * wrongs[:, 0].mean():.1f} %, "
        f"at most {100 * wrongs[:, 0].max():.1f} %; wrong words: {100 * wrongs[:, 1:].mean():.2f} %"
        f"; decided: {100 * np.nanmean(rights):.0f} % of what can be; "
        + ", ".join(
            f"{head} {100 * np.nanmean(column):.0f} %"
            for head, column in zip(heads[1:], rights.T, strict=True)
        )
    )


if __name__ == "__main__":
    main()
