"""Measures of a comparison beside the loss: `steps:2.5`, `peak:score`, `suite:piqa`, ..."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, cast

from layerlab.records.file_digests import hash_if_there
from layerlab.validation import expand_home

MeasureKind = Literal["steps", "peak", "spikes", "gradient", "suite", "command"]

# Readings of a monitor of which the largest says something of a run.
PEAKS = ("score", "attention_norm", "stream_norm", "growth", "gradient")
STEP_UNIT = "updates"  # are what the steps of a run are, where a log does not count others
FORMS = ("steps:LOSS", "peak:READING", "spikes", "gradient", "suite:NAME", "command:NAME")
TASK_FILES = (".yaml", ".yml")
_BARE = ("spikes", "gradient")
# What is read of a finished model, and not of what its run left.
SUITE, COMMAND = _SCORED = ("suite", "command")
_EXAMPLES = {
    "steps": "steps:2.5",
    "peak": "peak:score",
    "spikes": "spikes",
    "gradient": "gradient",
    "suite": "suite:piqa",
    "command": "command:NAME",
}


@dataclass(frozen=True)
class ComparedMeasure:
    """A measure by which runs are compared.

    Attributes:
        kind: `steps` until the held-out loss is reached; the `peak` of a monitor's reading; the
            `spikes` of the loss that a monitor heard; by how much the `gradient` is larger in the
            first block than in the last; the score of the finished model in a `suite`, or by a
            `command` of the user's.
        loss: that is to be reached.
        reading: of the monitor.
        name: of the suite or the command.
    """

    kind: MeasureKind
    loss: float = 0.0
    reading: str = ""
    name: str = ""

    @property
    def scored(self) -> bool:
        """Return whether it is a score of the finished model."""
        return self.kind in _SCORED

    @property
    def key(self) -> str:
        """Return the key of a score: a task's file by its name, wherever it lies."""
        if self.kind != SUITE:
            return f"{self.kind}:{self.name}"
        return f"{SUITE}:{','.join(Path(one).name if '/' in one else one for one in self._words)}"

    def hash_files(self) -> dict[str, str | None]:
        """Return the SHA-256 of each file of tasks by its name; None where it is not there."""
        files = [expand_home(one) for one in self._words if Path(one).suffix in TASK_FILES]
        return {file.name: hash_if_there(file) for file in files}

    @property
    def _words(self) -> list[str]:
        """Names of suites and tasks, and files, between commas."""
        return [word.strip() for word in self.name.split(",")] if self.kind == SUITE else []


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
    if kind in _SCORED and rest.strip() and rest.isprintable():
        return ComparedMeasure(cast(MeasureKind, kind), name=rest.strip())
    if name in _BARE:
        return ComparedMeasure(cast(MeasureKind, name))
    names = ", ".join(FORMS)
    raise ValueError(
        f"{name!r} is no measure of a comparison; expected {names}: {_remedy(kind, rest)}"
    )


def is_watched(name: str) -> bool:
    """Return whether a measure is read off a monitor."""
    found = parse_measure(name)
    return found.kind != "steps" and not found.scored


def is_scored(name: str) -> bool:
    """Return whether a measure is a score of the finished model; the loss is none."""
    return name.partition(":")[0] in _SCORED


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
    if kind in _SCORED:
        return f'write its name, as "{_EXAMPLES[kind]}"'
    if kind == "peak":
        near = get_close_matches(rest, PEAKS, 1)
        return f'write "peak:{near[0]}"' if near else f"the readings are {', '.join(PEAKS)}"
    near = get_close_matches(kind, _EXAMPLES, 1)
    return f'write "{_EXAMPLES[near[0] if near else "steps"]}"'
