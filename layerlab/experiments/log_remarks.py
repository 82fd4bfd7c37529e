"""Remarks on somebody's logs beside a verdict: what may be other than it looks."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from layerlab.experiments.log_values import number_seeds
from layerlab.logs.loss_names import HELD_OUT
from layerlab.logs.training_log import TrainingLog
from layerlab.validation import short_repr

MOST = 4  # runs that a remark names
SEEDS = 20  # seeds that it does
ALIKE = 0.05  # by which tokens of an update may differ, as where padding is not counted


def list_remarks(logs: Sequence[TrainingLog]) -> list[str]:
    """Return every remark on how these logs were written and read."""
    return [
        *_describe_again(logs),
        *_describe_cut(logs),
        *_describe_planned(logs),
        *_describe_blank(logs),
        *_describe_passed(logs),
        *_describe_words(logs),
        *_describe_tokens(logs),
        *_describe_updates(logs),
        *_describe_seeds(logs),
        *_describe_numbers(logs),
        *_describe_compared(logs),
    ]


def _describe_compared(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield a remark on runs of layerlab, of which its own comparison knows more."""
    if len({one.arm for one in logs if Path(one.place).is_dir()}) > 1:
        yield (
            "these are runs of layerlab: layerlab compare with their recipe and --judge also "
            "counts the error of the held-out text, and knows what the recipe declares"
        )


def _describe_again(logs: Sequence[TrainingLog]) -> Iterator[str]:
    if again := [one for one in logs if one.again]:
        total = sum(one.again for one in again)
        yield (
            f"{total:,} readings of {len(again)} runs are of steps that were logged or passed "
            "again; the last time counts"
        )
    if back := [f"{one.name} (to {one.resumed:g})" for one in logs if one.resumed is not None]:
        yield (
            "runs whose rows go back behind the step that is judged, as where a run was taken up "
            f"again or steps begin anew with each epoch: {', '.join(back)}"
        )


def _describe_cut(logs: Sequence[TrainingLog]) -> Iterator[str]:
    if cut := [f"{one.name} ({one.place})" for one in logs if one.cut]:
        yield (
            "files that end within a line or a record, as where they are still written or their "
            f"run was killed; what can be read there counts: {', '.join(cut)}"
        )


def _describe_planned(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield remarks on runs that were to make unlike numbers of updates, and on shorter ones."""
    planned = {one.planned: one for one in logs if one.planned is not None}
    if len(planned) > 1:
        each = ", ".join(f"{steps:,} ({one.name})" for steps, one in sorted(planned.items()))
        yield f"runs were to make unlike numbers of updates, as a schedule has them: {each}"
    short = [one for one in logs if one.planned is not None and one.steps[-1] < one.planned]
    if short:
        named = ", ".join(f"{one.name} ({one.steps[-1]:g} of {one.planned:,})" for one in short)
        yield f"runs that made, or logged, fewer updates than they were to make: {named}"


def _describe_blank(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield a remark on runs that go on for long behind the last loss that they have."""
    found = []
    for one in logs:
        apart = float(np.median(np.diff(one.steps))) if len(one.steps) > 1 else 0.0
        if one.blank is not None and one.blank - one.steps[-1] > 1.5 * apart:
            found.append(f"{one.name} ({one.steps[-1]:g} of {one.blank:g})")
    if found:
        yield f"runs that go on for long behind the last loss that was read: {', '.join(found)}"


def _describe_passed(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield a remark on logs beside those of a loss in training, where another may stand."""
    left = [
        f"{', '.join(one.passed[:3])} ({one.name})"
        for one in logs
        if one.passed and one.loss_name.lower() not in HELD_OUT
    ]
    if left:
        yield f"logs of the same runs that were not read: {'; '.join(left)}"


def _describe_words(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield a remark on columns by which the readings of a run may be of several texts."""
    if names := dict.fromkeys(name for one in logs for name in one.words):
        text = ", ".join(map(short_repr, names))
        yield f"readings of a run have several words in {text}: of several texts, keep those of one"


def _describe_tokens(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield a remark on runs whose updates are of unlike numbers of tokens."""
    sizes = sorted((one.tokens, one.name) for one in logs if one.tokens is not None)
    if sizes and sizes[-1][0] > sizes[0][0] * (1 + ALIKE):
        (least, first), (most, last) = sizes[0], sizes[-1]
        yield (
            f"updates are of unlike numbers of tokens: {least:,.0f} ({first}) to {most:,.0f} "
            f"({last}); at one step runs have learned from unlike amounts of text"
        )


def _describe_seeds(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield a remark on runs whose configurations have other seeds than they are paired by."""
    runs = []
    for one in logs:
        seeds = {str(own) for path, own in one.config.items() if path.split(".")[-1] == "seed"}
        if one.seed is not None and len(seeds) == 1 and one.seed not in seeds:
            runs.append(f"{one.name} ({seeds.pop()})")
    if runs:
        yield (
            f"{len(runs)} configurations have other seeds than those by which runs are paired, as "
            f"{', '.join(runs[:MOST])}"
        )


def _describe_numbers(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield a remark on seeds that stand under another number than their word."""
    numbers = number_seeds(logs)
    words = {numbers[id(one)]: one.seed for one in logs if one.seed is not None}
    # s1 and 01 are taken for 1 anyway.
    own = {one for one, word in words.items() if re.fullmatch(rf"(.*\D)?0*{one}", word)}
    pairs = [f"{one} = {words[one]}" for one in sorted(words.keys() - own)]
    if pairs:
        text = ", ".join(pairs[:SEEDS]) + (", ..." if len(pairs) > SEEDS else "")
        yield f"seeds that are words stand here under numbers: {text}"


def _describe_updates(logs: Sequence[TrainingLog]) -> Iterator[str]:
    """Yield a remark on runs that are judged by something else and made unlike updates by then."""
    updates = sorted((one.updates, one.name) for one in logs if one.updates is not None)
    if updates and updates[0][0] != updates[-1][0]:
        (least, first), (most, last) = updates[0], updates[-1]
        yield (
            f"runs made unlike numbers of updates: {least:,.0f} ({first}) to {most:,.0f} ({last}) "
            "at their last readings"
        )
