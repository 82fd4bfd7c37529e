"""Comparisons whose runs are drawn, and tables of what came of them."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from layerlab.experiments.analysis.evidence import look_at_runs
from layerlab.recipes.training import make_recipe
from layerlab.records.run import RunRecord

ALPHA = 0.05
BASE = "a0"
Row = tuple[str, ...]


def comparison(arms: int, seeds: int, **section: Any) -> Any:
    """Return the section of a recipe with so many arms."""
    listed = [{"name": f"a{arm}", "variant": "llama"} for arm in range(arms)]
    content = {
        "name": "simulated",
        "train": {"max_steps": 1},
        "compare": {"arms": listed, "seeds": list(range(seeds)), **section},
    }
    return make_recipe(content).compare


def ended(
    arm: int,
    seed: int,
    nats: float | None,
    rate: float = 1e-3,
    blocks: list[float] | None = None,
) -> RunRecord:
    """Return a run, with the losses of its blocks if any; one without a loss has diverged."""
    manifest = {
        "run": f"a{arm}-{seed}-{rate:g}",
        "arm": f"a{arm}",
        "recipe": {"train": {"seed": seed, "learning_rate": rate}},
    }
    result: dict[str, Any] = {"nats": nats, "diverged": None if nats else "NaN"}
    if blocks is not None:
        result["blocks"] = {"nats": blocks, "tokens": [10] * len(blocks)}
    return RunRecord(manifest=manifest, result=result)


def false_words(section: Any, arms: int, records: list[RunRecord]) -> bool:
    """Return whether any arm gets a word."""
    baselines = dict.fromkeys((f"a{arm}" for arm in range(arms)), BASE)
    _, family = look_at_runs(section, baselines, records, "nats")
    return any(family[test].corrected < ALPHA and family[test].side for test in family.tests)


def whole(table: np.ndarray) -> list[RunRecord]:
    """Return runs that have all ended."""
    places = np.ndindex(*table.shape)
    return [ended(arm, seed, float(table[arm, seed])) for arm, seed in places]


def share(value: float, draws: int) -> str:
    """Return a share in percent, with twice its Monte-Carlo error."""
    error = math.sqrt(max(value * (1 - value), 1 / draws) / draws)
    return f"{100 * value:.2f} +- {200 * error:.2f}"


def table(rows: list[Row]) -> Iterator[str]:
    """Yield rows as lines, column under column."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip()
