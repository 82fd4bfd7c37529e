"""From a table of readings to runs: which column is which, and where one run ends."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerlab.errors import UserError
from layerlab.logs.cells import list_numeric, read_numbers, read_words
from layerlab.logs.column_settings import read_settings
from layerlab.logs.directions import is_higher_better
from layerlab.logs.filtered_losses import find_filtered
from layerlab.logs.formats.exports import LEFT_OUT
from layerlab.logs.loss_names import LOSSES, find_beside, find_loss, may_be_held_out
from layerlab.logs.mixtures import (
    begins_twice,
    find_words,
    list_columns,
    refuse_kinds,
    refuse_parts,
    refuse_text_arms,
)
from layerlab.logs.run_names import read_name
from layerlab.logs.run_states import is_finished
from layerlab.logs.training_log import (
    ARMS,
    ROWS,
    RUNS,
    SEEDS,
    STEPS,
    TOKENS,
    UPDATES,
    LogColumns,
    TrainingLog,
)
from layerlab.validation import short_repr, suggest

if TYPE_CHECKING:
    import pyarrow as pa

# Losses that Trainer of Hugging Face logs once, as means over the run, with what stands beside.
MEANS = {"train_loss": "train_runtime", "train/train_loss": "train/train_runtime"}
GAP = re.compile(r"(?<=\d)\.0$")


@dataclass(frozen=True)
class _Readings:
    """A table of which the columns are known."""

    table: "pa.Table"
    path: Path
    loss: str
    step: str | None
    runs: tuple[str | None, str | None]  # the columns of arm and seed
    losses: np.ndarray
    steps: np.ndarray | None
    read: np.ndarray  # whether a row has a loss
    timed: np.ndarray  # whether it has a step


def split_runs(table: "pa.Table", path: Path, columns: LogColumns) -> Iterator[TrainingLog]:
    """Yield the runs of a table, each row of which is a reading.

    Rows without a loss are of something else, and left out; a run that has no others ends in NaN.

    Raises:
        UserError: a column is missing or holds no numbers, or readings of several runs cannot be
            told apart.
    """
    readings = _choose_columns(table, path, columns)
    left = (table.schema.metadata or {}).get(LEFT_OUT.encode(), b"").decode().splitlines()
    names = [*table.column_names, *left]
    beside = () if columns.loss is not None else find_beside(readings.loss, names)
    for run, rows in _place_runs(readings, columns).items():
        yield _read_run(readings, run, rows, beside)


def _choose_columns(table: "pa.Table", path: Path, columns: LogColumns) -> _Readings:
    """Find the columns of a table, and read losses and steps.

    Raises:
        UserError: one is missing or holds no numbers, or it tells parts of a run apart.
    """
    names = table.column_names
    loss = (
        find_loss(names, path) or _find_alone(table, columns)
        if columns.loss is None
        else _find(names, columns.loss, (), "--loss", path)
    )
    if loss is None:
        raise UserError(
            f"{path} has no column with a usual name for a loss; type --loss COLUMN, one of "
            f"{list_columns(names)}"
        )
    step = _find(names, columns.step, STEPS, "--step", path)
    arm = _find(names, columns.arm, ARMS, "--arm", path)
    seed = _find(names, columns.seed, SEEDS, "--seed", path)
    read = table[loss].is_valid().to_numpy()
    if not read.any():
        raise UserError(
            f"{path} has no reading of {loss!r}: the column is empty; write nan where a run "
            "diverged, name another with --loss COLUMN, or leave it out"
        )
    arm, seed = (
        name if given is not None else _find_used(table, name, read)
        for name, given in ((arm, columns.arm), (seed, columns.seed))
    )
    if arm is not None and columns.arm is None:
        refuse_text_arms(table.filter(read), arm, path)
    refuse_parts(table.filter(read), (arm, seed), path)
    losses = read_numbers(table[loss], loss, "--loss", path)
    steps = None if step is None else read_numbers(table[step], step, "--step", path)
    timed = np.ones_like(read) if step is None else table[step].is_valid().to_numpy()
    if steps is not None and not np.isfinite(steps[read & timed]).all():
        raise UserError(f"the column {step!r} of {path} holds a step that is not finite")
    return _Readings(table, path, loss, step, (arm, seed), losses, steps, read, timed)


def _read_run(
    readings: _Readings, run: tuple[str, str | None], every: np.ndarray, beside: tuple[str, ...]
) -> TrainingLog:
    """Return a run of a table by its rows.

    Args:
        run: its arm and its seed.
        every: its rows, also those without a loss or a step.
        beside: other names of the table that may be of a loss.

    Raises:
        UserError: no row has a step, or the rows are of several runs.
    """
    arm, seed = run
    read, timed, steps = readings.read, readings.timed, readings.steps
    used = [*readings.runs, readings.loss, readings.step]
    rows = _take_rows(readings, run, every)
    own = np.arange(1.0, len(rows) + 1) if steps is None else steps[rows]
    order, again = _order(own)
    again = again if read[rows[0]] else 0
    _refuse_several(readings, run, rows, again)
    table, losses = readings.table.take(rows), readings.losses[rows]
    refuse_kinds(table.drop_columns(readings.loss), own, losses, _call(*run), readings.path)
    if not read[rows[0]]:
        _refuse_elsewhere(table, readings.loss, _call(*run), readings.path)
    resumed = float(own[-1]) if own[-1] < own.max() else None
    filtered = _find_filtered(readings, rows if steps is None else every[timed[every]])
    own, losses = own[order], losses[order]
    if filtered is not None:
        losses[own >= filtered] = math.nan
    bare, whole = every[timed[every] & ~read[every]], readings.table.take(every)
    later = -math.inf if steps is None else float(steps[bare].max(initial=-math.inf))
    return TrainingLog(
        place=str(readings.path),
        arm=arm,
        seed=seed,
        steps=own,
        losses=losses,
        loss_name=readings.loss,
        step_name=readings.step or ROWS,
        mean=MEANS.get(readings.loss) in readings.table.column_names,
        again=again,
        blank=later if later > own.max() else None,
        beside=beside,
        resumed=resumed,
        words=tuple(find_words(table, used)),
        empty=not read[rows[0]],
        tokens=_count_tokens(readings, every),
        filtered=filtered,
        updates=_count_updates(readings, rows),
        finished=is_finished(whole),
        settings=read_settings(whole, used) | read_settings(table, used),
    )


def _take_rows(readings: _Readings, run: tuple[str, str | None], every: np.ndarray) -> np.ndarray:
    """Return the rows of a run that have a loss, or all where none has.

    Raises:
        UserError: one of them has no step.
    """
    read, timed = readings.read[every], readings.timed[every]
    lost = int(np.count_nonzero(read & ~timed))
    if lost:
        raise UserError(
            f"{readings.path} has no step in {readings.step!r} for {lost:,} of "
            f"{np.count_nonzero(read):,} readings of {_call(*run)}; write them, name a column that "
            "all have with --step COLUMN, or leave those rows out"
        )
    # A run that has no loss at all is a run: pandas, for one, leaves NaN empty.
    rows = every[read] if read.any() else every[timed]
    if not len(rows):
        raise UserError(
            f"no row of {_call(*run)} in {readings.path} has a step: the column {readings.step!r} "
            "is empty there; write its steps, name another with --step COLUMN, or leave it out"
        )
    return rows


def _count_updates(readings: _Readings, rows: np.ndarray) -> float | None:
    """Return the updates up to the last of some rows, where something else orders them."""
    named = [one for one in list_numeric(readings.table) if one.lower() in UPDATES]
    if not named or readings.step is None or readings.step.lower() in UPDATES:
        return None
    made = read_numbers(readings.table[named[0]].take(rows), named[0], "--step", readings.path)
    return float(np.nanmax(made)) if np.isfinite(made).any() else None


def _find_filtered(readings: _Readings, rows: np.ndarray) -> float | None:
    """Return the step from which the gradients of a run are no number; None where they are."""
    at = np.arange(1.0, len(rows) + 1) if readings.steps is None else readings.steps[rows]
    order = np.argsort(at, kind="stable")
    kept = rows[order]
    first = find_filtered(readings.table.take(kept), readings.loss, readings.losses[kept])
    return None if first is None else float(at[order][first])


def _count_tokens(readings: _Readings, rows: np.ndarray) -> float | None:
    """Return the tokens of an update, in the mean over a run, where its table counts both."""
    named = [one for one in list_numeric(readings.table) if one.lower().split("/")[-1] in TOKENS]
    if not named or readings.steps is None or (readings.step or "").lower() not in UPDATES:
        return None
    seen = read_numbers(readings.table[named[0]].take(rows), named[0], "--step", readings.path)
    mask = np.isfinite(seen) & readings.timed[rows]
    steps, seen = readings.steps[rows][mask], seen[mask]
    rising = len(seen) > 1 and bool((np.diff(seen)[np.diff(steps) > 0] > 0).all())
    return float(seen[-1] / steps[-1]) if rising and steps[-1] > 0 else None


def _refuse_several(
    readings: _Readings, run: tuple[str, str | None], rows: np.ndarray, again: int
) -> None:
    """Refuse rows of several runs.

    Args:
        again: how many of them are at the step of another.

    Raises:
        UserError: they are.
    """
    path, steps = readings.path, readings.steps
    if steps is None:
        if len(rows) > 1 and readings.runs != (None, None):
            raise UserError(
                f"{path} has {len(rows)} rows of {_call(*run)} and no column with a usual name for "
                "a step; name the one that orders them, --step COLUMN, or those that tell runs "
                "apart: --arm COLUMN --seed COLUMN"
            )
        return
    if not again:
        return
    arm, seed = run
    if readings.runs[0] is not None and seed is None:
        raise UserError(
            f"{path} has several readings of {arm!r} at one step; name the column that tells its "
            "runs apart: --seed COLUMN"
        )
    table, own = readings.table.take(rows), steps[rows]
    refuse_parts(table, readings.runs, path, own)
    # A resumed run goes back to a step, and another begins where the first one did.
    if begins_twice(own, readings.losses[rows]):
        column = _find_several(table, readings.runs)
        apart = "the column" if column is None else f"a column, as {column!r} may be,"
        raise UserError(
            f"{path} has several readings of {_call(*run)} at its first step, {own.min():g}: they "
            f"are of several runs; name {apart} that tells them apart, --arm COLUMN or --seed "
            "COLUMN (of a text, those that are meant with --line), or leave the rows of one out"
        )


def _place_runs(readings: _Readings, columns: LogColumns) -> dict[tuple[Any, Any], np.ndarray]:
    """Return the rows of each run by its arm and seed; the path tells them where no column does.

    Raises:
        UserError: a reading has no arm.
    """
    table, path, (arm, seed) = readings.table, readings.path, readings.runs
    named, seeded = read_name(path, columns.name) if None in readings.runs else ("", None)
    if arm is None and not named:
        raise UserError(
            f"the path {short_repr(str(path))} names no arm; type --arm COLUMN, or --name REGEX "
            "whose group arm is not empty there"
        )
    if arm is None and seed is None:
        return {(named, seeded and GAP.sub("", seeded)): np.arange(table.num_rows)}
    arms = read_words(table, arm, named)
    # A table with gaps writes the seed 3 as 3.0; an arm is what it is written as.
    seeds = [one and GAP.sub("", one) for one in read_words(table, seed, seeded)]
    places: dict[tuple[Any, Any], list[int]] = {}
    for row, (one, number) in enumerate(zip(arms, seeds, strict=True)):
        if one:
            places.setdefault((one, number), []).append(row)
        elif readings.read[row]:
            raise UserError(f"a reading in {path} has no arm: the column {arm!r} is empty there")
    return {run: np.array(rows) for run, rows in places.items()}


def _call(arm: str, seed: str | None) -> str:
    return repr(arm) if seed is None else f"{arm!r} with seed {seed}"


def _find_several(table: "pa.Table", used: Sequence[str | None]) -> str | None:
    """Return a column that names runs and has several in these rows, beside those in use."""
    named = [one for one in table.column_names if one.lower() in RUNS and one not in used]
    return next((one for one in named if len(table[one].unique()) > 1), None)


def _refuse_elsewhere(table: "pa.Table", loss: str, run: str, path: Path) -> None:
    """Refuse a run without a reading in the column that is judged, and with some in another.

    Raises:
        UserError: it is one.
    """
    others = [
        name
        for name in list_numeric(table)
        if name != loss and (name.lower() in LOSSES or may_be_held_out(name))
        if table[name].null_count < len(table)
    ]
    if others:
        raise UserError(
            f"{run} has no number in the column {loss!r} of {path}, and some in "
            f"{list_columns(others)}; name one that all runs have with --loss COLUMN, or write nan "
            "where it diverged"
        )


def _order(steps: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the places of the readings that count, in order of steps, and how many do not.

    Of each step the last one counts. A run that goes back to a step, and logs one that was logged
    before, has left its first way: readings between steps that it takes again are of that way.
    """
    found, at = np.unique(steps, return_inverse=True)
    places = np.full(len(found), -1)
    starts = np.flatnonzero(np.diff(steps) < 0) + 1
    for part in np.split(np.arange(len(steps)), starts):
        taken = at[part]
        if (places[taken] >= 0).any():
            places[taken[0] : taken[-1]] = -1
        places[taken] = part
    kept = places[places >= 0]
    return kept, len(steps) - len(kept)


