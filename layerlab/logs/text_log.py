"""Reads lines of plain text, as nanoGPT-like scripts print them, by a regular expression."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError
from layerlab.logs.run_names import compile_groups
from layerlab.logs.tables import table_of
from layerlab.logs.training_log import TEXTS
from layerlab.system.files import read_whole
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST = 2000  # characters of a line that is searched: an expression may take their square
# What nanoGPT and modded-nanogpt print: a step, and behind it losses of several kinds.
STEP = re.compile(r"(?:iter|step):?\s*(\d{1,3}(?:,\d{3})+|\d+)(?:/[\d,]*\d)?\b")
LOSS = re.compile(
    r"(?<![^\W_])loss:?\s*(?P<loss>[-+]?(?:(?i:nan|inf)\b|\d+,\d[\d.,]*|\.?\d[-+.\deE]*))"
)
# Words before a loss, as in "best val loss"; of so many characters.
KIND = re.compile(r"(?<![^\W_])(?:[^\W\d_][^\W_]*[ _/-])*$")
WIDEST = 60
WORD = re.compile(r"[^\W_]+")


def read_text(path: Path, line: str | None) -> "pa.Table":
    """Read the lines that a regular expression fits; others, and long ones, are left out.

    Args:
        line: with the groups step and loss; lines like nanoGPT's where it is None, of which each
            kind of loss is a column.

    Raises:
        UserError: it fits no line, a group is no number, or a line has two losses of one name.
    """
    every = read_whole(path).decode("utf-8", "replace").splitlines()
    lines = [one for one in every if len(one) <= LONGEST]
    rows: list[dict[str, Any]]
    if line is None:
        rows = [row for one in lines if len(row := dict(_find_losses(one, path))) > 1]
    else:
        pattern = compile_groups(line, ("step", "loss"), "--line")
        fitting = [one for one in map(pattern.search, lines) if one]
        rows = [
            one.groupdict() | {name: _number(name, one[name], path) for name in ("step", "loss")}
            for one in fitting
        ]
    if rows:
        return table_of(rows, path)
    what = "no line that nanoGPT would write" if line is None else "no line that --line fits"
    raise UserError(
        f"{path} has {what}; type --line 'step (?P<step>\\d+).*val loss (?P<loss>\\S+)', "
        "with the groups step and loss where they stand"
    )


def _find_losses(line: str, path: Path) -> Iterator[tuple[str, float]]:
    """Yield the step of a line and its losses, each by the words that it is called by.

    Raises:
        UserError: two are called the same and differ, or one is no number.
    """
    step = STEP.search(line)
    if step is None:
        return
    yield "step", _number("step", step[1], path)
    # What is called a loss and no more may be said to be of a text before the step.
    texts = {one for one in WORD.findall(line[: step.start()].lower()) if one in TEXTS}
    seen: dict[str, float] = {}
    for found in LOSS.finditer(line, step.end()):
        before = line[max(step.end(), found.start() - WIDEST) : found.start()]
        kind = KIND.search(before)
        words = WORD.findall(kind[0].lower() if kind else "") or (texts if len(texts) == 1 else ())
        name = "_".join([*words, "loss"])
        value = _number("loss", found["loss"], path)
        if seen.setdefault(name, value) != value and not math.isnan(value):
            raise UserError(
                f"{path} has a line with two losses of one name, {name}, {seen[name]:g} and "
                f"{value:g}: {short_repr(line)}; type --line 'step (?P<step>\\d+).*loss "
                "(?P<loss>\\S+)' with what stands around the one that is meant"
            )
        yield name, value


def _number(name: str, text: str | None, path: Path) -> float:
    try:
        return float((text or "").replace(",", "") if name == "step" else text or "")
    except ValueError:
        raise UserError(
            f"the group {name} is {short_repr(text)} in a line of {path}; expected a number, "
            "as 3.21"
        ) from None
