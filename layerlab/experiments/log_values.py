"""From logs to the numbers that are judged: one of each run, all at the same step."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerlab.errors import UserError
from layerlab.experiments.analysis.readings.curves import MOST
from layerlab.experiments.unlike_logs import refuse_unlike_readings
from layerlab.logs.directions import is_higher_better
from layerlab.logs.training_log import TrainingLog
from layerlab.records.run import RunRecord
from layerlab.validation import short_repr

# The metric's name in a comparison of logs, whatever a log calls it.
LOSS = "loss"
# Trackers write one number in several ways: eval_loss, val/loss.
HELD_OUT = re.compile(r"(eval|val|valid|validation)[/_ ]loss(_epoch)?|nats", re.I)
TRAINING = re.compile(r"((train|training)[/_ ])?(train_)?loss", re.I)
# Of all runs: a log need not say with which it learned, and nothing is chosen by it.
RATE = 1.0
# Beyond this a loss is as good as not finite: sums of squares would be.
LARGEST = 1e100


@dataclass(frozen=True, kw_only=True)
class JudgedStep:
    """Readings of a run that are judged.

    Attributes:
        at: the step; the last one of all runs where it is None.
        last: the mean of so many readings up to it.
        nan_diverged: whether a run that ends without a finite loss counts as diverged.
        target: a loss, the steps to which are judged too.
        way: what to do where a run has no reading at the step.
    """

    at: float | None = None
    last: int = 1
    nan_diverged: bool = False
    target: float | None = None
    way: str = "name another with --at"


def make_records(
    logs: Sequence[TrainingLog], judged: JudgedStep, *, higher: bool = False
) -> list[RunRecord]:
    """Return runs as those of a comparison, with one number and a thinned curve each.

    Args:
        higher: whether more is better in what is judged, which is then no loss.

    Raises:
        UserError: two logs are one run, runs count in different things or end at different steps,
            or one has no finite number where it is judged.
    """
    numbers = number_seeds(logs)
    _refuse_twice(logs, numbers)
    refuse_unlike_readings(logs)
    if higher:
        _refuse_unlike_scores(logs, judged)
    else:
        _refuse_unlike_losses(logs)
    if judged.nan_diverged:
        _refuse_gaps(logs)
    if judged.target is not None:
        _refuse_early(logs, judged.target)
    end = find_end(logs, judged)
    _refuse_unlike_means(logs, end, judged)
    return [_record(one, numbers[id(one)], end, judged) for one in logs]


def number_seeds(logs: Sequence[TrainingLog]) -> dict[int, int]:
    """Return the number of each log's seed, by the log's identity.

    Runs that nothing tells the seed of have numbers that no other has: they are paired with none.
    """
    seeds = {one.seed for one in logs if one.seed is not None}
    if all(_is_whole(word) for word in seeds):
        known = {word: int(word) for word in seeds}
    else:
        known = {word: seed for seed, word in enumerate(sorted(seeds), start=1)}
    free = max(known.values(), default=0)
    found = {}
    for one in logs:
        if one.seed is None:
            free += 1
        found[id(one)] = free if one.seed is None else known[one.seed]
    return found


def find_direction(logs: Sequence[TrainingLog]) -> bool:
    """Tell by the names of what is judged whether more is better.

    Raises:
        UserError: a name says nothing.
    """
    found = [is_higher_better(one.loss_name) for one in logs]
    if None in found:
        one = logs[found.index(None)]
        name = one.loss_name
        raise UserError(
            f"whether more of {short_repr(name)} ({one.place}) is better is told by no word of "
            f"its name; type --loss {name}=lower or --loss {name}=higher"
        )
    return all(found)


def _is_whole(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 16


def _refuse_unlike_losses(logs: Sequence[TrainingLog]) -> None:
    seen: dict[str, TrainingLog] = {}
    for one in logs:
        name = one.loss_name
        kind = "held-out" if HELD_OUT.fullmatch(name) else name
        kind = "training" if TRAINING.fullmatch(name) else kind
        seen.setdefault("mean" if one.mean else kind, one)
    if len(seen) > 1:
        first, other, *_ = seen.values()
        names = [
            short_repr(one.loss_name) + (", the mean over the run" if one.mean else "")
            for one in (other, first)
        ]
        raise UserError(
            f"{other.name} has {names[0]} ({other.place}) and {first.name} {names[1]} "
            f"({first.place}), which are not comparable; name one that all have with --loss "
            "COLUMN, or --line REGEX for lines of text"
        )


def _refuse_gaps(logs: Sequence[TrainingLog]) -> None:
    """Refuse what is no number between finite readings: a run that went on had not diverged there.

    Raises:
        UserError: a run that ends without a number has such readings.
    """
    for one in logs:
        finite = np.flatnonzero(np.isfinite(one.losses))
        lost = np.flatnonzero(~np.isfinite(one.losses))
        if len(finite) and len(lost) and lost[0] < finite[-1] < lost[-1]:
            raise UserError(
                f"{one.name} ({one.place}) has {short_repr(one.loss_name)} that is no number at "
                f"step {one.steps[lost[0]]:g} and one again behind it, so that its end need not "
                "have diverged: leave out the rows in which nothing was read, or name a step that "
                "all have with --at"
            )


def _refuse_early(logs: Sequence[TrainingLog], target: float) -> None:
    """Refuse a loss that a run had come to by its first reading: when, nothing tells.

    Raises:
        UserError: a run had.
    """
    for one in logs:
        known = np.flatnonzero(np.isfinite(one.losses))
        if len(known) and one.losses[known[0]] <= target and one.steps[known[0]] > 0:
            raise UserError(
                f"{one.name} ({one.place}) is at {one.losses[known[0]]:g} by its first reading, at "
                f"step {one.steps[known[0]]:g}, and when it came to {target:g} is not known; "
                "expected a lower loss (in a ledger, of another idea), or earlier readings"
            )


def _refuse_unlike_scores(logs: Sequence[TrainingLog], judged: JudgedStep) -> None:
    seen: dict[str, TrainingLog] = {}
    for one in logs:
        seen.setdefault(one.loss_name, one)
    if len(seen) > 1:
        first, other, *_ = seen.values()
        raise UserError(
            f"{other.name} has {short_repr(other.loss_name)} ({other.place}) and {first.name} "
            f"{short_repr(first.loss_name)} ({first.place}), which are not comparable; name one "
            "that all have with --loss COLUMN"
        )
    if judged.target is not None:
        raise UserError(
            f"--target-loss is for what is better the lower it is, and {next(iter(seen))} is not; "
            "leave it out"
        )


def _refuse_unlike_means(logs: Sequence[TrainingLog], end: float, judged: JudgedStep) -> None:
    windows: dict[tuple[float, ...], TrainingLog] = {}
    for one in logs:
        steps = one.steps[one.steps <= end]
        if judged.last > 1 and len(steps) >= judged.last and not _is_lost(one, judged, end):
            windows.setdefault(tuple(steps[-judged.last :].tolist()), one)
    if len(windows) > 1:
        least, most = min(windows), max(windows)
        at = next(index for index, (a, b) in enumerate(zip(least, most, strict=True)) if a != b)
        raise UserError(
            f"the last {judged.last} readings of {windows[least].name} are of other steps than "
            f"those of {windows[most].name}, as {least[at]:g} and {most[at]:g}: means over unlike "
            "steps are not comparable; leave --last out, or keep readings of the same steps"
        )


def _is_lost(log: TrainingLog, judged: JudgedStep, by: float = math.inf) -> bool:
    """Return whether a run counts as diverged by a step: at all where none is given.

    Of readings behind the last finite one the first tells when.
    """
    finite = np.flatnonzero(np.abs(log.losses) < LARGEST)
    lost = log.steps[finite[-1] + 1 :] if len(finite) else log.steps
    return log.diverged is not None or (
        judged.nan_diverged and len(lost) > 0 and float(lost[0]) <= by
    )


def _refuse_twice(logs: Sequence[TrainingLog], numbers: Mapping[int, int]) -> None:
    seen: dict[tuple[str, int], TrainingLog] = {}
    for one in logs:
        other = seen.setdefault((one.arm, numbers[id(one)]), one)
        if other is not one:
            where = (
                f"twice in {one.place}"
                if one.place == other.place
                else f"in {other.place} and in {one.place}"
            )
            raise UserError(
                f"{one.arm!r} with seed {one.seed} stands {where}; leave one out, or name "
                "what tells them apart: --arm COLUMN, --seed COLUMN, or --name REGEX for paths"
            )


def find_end(logs: Sequence[TrainingLog], judged: JudgedStep) -> float:
    """Return the step at which all runs are judged that come to it.

    Raises:
        UserError: they end at different ones and none is given, or a run has no reading there.
    """
    going = [one for one in logs if not _is_lost(one, judged)] or logs
    ends = Counter(float(one.steps[-1]) for one in going)
    at = next(iter(ends)) if judged.at is None and len(ends) == 1 else judged.at
    if at is not None:
        # What was still going on there is judged there, however it ended.
        asked = [one for one in logs if not _is_lost(one, judged, at)]
        lacking = [one for one in asked if at not in one.steps]
        if lacking:
            near = lacking[0].steps[np.argmin(np.abs(lacking[0].steps - at))]
            raise UserError(
                f"{lacking[0].name} ({lacking[0].place}) has no reading at step {at:g}, and "
                f"{len(lacking)} of {len(asked)} runs have none; its nearest is at {near:g}; "
                f"{judged.way}"
            )
        return at
    shared = [
        step
        for step in set.intersection(*(set(one.steps.tolist()) for one in going))
        if all(step in one.steps or _is_lost(one, judged, step) for one in logs)
    ]
    short = min(going, key=lambda one: float(one.steps[-1]))
    way = (
        f"type --at {max(shared):g}, the last that all have"
        if shared
        else "no step is in all: log the same steps, or leave the logs of one end out"
    )
    if short.blank is not None:
        way = (
            f"{short.name} has a row without a loss at step {short.blank:g}: write nan there and "
            f"type --nan-diverged if it diverged; else {way}"
        )
    raise UserError(
        f"runs end at different steps, from {min(ends):g} ({short.name}) to {max(ends):g}, and "
        f"are not comparable there; {way}"
    )


def _record(log: TrainingLog, seed: int, end: float, judged: JudgedStep) -> RunRecord:
    inside = log.steps <= end
    steps, losses = log.steps[inside], log.losses[inside]
    diverged = log.diverged
    if diverged is None and float(log.steps[-1]) < end:
        diverged = f"its loss is {float(log.losses[-1])} at step {float(log.steps[-1]):g}"
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(np.mean(losses[-judged.last :]))
    if len(losses) < judged.last and diverged is None:
        raise UserError(
            f"{log.name} ({log.place}) has {len(losses)} readings up to step {end:g}; expected "
            f"{judged.last} or more: type --last {len(losses)}"
        )
    if not abs(value) < LARGEST and diverged is None:
        if not judged.nan_diverged:
            why = (
                f", as its gradients are no number from step {log.filtered or 0:g} on, where "
                "trainers leave such losses out of what they log"
            )
            raise UserError(
                f"the loss of {log.name} is {value} at step {end:g} ({log.place})"
                f"{'' if log.filtered is None else why}; type "
                "--nan-diverged to count such runs as diverged, or leave that log out"
            )
        diverged = f"its loss is {value} at step {float(steps[-1]):g}"
    return RunRecord(
        manifest={
            "run": log.name if log.seed is not None else f"{log.name} ({log.place})",
            "arm": log.arm,
            "recipe": {"train": {"seed": seed, "learning_rate": RATE}},
        },
        events=_thin(steps, losses, judged.target),
        result={
            LOSS: None if diverged is not None else value,
            "updates": end,
            "diverged": diverged,
        },
    )


def _thin(
    steps: np.ndarray, losses: np.ndarray, target: float | None
) -> tuple[Mapping[str, Any], ...]:
    """Return the readings that a picture shows, and those between which the target is reached."""
    kept = set(range(len(steps) - 1, -1, -max(1, math.ceil(len(steps) / MOST))))
    if target is not None:
        reached = np.flatnonzero(losses <= target)
        if len(reached):
            first = int(reached[0])
            before = np.flatnonzero(np.isfinite(losses[:first]))
            kept |= {first, *map(int, before[-1:])}
    points = [{"update": float(steps[one]), LOSS: _finite(losses[one])} for one in sorted(kept)]
    # For the picture of the curves, and for differences and steps along them.
    return tuple({"kind": kind, **point} for kind in ("train", "evaluation") for point in points)


def _finite(value: float) -> float | None:
    return float(value) if abs(value) < LARGEST else None


def leave_unfinished(
    logs: Sequence[TrainingLog], baseline: str | None
) -> tuple[list[TrainingLog], list[str]]:
    """Return the runs that may be judged, and a remark that names those that have not finished.

    Raises:
        UserError: none of the baseline has finished, or of all other arms.
    """
    names = list_arms(logs, baseline)
    kept = [one for one in logs if one.finished is not False]
    left = [one for one in logs if one.finished is False]
    arms = {one.arm for one in kept}
    lacking = names[:1] if names[0] not in arms else names[1:] if len(arms) < 2 else []
    if lacking:
        raise UserError(
            f"no run of {', '.join(map(short_repr, lacking))} has finished; a verdict on runs "
            "that go on is not final: wait for them, carry them on, or drop the column that says so"
        )
    runs = ", ".join(f"{one.name} ({one.place})" for one in left)
    why = f"left out, because they have not finished, so that this is not final: {runs}"
    return kept, [why] if left else []


def list_arms(logs: Sequence[TrainingLog], baseline: str | None) -> list[str]:
    """Return the arms, the baseline first.

    Raises:
        UserError: there is one alone, or the baseline is none of them.
    """
    names = list(dict.fromkeys(one.arm for one in logs))
    if not names:
        raise UserError("no log holds a run; give those that a trainer wrote")
    if len(names) < 2:
        raise UserError(
            f"all runs are of one arm, {short_repr(names[0])}, and held against none; name the "
            "column that tells arms apart with --arm COLUMN, or give the logs of another"
        )
    if baseline is None:
        return names
    if baseline not in names:
        arms = ", ".join(map(short_repr, names[:12]))
        raise UserError(f"the baseline {short_repr(baseline)} is no arm of these logs: {arms}")
    return [baseline, *(one for one in names if one != baseline)]
