"""What runs may be compared in beside the loss: `steps:2.5`, `peak:score`, `spikes`, `gradient`."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, cast

MeasureKind = Literal["steps", "peak", "spikes", "gradient"]

# Readings of a monitor of which the largest says something of a run.
PEAKS = ("score", "attention_norm", "stream_norm", "growth", "gradient")
FORMS = ("steps:LOSS", "peak:READING", "spikes", "gradient")
_BARE = ("spikes", "gradient")
_EXAMPLES = {
    "steps": "steps:2.5",
    "peak": "peak:score",
    "spikes": "spikes",
    "gradient": "gradient",
}


@dataclass(frozen=True)
class ComparedMeasure:
    """What is read of a run.

    Attributes:
        kind: `steps` until the held-out loss is reached; the `peak` of a monitor's reading; the
            `spikes` of the loss that a monitor heard; by how much the `gradient` is larger in the
            first block than in the last.
        loss: that is to be reached.
        reading: of the monitor.
    """

    kind: MeasureKind
    loss: float = 0.0
    reading: str = ""


def parse_measure(name: str) -> ComparedMeasure:
    """Read a measure's name.

    Raises:
        ValueError: there is no such measure.

    Example:
        >>> parse_measure("steps:2.5").loss
        2.5
    """
    kind, _, rest = name.partition(":")
    if kind == "steps" and _positive(rest):
        return ComparedMeasure("steps", loss=float(rest))
    if kind == "peak" and rest in PEAKS:
        return ComparedMeasure("peak", reading=rest)
    if name in _BARE:
        return ComparedMeasure(cast(MeasureKind, name))
    known = ", ".join(FORMS)
    raise ValueError(
        f"{name!r} is no measure of a comparison; expected {known}: {_remedy(kind, rest)}"
    )


def is_watched(name: str) -> bool:
    """Tell whether a measure is read off a monitor."""
    return parse_measure(name).kind != "steps"


def check_measure(name: str) -> str:
    """Return a measure's name as it is, if there is such a measure.

    Raises:
        ValueError: there is none.
    """
    parse_measure(name)
    return name


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _remedy(kind: str, rest: str) -> str:
    if kind == "steps":
        return 'write the loss to reach, as "steps:2.5"'
    if kind == "peak":
        near = get_close_matches(rest, PEAKS, 1)
        return f'write "peak:{near[0]}"' if near else f"the readings are {', '.join(PEAKS)}"
    near = get_close_matches(kind, _EXAMPLES, 1)
    return f'write "{_EXAMPLES[near[0] if near else "steps"]}"'
