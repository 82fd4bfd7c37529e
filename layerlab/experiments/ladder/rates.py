"""The best learning rate of each arm by size, and how it drifts."""

import math
from collections.abc import Sequence

from layerlab.console.units import amount
from layerlab.experiments.analysis.arm_results import missing_seeds
from layerlab.experiments.analysis.evidence import RecipeEvidence
from layerlab.experiments.analysis.interim import Look
from layerlab.experiments.analysis.verdict import describe_interval, number
from layerlab.experiments.ladder.sentences import Sizes, join_words
from layerlab.experiments.statistics.differences import Difference, Level
from layerlab.experiments.statistics.multiple_comparisons import holm
from layerlab.experiments.statistics.rate_drift import best_octave, drift
from layerlab.records.json_values import Json

ComparedArms = tuple[str, str]


def rates_by_size(name: str, sizes: Sizes, alone: Sequence[RecipeEvidence], level: Level) -> Json:
    """Return the best rate of an arm at each size, and its drift, where rates are swept."""
    sides = [one.stages[-1].sides[name] for one in alone]
    best = [
        {
            "parameters": size.parameters,
            "rate": side.chosen.rate if side.chosen else None,
            "edge": side.chosen.edge if side.chosen else None,
            "swept": len(side.tried),
        }
        for (size, _), side in zip(sizes, sides, strict=True)
    ]
    octaves = [_octaves(one.stages[-1], name) for one in alone]
    at_ends = [sorted(seed for seed, one in octave.items() if one is None) for octave in octaves]
    none = {"drift": None, "low": None, "high": None}
    found = {"arm": name, "best": best, "at_ends": at_ends, **none}
    present = [{seed: one for seed, one in octave.items() if one is not None} for octave in octaves]
    # Which seeds are left where some are at an end is no chance: without them the rest is too sure.
    alike = all(one.keys() == octaves[0].keys() for one in octaves)
    if not octaves[0] or not alike or any(at_ends) or any(one["edge"] for one in best):
        return found
    doublings = [math.log2(size.parameters) for size, _ in sizes]
    moved = drift(doublings, present, level)
    seeds = [{str(seed): one for seed, one in octave.items()} for octave in present]
    return {**found, "drift": moved.mean, "low": moved.low, "high": moved.high, "octaves": seeds}


def _octaves(stage: Look, name: str) -> dict[int, float | None]:
    """Return log2 of the best rate of each seed that has finished at all rates.

    None where it is at an end of the sweep.
    """
    side = stage.sides[name]
    missing = missing_seeds(stage.section, side)
    losses: dict[int, dict[float, float]] = {}
    for rate, runs in side.sweep.items():
        for seed in runs.keys() - missing:
            value = runs[seed].value(side.metric)  # None of a run that diverged
            losses.setdefault(seed, {})[rate] = math.inf if value is None else value
    return {seed: best_octave(sweep) for seed, sweep in losses.items()}


def warn_of_drift(rates: Sequence[Json], pairs: Sequence[ComparedArms], level: Level) -> list[str]:
    """Return remarks on rates at an end, and on arms whose best rates drift apart.

    Of all pairs together, by Holm.
    """
    found, by_name = [], {one["arm"]: one for one in rates}
    for one in rates:
        ends = [amount(at["parameters"]) for at in one["best"] if at["edge"]]
        if ends:
            found.append(
                f"the best rate of {one['arm']} is at an end of the range at {join_words(ends)} "
                "parameters, so its drift is not known"
            )
            continue
        swept = [at["swept"] > 1 for at in one["best"]]
        seeds = sorted({seed for at in one["at_ends"] for seed in at})
        if seeds and all(swept):
            found.append(
                f"the best rate of {one['arm']} is at an end of the range for the seeds "
                f"{', '.join(map(str, seeds))} at some size, so its drift is not known"
            )
    apart = {pair: _drift_apart(by_name[pair[0]], by_name[pair[1]], level) for pair in pairs}
    tested = {pair: (one, one.p) for pair, one in apart.items() if one and one.p is not None}
    corrected = holm([p for _, p in tested.values()])
    for ((name, baseline), (gap, _)), p in zip(tested.items(), corrected, strict=True):
        if p < level.alpha:
            arm, base = by_name[name], by_name[baseline]
            found.append(
                f"the best rates of {name} and {baseline} drift apart: by "
                f"{number(arm['drift'], sign=True)} and {number(base['drift'], sign=True)} octaves "
                f"per doubling, a difference of {number(gap.mean or 0.0, sign=True)} "
                f"({describe_interval(gap)}, p = {p:.2g} after Holm's correction over the arms); "
                "one rate for both would favour one of them at other sizes"
            )
    return found


def _drift_apart(arm: Json, base: Json, level: Level) -> Difference | None:
    """Return how much faster the best rate of one arm drifts; None where either is not known."""
    if arm["drift"] is None or base["drift"] is None:
        return None
    doublings = [math.log2(at["parameters"]) for at in arm["best"]]
    gaps = [
        {int(seed): one[seed] - other[seed] for seed in one.keys() & other.keys()}
        for one, other in zip(arm["octaves"], base["octaves"], strict=True)
    ]
    return drift(doublings, gaps, level) if all(gaps) else None
