"""Judges a comparison at several sizes: by size, the trend of the gain, and what lies beyond.

A gain is the loss of the baseline less that of the arm. All tests of all sizes, of the trends and
of what lies beyond them are corrected together, by Holm.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerlab.console.units import amount
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.experiments.analysis.evidence import OtherSizes, RecipeEvidence, look_at_recipe
from layerlab.experiments.analysis.readings.run_readings import name_unit
from layerlab.experiments.analysis.warnings import DECLARED
from layerlab.experiments.ladder.rates import ComparedArms, rates_by_size, warn_of_drift
from layerlab.experiments.ladder.sentences import (
    Json,
    Sizes,
    describe_forecast,
    describe_sizes,
    describe_trend,
    join_words,
    ladder_scale,
    warn_of_length,
)
from layerlab.experiments.plan.ladder import Rung
from layerlab.experiments.statistics.differences import Difference, Level
from layerlab.experiments.statistics.multiple_comparisons import holm
from layerlab.experiments.statistics.size_trend import SizeGain, SizeTrend, lend, sizes_of
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.json_values import json_values

POINTS = 41  # of a line with its band
# Of a row, what the table of a size shows.
_ROW = (
    *("arm", "against", "n", "nats", "bits_per_byte", "sd", "difference", "low", "high", "p"),
    *("holm", "detectable", "verdict", "said", "rate", "edge", "rates", "parameters", "flops"),
    *("seconds", "mismatch", "diverged", "missing"),
)


@dataclass(frozen=True, kw_only=True)
class ArmOverSizes:
    """An arm over all sizes.

    Attributes:
        pair: the arm and its baseline.
        trend: None where fewer than two sizes have an interval, or runs diverged.
        lost: sizes at which runs of either side diverged.
        targets: parameters beyond the largest size that are asked about.
    """

    pair: ComparedArms
    trend: SizeTrend | None
    lost: Sequence[int]
    targets: Sequence[float]

    @property
    def tests(self) -> list[tuple[Difference | None, float]]:
        """The trend and each forecast, with their p; 1 where nothing can be tested."""
        asked = [None if self.trend is None else self.trend.slope]
        asked += [self._forecast(target) for target in self.targets]
        return [(one, 1.0 if one is None or one.p is None else one.p) for one in asked]

    def _forecast(self, target: float) -> Difference | None:
        trend, there = self.trend, math.log2(target)
        return trend.beyond(there) if trend is not None and trend.within_reach(there) else None


@dataclass(frozen=True, kw_only=True)
class LadderTests:
    """The tests of a ladder, before any word.

    Attributes:
        alone: the runs of each size by themselves.
        arms: each over all sizes.
        elsewhere: of each size, what the others say to it.
        corrected: p of each arm's trend and forecasts, after the correction for all tests.
        count: of all tests.
    """

    alone: Sequence[RecipeEvidence]
    arms: Sequence[ArmOverSizes]
    elsewhere: Sequence[OtherSizes]
    corrected: Sequence[Sequence[float]]
    count: int

    @property
    def level(self) -> Level:
        """Return the level of the tests of a ladder."""
        return self.alone[-1].stages[-1].level


def collect_tests(recipe: TrainingRecipe, sizes: Sizes) -> LadderTests:
    """Return every test of all sizes, of the trends, and of what lies beyond.

    Raises:
        UserError: as `look_at_recipe`, of any size.
    """
    parts = [(size.recipe, list(records)) for size, records in sizes]
    alone = [look_at_recipe(one, records) for one, records in parts]
    pairs = [pair for pair in alone[-1].baselines.items() if pair[0] != pair[1]]
    arms = [_over_sizes(pair, recipe, sizes, alone) for pair in pairs]
    lent = {arm.pair: common for arm in arms if (common := _common(recipe, arm.pair, alone))}
    raw = [look_at_recipe(one, records, OtherSizes(lent=lent)).family.raw for one, records in parts]
    own = [p for arm in arms for _, p in arm.tests]
    corrected = iter(holm([*own, *(p for several in raw for p in several)]))
    return LadderTests(
        alone=alone,
        arms=arms,
        elsewhere=[
            OtherSizes(
                tests=[*(p for other, ps in enumerate(raw) if other != index for p in ps), *own],
                lent=lent,
            )
            for index in range(len(raw))
        ],
        corrected=[[next(corrected) for _ in arm.tests] for arm in arms],
        count=len(own) + sum(map(len, raw)),
    )


def compare_ladder(recipe: TrainingRecipe, sizes: Sizes) -> Comparison:
    """Compare the runs of a ladder: the content of its largest size, with all sizes beside.

    Raises:
        UserError: as `compare_runs`, of any size.
    """
    tested = collect_tests(recipe, sizes)
    alone, level = tested.alone, tested.level
    found = [
        compare_runs(size.recipe, list(records), elsewhere).content
        for (size, records), elsewhere in zip(sizes, tested.elsewhere, strict=True)
    ]
    unit = name_unit(alone[-1].metric)
    rows = [
        _row(arm, sizes, found, corrected, level, unit, tested.count)
        for arm, corrected in zip(tested.arms, tested.corrected, strict=True)
    ]
    rates = [rates_by_size(name, sizes, alone, level) for name in alone[-1].baselines]
    main = next((one for one in reversed(found) if one["runs"]), found[-1])
    ladder = {
        "sizes": [_size(size, one) for (size, _), one in zip(sizes, found, strict=True)],
        "arms": rows,
        "rates": rates,
        "tests": tested.count,
        "unit": unit,
    }
    drifts = warn_of_drift(rates, [arm.pair for arm in tested.arms], level)
    content = {
        **main,
        "recipe": recipe.model_dump(mode="json"),
        "ladder": json_values(ladder, infinities=False),
        "remarks": [*warn_of_length(sizes), *drifts, *_gather_remarks(sizes, found, main)],
    }
    return Comparison(content)


def _gather_remarks(
    sizes: Sizes, found: Sequence[Mapping[str, Any]], main: Mapping[str, Any]
) -> list[str]:
    """Return the remarks of all sizes, with those at which one holds where it does not at all.

    What is declared is so of the recipe, and names runs of the size that is shown.
    """
    places: dict[str, list[str]] = {}
    for (size, _), one in zip(sizes, found, strict=True):
        for remark in one["remarks"]:
            if one is main or not remark.startswith(DECLARED):
                places.setdefault(remark, []).append(amount(size.parameters))
    return [
        remark
        if len(where) == len(sizes) or remark.startswith(DECLARED)
        else f"at {join_words(where)} parameters: {remark}"
        for remark, where in places.items()
    ]


def _common(recipe: TrainingRecipe, pair: ComparedArms, alone: Sequence[RecipeEvidence]) -> Any:
    """Return what the variances of a pair have in common over sizes, where they may tell."""
    if recipe.compare is None or recipe.compare.variance == "own":
        return None
    return lend([one.stages[-1].difference(*pair) for one in alone])


def _over_sizes(
    pair: ComparedArms, recipe: TrainingRecipe, sizes: Sizes, alone: Sequence[RecipeEvidence]
) -> ArmOverSizes:
    stages = [one.stages[-1] for one in alone]
    lost = [
        size.parameters
        for (size, _), stage in zip(sizes, stages, strict=True)
        if any(stage.sides[name].diverged for name in pair)
    ]
    gains = []
    for stage in stages:
        arm, baseline = (stage.sides[name].values for name in pair)
        gains.append(
            {seed: baseline[seed] - arm[seed] for seed in sorted(arm.keys() & baseline.keys())}
        )
    kept: list[SizeGain] = sizes_of(
        [math.log2(size.parameters) for size, _ in sizes],
        [stage.difference(*pair) for stage in stages],
        gains,
        _common(recipe, pair, alone),
    )
    usable = len(kept) > 1 and not lost
    trend = SizeTrend(kept, stages[-1].level) if usable else None
    counts = [size.parameters for size, _ in sizes]
    given = recipe.ladder.beyond if recipe.ladder else ()
    return ArmOverSizes(
        pair=pair,
        trend=trend,
        lost=lost,
        targets=given or (counts[-1] * (counts[-1] / counts[-2]),),
    )


def _size(size: Rung, content: Mapping[str, Any]) -> Json:
    shape = size.recipe.model
    return {
        "wanted": size.wanted,
        "parameters": size.parameters,
        "tokens": size.tokens,
        "tokens_per_parameter": size.tokens / size.parameters,
        "width": shape.width,
        "layers": shape.layers,
        "runs": len(content["runs"]),
        "rows": [{name: row.get(name) for name in _ROW} for row in content["rows"]],
        "claims": [
            {name: claim.get(name) for name in ("source", "says", "verdict", "said")}
            for claim in content["claims"]
        ],
        "remarks": content["remarks"],
    }


def _row(
    arm: ArmOverSizes,
    sizes: Sizes,
    found: Sequence[Mapping[str, Any]],
    corrected: Sequence[float],
    level: Level,
    unit: str,
    count: int,
) -> Json:
    name, baseline = arm.pair
    at = [next(row for row in one["rows"] if row["arm"] == name) for one in found]
    missing = any(row["missing"] for row in at)
    gains = [
        {"parameters": size.parameters, **_turn(row), "verdict": row["verdict"]}
        for (size, _), row in zip(sizes, at, strict=True)
    ]
    trend = judge_trend(arm, gains, corrected[0], level)
    beyond = [
        judge_beyond(arm, target, p_value, at[-1]["verdict"], level)
        for target, p_value in zip(arm.targets, corrected[1:], strict=True)
    ]
    parts = [
        *describe_sizes(name, baseline, gains),
        describe_trend(trend, unit),
        *(describe_forecast(one, unit) for one in beyond),
        ladder_scale(sizes, at, count),
        "planned runs are missing, so this is not final" if missing else "",
    ]
    return {
        "arm": name,
        "against": baseline,
        "gains": gains,
        "trend": trend,
        "scatter": arm.trend.scatter if arm.trend else None,
        "left_out": [vars(one) for one in arm.trend.left_out] if arm.trend else [],
        "beyond": beyond,
        "band": _band(arm),
        "said": "; ".join(part for part in parts if part) + ".",
    }


def _turn(row: Mapping[str, Any]) -> Json:
    """Return the difference of a row as a gain: above 0 where the arm is better."""
    low, high, mean = row["low"], row["high"], row["difference"]
    return {
        "gain": None if mean is None else -mean,
        "low": None if high is None else -high,
        "high": None if low is None else -low,
    }


def judge_trend(arm: ArmOverSizes, gains: Sequence[Json], corrected: float, level: Level) -> Json:
    """Return the change of the gain per doubling with its word.

    Args:
        gains: by size.
        corrected: p of the change after the correction.
    """
    slope = arm.tests[0][0]
    if slope is None or arm.trend is None:
        none = dict.fromkeys(("slope", "low", "high", "p"))
        return {**none, "verdict": "no verdict", "lost": list(arm.lost)}
    word = "not distinguishable"
    if corrected < level.alpha and slope.mean:
        word = "grows" if slope.mean > 0 else "shrinks"
        if any((one["gain"] or 0.0) < 0 for one in gains):
            word = "rises" if slope.mean > 0 else "falls"
    first, *_, last = [round(2**one.doublings) for one in arm.trend.sizes]
    return {
        "from": first,
        "to": last,
        "slope": slope.mean,
        "low": slope.low,
        "high": slope.high,
        "p": slope.p,
        "holm": corrected,
        "verdict": word,
        "lost": list(arm.lost),
    }


def judge_beyond(
    arm: ArmOverSizes, target: float, corrected: float, largest: str, level: Level
) -> Json:
    """Judge a size beyond the ladder.

    A sign that the largest size does not show is never forecast: a line that falls may end.

    Args:
        corrected: p of the forecast after the correction.
        largest: the verdict at the largest size.
    """
    found: Json = {"parameters": target, "gain": None, "low": None, "high": None}
    trend = arm.trend
    if trend is None:
        return {**found, "verdict": "not decidable", "why": "missing"}
    if not trend.left_out:
        return {**found, "verdict": "not decidable", "why": "untested"}
    there = trend.beyond(math.log2(target))
    found |= {"gain": there.mean, "low": there.low, "high": there.high}
    found |= {"p": there.p, "holm": corrected}
    if not trend.within_reach(math.log2(target)):
        return {**found, "verdict": "not decidable", "why": "far", "reach": trend.reach}
    word = "better" if (there.mean or 0.0) > 0 else "worse"
    if corrected >= level.alpha:
        return {**found, "verdict": "not decidable", "why": "unsure"}
    if largest != word:
        return {**found, "verdict": "not decidable", "why": "unseen"}
    return {**found, "verdict": word}


def _band(arm: ArmOverSizes) -> Json | None:
    """Return the line of the gains with its band, inside the ladder and beyond."""
    trend = arm.trend
    if trend is None:
        return None
    first, last = trend.sizes[0].doublings, trend.sizes[-1].doublings
    end = last + trend.reach
    places = [first + (end - first) * step / (POINTS - 1) for step in range(POINTS)]
    lines = [trend.at(one) if one <= last else trend.beyond(one) for one in places]
    return {
        "parameters": [2**one for one in places],
        "gain": [one.mean for one in lines],
        "low": [one.low for one in lines],
        "high": [one.high for one in lines],
    }
