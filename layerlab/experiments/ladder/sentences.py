"""Sentences on a ladder, each with the sizes that it holds for."""

from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.console.units import amount
from layerlab.experiments.analysis.verdict import number
from layerlab.experiments.plan.ladder import Rung
from layerlab.records.json_values import Json
from layerlab.records.run import RunRecord

Sizes = Sequence[tuple[Rung, Sequence[RunRecord]]]


def describe_sizes(name: str, baseline: str, gains: Sequence[Json]) -> list[str]:
    """Say at which sizes an arm is better, worse or neither."""
    sizes: dict[str, list[str]] = {}
    for one in gains:
        sizes.setdefault(one["verdict"], []).append(amount(one["parameters"]))
    (first, several), *others = ((word, join_words(several)) for word, several in sizes.items())
    return [
        f"{name} against {baseline}: {first} at {several} parameters",
        *(f"but {word} at {several} parameters" for word, several in others),
    ]


def join_words(several: Sequence[str]) -> str:
    """Join several with commas and an "and"."""
    *before, last = several
    return " and ".join(part for part in (", ".join(before), last) if part)


def describe_trend(trend: Json, unit: str) -> str:
    """Say how the gain changes per doubling."""
    if trend["slope"] is None:
        if trend.get("lost"):
            sizes = join_words([amount(one) for one in trend["lost"]])
            return f"no trend: runs diverged at {sizes} parameters"
        return "no trend: fewer than two sizes have an interval"
    ends = f"from {amount(trend['from'])} to {amount(trend['to'])}"
    slope, low, high = trend["slope"], trend["low"], trend["high"]
    if trend["verdict"] == "not distinguishable":
        between = _between(low, high)
        found = (
            f"{ends} its gain does not change distinguishably: {number(slope, sign=True)} "
            f"({between}) {unit} per doubling"
        )
        # An interval of this one test alone leaves zero out.
        corrected = f", p = {trend['holm']:.2g} after Holm's correction"
        return found + corrected if low * high > 0 else found
    if slope < 0:
        slope, low, high = -slope, -high, -low
    return (
        f"{ends} its gain {trend['verdict']} by {number(slope)} ({number(low)} to {number(high)}) "
        f"{unit} per doubling"
    )


def describe_forecast(one: Json, unit: str) -> str:
    """Say what the line forecasts for a larger size, and whether that decides."""
    place = amount(one["parameters"])
    if one["gain"] is None:
        if one["why"] == "untested":
            return f"at {place} not decidable from here, as a line takes three sizes to be tested"
        return f"at {place} not decidable from here, as there is no trend"
    trend = (
        f"at {place} a gain of {number(one['gain'], sign=True)} "
        f"({_between(one['low'], one['high'])}) {unit}"
    )
    if one["verdict"] != "not decidable":
        return f"{trend}, {one['verdict']} if the line goes on"
    if one["why"] == "far":
        return (
            f"{trend}, not decidable from here, as leaving out a size tests no more than "
            f"{one['reach']:.1f} doublings"
        )
    if one["why"] == "unseen":
        return f"{trend}, not decidable from here, as the largest size does not show it"
    return f"{trend}, not decidable from here"


def _between(low: float, high: float) -> str:
    return f"{number(low, sign=True)} to {number(high, sign=True)}"


def ladder_scale(sizes: Sizes, at: Sequence[Mapping[str, Any]], count: int) -> str:
    """Say the scale that this holds for."""
    tokens = [size.tokens for size, _ in sizes]
    each = [size.tokens / size.parameters for size, _ in sizes]
    seeds = sorted({row["n"] for row in at})
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    per = f"{each[0]:.3g}" if max(each) < 1.02 * min(each) else f"{each[0]:.3g} to {each[-1]:.3g}"
    return (
        f"{amount(tokens[0])} to {amount(tokens[-1])} tokens a run, {per} a parameter; "
        f"{counts} seeds a size; p is corrected for {count} tests"
    )


def warn_of_length(sizes: Sizes) -> list[str]:
    """Return remarks on what changes with size beside it."""
    found = []
    each = [size.tokens / size.parameters for size, _ in sizes]
    if max(each) > 1.21 * min(each):
        found.append(
            "declared to differ: tokens per parameter, "
            f"{', '.join(f'{one:.3g}' for one in each)}; a trend over sizes is one over them too"
        )
    again = []
    for size, records in sizes:
        text = next((one.manifest["data"]["train_tokens"] for one in records), None)
        if text and size.tokens > text:
            again.append(f"{size.tokens / text:.1f} times at {amount(size.parameters)}")
    if again:
        found.append(
            f"the text is read {join_words(again)} parameters: a trend over sizes is one over "
            "repetition too"
        )
    return found
