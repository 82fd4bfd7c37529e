"""Drops speeds of runs that shared their device, which say nothing about their own speed."""

from collections.abc import Sequence
from dataclasses import replace

from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.run import RunRecord

SPEEDS = ("seconds", "tokens_per_second")


def without_untimed(
    section: CompareSection, records: Sequence[RunRecord]
) -> tuple[list[RunRecord], list[str]]:
    """Drop the speeds of runs that were not timed alone, with a remark on it.

    Example:
        >>> without_untimed(CompareSection(arms=("llama",)), [])
        ([], [])
    """
    named = set(section.timed)
    if not named:
        return list(records), []
    told = ", ".join(section.timed)
    return [one if f"{one.arm}-s{one.seed}" in named else _untimed(one) for one in records], [
        f"of speeds only those of {told} count: the other runs shared their device, and their "
        "seconds and tokens per second are left out"
    ]


def _untimed(record: RunRecord) -> RunRecord:
    result = record.result and {
        name: value for name, value in record.result.items() if name not in SPEEDS
    }
    events = tuple({**event, "seconds": None} for event in record.events)
    return replace(record, result=result, events=events)
