"""Reads from a run's monitor whether gradients grow or shrink on their way back.

All blocks of a model have the same parts, so the norms of their gradients can be held against each
other. A gradient that explodes is larger in the first block than in the last, by a factor that
grows with depth; one that vanishes is smaller.
"""

import math
from collections.abc import Mapping
from typing import Any

from layerlab.experiments.analysis.arm_results import ArmResults
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.run import RunRecord

UNIT = "powers of ten"


def gradient_ratio(record: RunRecord) -> float | None:
    """Return log10 of the first block's gradient norm over the last's, averaged over readings.

    Unit: powers of ten; above 0 the gradient grows on its way back.

    Returns:
        None where nothing was read, or a norm is 0 or not finite.
    """
    ratios = [norms[0] - norms[-1] for norms in profiles(record).values()]
    return sum(ratios) / len(ratios) if ratios else None


def profiles(record: RunRecord) -> dict[int, list[float]]:
    """Return log10 of every block's gradient norm, from the first block on, by update.

    Unit: powers of ten. A reading that lacks a block, or has one of norm 0, is left out.
    """
    count = record.manifest["recipe"].get("model", {}).get("layers") or 0
    found = {}
    for event in record.events:
        if event.get("kind") != "monitor":
            continue
        norms = dict(_norms(event))
        # What stands before the blocks is the embedding, and behind them is one more.
        inside = [norms.get(layer) for layer in range(count)]
        kept = [math.log10(norm) for norm in inside if norm]
        if inside and len(kept) == len(inside):
            found[int(event["update"])] = kept
    return found


def gradients(section: CompareSection, sides: Mapping[str, ArmResults]) -> list[dict[str, Any]]:
    """Return the gradient profiles of the compared runs, if a claim is about gradients.

    `start` is the first reading, before any update, and `mean` that of all readings.
    """
    if not any(claim.measure == "gradient" for claim in section.claims):
        return []
    judged = [run for side in sides.values() for run in side.runs.values()]
    read = [(record, list(profiles(record).values())) for record in judged if record.finished]
    return [
        {
            "run": record.name,
            "arm": record.arm,
            "seed": record.seed,
            "start": each[0],
            "mean": [sum(of) / len(of) for of in zip(*each, strict=True)],
        }
        for record, each in read
        if each
    ]


def _norms(event: Mapping[str, Any]) -> list[tuple[int, float | None]]:
    return [
        (row["layer"], row["value"])
        for row in event["readings"]
        if row["measure"] == "gradient" and row["layer"] is not None
    ]
