"""Curves of a comparison: each run's, and each arm's difference to the baseline as it goes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.training.record import Record
from layerlab.training.statistics import Level, against

# Points of a curve that are kept; a picture shows no more.
MOST = 400
AXES = ("update", "tokens", "flops", "seconds")
TRAINED = (*AXES, "loss")
EVALUATED = (*AXES, "nats", "bits_per_byte", "accuracy")
Points = Mapping[str, list[Any]]


def curves(record: Record, chosen: bool) -> dict[str, Any]:
    """The curves of a run, column by column.

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


def paired_curve(
    arm: Mapping[int, Record],
    baseline: Mapping[int, Record],
    by: str,
    metric: str,
    level: Level,
) -> list[dict[str, Any]]:
    """The difference to the baseline at each evaluation, with its interval.

    Args:
        arm: its runs by seed.
        baseline: the same.
        by: `tokens`, at which both were evaluated; or `rank`, the k-th evaluation of either.
    """
    ours, theirs = _by_point(arm, by, metric), _by_point(baseline, by, metric)
    points = []
    for place in sorted(ours.keys() & theirs.keys()):
        found = against(ours[place], theirs[place], level)
        if found.kind == "paired" and found.mean is not None:
            points.append(
                {
                    by: place,
                    "n": found.n,
                    "difference": found.mean,
                    "low": found.low,
                    "high": found.high,
                }
            )
    return points


def _by_point(
    runs: Mapping[int, Record], by: str, metric: str
) -> dict[int | float, dict[int, float]]:
    """Values by point, then by seed."""
    found: dict[int | float, dict[int, float]] = {}
    for seed, record in runs.items():
        events = [event for event in record.events if event.get("kind") == "evaluation"]
        for rank, event in enumerate(events):
            value = event.get(metric)
            place = rank if by == "rank" else event.get(by)
            if place is not None and isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(place, {})[seed] = float(value)
    return found


def _columns(record: Record, kind: str, names: Sequence[str]) -> Points:
    events = [event for event in record.events if event.get("kind") == kind]
    stride = max(1, math.ceil(len(events) / MOST))
    # Counted from the end, so that the last point stays.
    kept = events[::-1][::stride][::-1]
    return {name: [_plain(event.get(name)) for event in kept] for name in names}


def _plain(value: Any) -> Any:
    """JSON has no infinity and nothing that is not a number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