def _find(
    names: Sequence[str], given: str | None, usual: Sequence[str], option: str, path: Path
) -> str | None:
    """Return the column that is asked for, or the first of those with a usual name.

    Raises:
        UserError: the one that is asked for is not there.
    """
    if given is None:
        lower = {name.lower(): name for name in reversed(names)}
        return next((lower[name] for name in usual if name in lower), None)
    if given in names:
        return given
    raise UserError(
        f"{path} has no column {short_repr(given)}, which {option} names; "
        f"{suggest(given, names)}it has {list_columns(names)}"
    )


def _find_used(table: "pa.Table", name: str | None, read: np.ndarray) -> str | None:
    """Return a column that is found for arms or seeds, if a row with a loss has it.

    A line of settings may have it alone, and tells no runs apart.
    """
    used = name is not None and table[name].is_valid().to_numpy()[read].any()
    return name if used else None


def _find_alone(table: "pa.Table", columns: LogColumns) -> str | None:
    """Return the one column with numbers that names no run or step, if it is called a score."""
    named = {*STEPS, *columns.word_names, *filter(None, [columns.step])}
    numbers = [one for one in list_numeric(table) if not named.intersection((one, one.lower()))]
    alone = len(numbers) == 1 and is_higher_better(numbers[0]) is not None
    return numbers[0] if alone else None
