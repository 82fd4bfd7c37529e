"""Reads lines of plain text, as nanoGPT-like scripts print them, by a regular expression."""

from pathlib import Path
from typing import TYPE_CHECKING

from layerlab.errors import UserError
from layerlab.logs.run_names import compile_groups
from layerlab.logs.tables import table_of
from layerlab.system.files import read_whole
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST = 2000  # characters of a line that is searched: an expression may take their square
# What nanoGPT and modded-nanogpt print at an evaluation.
STEP = r":?\s*(?P<step>\d{1,3}(?:,\d{3})+|\d+)(?:/[\d,]*\d)?\b"
USUAL = {
    "val_loss": rf"step{STEP}.*?\bval[ _]loss:?\s*(?P<loss>[-+.\deE]+|(?i:nan|inf))",
    "loss": rf"(?:iter|step){STEP}.*?\bloss:?\s*(?P<loss>[-+.\deE]+|(?i:nan|inf))",
}


def read_text(path: Path, line: str | None) -> "pa.Table":
    """Read the lines that a regular expression fits; others, and long ones, are left out.

    Args:
        line: with the groups step and loss; those of nanoGPT's lines where it is None.

    Raises:
        UserError: it fits no line, or a group is no number.
    """
    every = read_whole(path).decode("utf-8", "replace").splitlines()
    lines = [one for one in every if len(one) <= LONGEST]
    for name, given in (USUAL if line is None else {"loss": line}).items():
        pattern = compile_groups(given, ("step", "loss"), "--line")
        found = [one.groupdict() for one in map(pattern.search, lines) if one]
        if found:
            return table_of([_row(one, name, path) for one in found], path)
    what = "no line that nanoGPT would write" if line is None else "no line that --line fits"
    raise UserError(
        f"{path} has {what}; type --line 'step (?P<step>\\d+).*val loss (?P<loss>\\S+)', "
        "with the groups step and loss where they stand"
    )


def _row(groups: dict[str, str], loss: str, path: Path) -> dict[str, object]:
    row: dict[str, object] = {one: told for one, told in groups.items() if one != "loss"}
    for name, own in (("step", "step"), ("loss", loss)):
        try:
            row[own] = float(groups[name].replace(",", "") if name == "step" else groups[name])
        except (AttributeError, TypeError, ValueError):
            raise UserError(
                f"the group {name} is {short_repr(groups[name])} in a line of {path}; "
                "expected a number"
            ) from None
    return row
