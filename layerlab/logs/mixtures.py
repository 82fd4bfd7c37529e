"""Readings that are of several texts or runs, of which one alone can be judged."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from layerlab.errors import UserError
from layerlab.logs.training_log import PARTS, TEXTS
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 12  # columns that an error names
FLAGS = {"0", "1", "false", "true"}
TRIED = 1000  # pairs of rows that a column is looked at in


def refuse_parts(
    table: "pa.Table",
    used: Sequence[str | None],
    path: Path,
    steps: np.ndarray | None = None,
) -> None:
    """Refuse a table whose rows are of several texts, of which one alone can be judged.

    Args:
        steps: of the rows of one run, of which any that stands with several values is of several
            texts, whatever they are called; what is called a text is one without them.

    Raises:
        UserError: they are.
    """
    for name in table.column_names:
        flag = name.lower().removeprefix("is_") in TEXTS  # is_eval, or training
        if (name.lower() not in PARTS and not flag) or name in used:
            continue
        each = [None if one is None else str(one) for one in table[name].to_pylist()]
        values = sorted({one for one in each if one is not None})
        if flag:
            several = {one.lower().removesuffix(".0") for one in values} <= FLAGS
        elif steps is None:
            several = any(one.strip().lower() in TEXTS for one in values)
        else:
            several = len(set(zip(steps.tolist(), each, strict=True))) > len(np.unique(steps))
        if len(values) > 1 and several:
            raise UserError(
                f"the column {name!r} of {path} holds {list_columns(values)}, whose losses are not "
                "comparable; keep the rows of one"
            )


def refuse_text_arms(table: "pa.Table", arm: str, path: Path) -> None:
    """Refuse a column of arms that nobody named and that names texts alone.

    Raises:
        UserError: it does.
    """
    values = sorted({str(one) for one in table[arm].unique().to_pylist() if one is not None})
    if values and {one.strip().lower() for one in values} <= TEXTS.keys():
        raise UserError(
            f"the column {arm!r} of {path} holds {list_columns(values)}, which name texts and no "
            "arms; keep the rows of one, and name the column of the arms with --arm COLUMN"
        )


def refuse_kinds(
    table: "pa.Table", steps: np.ndarray, losses: np.ndarray, run: str, path: Path
) -> None:
    """Refuse readings of which two stand at one step after the other, as of two texts.

    A resumed run goes back, so that readings of other steps stand between them; it may begin with
    the step at which it was interrupted.

    Raises:
        UserError: they do, at half of the steps that have several, and at two of them or more; or
            at the last, where a column of words tells them apart, as that of a final evaluation.
    """
    alike = (losses[1:] == losses[:-1]) | (np.isnan(losses[1:]) & np.isnan(losses[:-1]))
    beside = np.flatnonzero((np.diff(steps) == 0) & ~alike)
    if not len(beside):
        return
    several = np.count_nonzero(np.unique(steps, return_counts=True)[1] > 1)
    found = np.unique(steps[beside])
    apart = _find_apart(table, beside[:TRIED].tolist())
    worded = apart is not None and str(table.schema.field(apart).type) == "string"
    ended = beside[-1] == len(steps) - 2 and steps[-1] == steps.max() and worded
    if not ended and (len(found) < 2 or 2 * len(found) < several):
        return
    at = beside[-1] if ended else beside[0]
    more = f", and so at {len(found)} steps" if len(found) > 1 else ""
    hint = "" if apart is None else f", as the column {apart!r} may tell them apart"
    raise UserError(
        f"{path} has two readings of {run} at one step, {losses[at]:g} and {losses[at + 1]:g} at "
        f"step {steps[at]:g}{more}: they are of two kinds{hint}; keep those of one, or name those "
        "that are meant with --line"
    )


def _find_apart(table: "pa.Table", rows: Sequence[int]) -> str | None:
    """Return a column that differs between each of these rows and the next, if there is one."""
    return next(
        (
            name
            for name in table.column_names
            if len(table[name].unique()) <= MOST
            and all(table[name][at].as_py() != table[name][at + 1].as_py() for at in rows)
        ),
        None,
    )


def find_words(table: "pa.Table", used: Sequence[str | None]) -> list[str]:
    """Return columns of several words, few enough to be those of texts and not of times."""
    named = [one.name for one in table.schema if str(one.type) == "string" and one.name not in used]
    return [one for one in named if 1 < len(table[one].unique()) <= MOST]


def begins_twice(steps: np.ndarray, losses: np.ndarray) -> bool:
    """Return whether rows are of several runs, each of which begins at the first step.

    One that failed behind its first reading and was started anew has that one twice, and one
    reading may be written twice.
    """
    first = steps == steps.min()
    count = int(np.count_nonzero(first))
    rest = steps[count:]
    again = first[:count].all() and (np.diff(rest) != 0).all()
    same = np.array_equal(losses[:count], np.full(count, losses[0]), equal_nan=True)
    return count > 1 and not (again and (len(rest) > 0 or same))


def list_columns(names: Sequence[str]) -> str:
    """Return names of columns, as an error tells them."""
    return ", ".join(map(short_repr, names[:MOST])) + (", ..." if len(names) > MOST else "")
