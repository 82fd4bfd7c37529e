"""Curves of a comparison: each run's, and each arm's difference to the baseline as it goes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.experiments.analysis.interim import Judging, Look
from layerlab.experiments.statistics.additive_model import Additive
from layerlab.records.run import RunRecord

# Points of a curve that are kept; a picture shows no more.
MOST = 400
AXES = ("update", "tokens", "flops", "seconds")
TRAINED = (*AXES, "loss")
EVALUATED = (*AXES, "nats", "bits_per_byte", "accuracy")
CurvePoints = Mapping[str, list[Any]]


def curves(record: RunRecord, chosen: bool) -> dict[str, Any]:
    """Return the curves of a run, column by column.

    Args:
        chosen: whether it ran at the rate that its arm is judged at.
    """
    return {
        "run": record.name,
        "arm": record.arm,
        "seed": record.seed,
        "rate": record.rate,
        "chosen": chosen,
        "train": _columns(record, "train", TRAINED),
        "evaluation": _columns(record, "evaluation", EVALUATED),
    }


def paired_curves(stage: Look, baselines: Mapping[str, str], by: str) -> list[dict[str, Any]]:
    """Return each arm's difference to its baseline at each evaluation, with its interval.

    Each is that of the table, with the losses of its moment.

    Args:
        baselines: the baseline of each arm.
        by: `tokens`, at which both were evaluated; or `rank`, the k-th evaluation of either.
    """
    found = {name: _by_point(side.runs, by, stage.metric) for name, side in stage.sides.items()}
    tables: dict[int | float, dict[str, Mapping[int, float]]] = {}
    for name, points in found.items():
        for point, values in points.items():
            tables.setdefault(point, {})[name] = values
    judged = {
        point: stage.judging(Additive(tables[point], stage.shared)) for point in sorted(tables)
    }
    return [
        {"arm": name, "against": baseline, "by": by, "points": _points(judged, name, baseline, by)}
        for name, baseline in baselines.items()
        if name != baseline
    ]


def _points(
    judged: Mapping[int | float, Judging], arm: str, baseline: str, by: str
) -> list[dict[str, Any]]:
    points = []
    for point, difference in judged.items():
        found = difference(arm, baseline)
        if found.kind != "welch" and found.mean is not None:
            ends = {"low": found.low, "high": found.high}
            points.append({by: point, "n": found.n, "difference": found.mean, **ends})
    return points


def _by_point(
    runs: Mapping[int, RunRecord], by: str, metric: str
) -> dict[int | float, dict[int, float]]:
    """Return values by point, then by seed."""
    found: dict[int | float, dict[int, float]] = {}
    for seed, record in runs.items():
        events = [event for event in record.events if event.get("kind") == "evaluation"]
        for rank, event in enumerate(events):
            value = event.get(metric)
            point = rank if by == "rank" else event.get(by)
            if point is not None and isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(point, {})[seed] = float(value)
    return found


def _columns(record: RunRecord, kind: str, names: Sequence[str]) -> CurvePoints:
    events = [event for event in record.events if event.get("kind") == kind]
    stride = max(1, math.ceil(len(events) / MOST))
    # Counted from the end, so that the last point stays.
    kept = events[::-1][::stride][::-1]
    return {name: [event.get(name) for event in kept] for name in names}
