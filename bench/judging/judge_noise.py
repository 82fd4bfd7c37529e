"""How often judge says a word of arms that are alike: type python bench/judging/judge_noise.py.

    --draws N     comparisons of each kind (default 2000)

The noise is that of real runs: what is left of the final losses in docs/results when each arm and
each seed has its mean taken off. Two arms of it are judged as logs, paired and unpaired, and no
word but "not distinguishable" is right; 5 % are asked for at most, within Monte-Carlo error.
"""

# ruff: noqa: E402
import sys

# Files beside this one share names with modules of the standard library.
del sys.path[0]

import argparse
import json
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np

from layerlab.experiments.judge_logs import JudgeRequest, judge_logs
from layerlab.logs.training_log import TrainingLog

ALPHA = 0.05
# From seed to seed, in the noise's own standard deviations, as runs of one arm have it.
SHARED = 2.0
Table = np.ndarray


def residuals() -> Table:
    """Return what arm and seed leave of each stored loss, in standard deviations of its table."""
    found = []
    for file in sorted((ROOT / "docs" / "results").glob("*/comparison.json")):
        runs = [one for one in json.loads(file.read_text())["runs"] if one["chosen"]]
        losses = {(one["arm"], one["seed"]): one.get("nats") for one in runs}
        arms, seeds = (sorted({key[place] for key in losses}) for place in (0, 1))
        table = [[losses.get((arm, seed)) for seed in seeds] for arm in arms]
        whole = np.array([row for row in table if None not in row], float)
        if min(whole.shape, default=0) < 2:
            continue
        rest = whole - whole.mean(0) - whole.mean(1, keepdims=True) + whole.mean()
        freedom = (whole.shape[0] - 1) * (whole.shape[1] - 1)
        found.append((rest / math.sqrt((rest**2).sum() / freedom)).ravel())
    return np.concatenate(found)


def count_words(draws: int, seeds: int, *, paired: bool) -> int:
    """Count the comparisons of two arms that are alike of which a word is said."""
    noise, draw, words = residuals(), np.random.default_rng(seeds), 0
    for _ in range(draws):
        shared = draw.normal(0, SHARED, seeds)
        logs = [
            TrainingLog(
                place=f"{arm}{seed}",
                arm=arm,
                seed=str(seed) if paired else None,
                steps=np.array([1.0]),
                losses=np.array([3 + draw.choice(noise) + shared[seed] * paired]),
                loss_name="loss",
            )
            for arm in ("one", "other")
            for seed in range(seeds)
        ]
        row = judge_logs(logs, JudgeRequest()).content["rows"][1]
        words += row["verdict"] in ("better", "worse")
    return words


def main() -> None:
    """Print the share of false words for three, five and ten seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    draws = parser.parse_args().draws
    error = math.sqrt(ALPHA * (1 - ALPHA) / draws)
    print(f"{len(residuals())} residuals; {ALPHA:.0%} are asked for, +- {2 * error:.1%}")
    for paired in (True, False):
        for seeds in (3, 5, 10):
            words = count_words(draws, seeds, paired=paired)
            kind = "paired" if paired else "two samples"
            print(f"{kind}, {seeds} seeds: {words / draws:.1%} false words")


if __name__ == "__main__":
    main()
