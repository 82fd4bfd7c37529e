"""Readings that do not compare: of several texts, in several units, counted in several things."""

import re
from collections.abc import Sequence
from pathlib import Path

from layerlab.errors import UserError
from layerlab.logs.formats.line_words import UNIT
from layerlab.logs.loss_names import may_be_held_out
from layerlab.logs.mixtures import FLAGS
from layerlab.logs.training_log import PARTS, TEXTS, UPDATES, TrainingLog
from layerlab.validation import short_repr

# Words of one text; a trainer calls held-out text as it likes.
_SAME = {"training": "train", "testing": "test"}
_ALONE = ("train", "test")
# Scores that are shares, or percentages of the same.
_SHARE = re.compile(r"(?<![a-z])(acc(uracy)?|f1|exact_match|em|precision|recall|auc|pass)(?![a-z])")


def refuse_unlike_readings(logs: Sequence[TrainingLog]) -> None:
    """Refuse logs whose readings do not compare, whatever they came to.

    Raises:
        UserError: they are counted in several things, of several texts, or shares and percentages.
    """
    _refuse_unlike_steps(logs)
    _refuse_unlike_texts(logs)
    _refuse_unlike_units(logs)


def _refuse_unlike_steps(logs: Sequence[TrainingLog]) -> None:
    seen: dict[str, TrainingLog] = {}
    for one in logs:
        name = one.step_name.lower()
        seen.setdefault(UPDATES[0] if name in UPDATES else name, one)
    if len(seen) > 1:
        first, other, *_ = seen.values()
        raise UserError(
            f"readings of {other.name} are counted in {short_repr(other.step_name)} "
            f"({other.place}) and those of {first.name} in {short_repr(first.step_name)} "
            f"({first.place}), which are not comparable; name one that all have with --step COLUMN"
        )


def _refuse_unlike_texts(logs: Sequence[TrainingLog]) -> None:
    """Refuse readings of several texts, as of training and of held-out text.

    Raises:
        UserError: columns of their rows, or else their paths, name such.
    """
    seen: dict[str, tuple[TrainingLog, str]] = {}
    for one in logs:
        word = None if may_be_held_out(one.loss_name) else _find_text(one)
        if word is not None:
            seen.setdefault(_kind(word), (one, word))
    if len(seen) > 1:
        (first, its), (other, theirs), *_ = seen.values()
        raise UserError(
            f"readings of {other.name} are of {short_repr(theirs)} ({other.place}) and those of "
            f"{first.name} of {short_repr(its)} ({first.place}), which are not comparable; name "
            "logs, or keep rows, of one text"
        )


def _refuse_unlike_units(logs: Sequence[TrainingLog]) -> None:
    """Refuse losses in several units, and scores of which some are shares, others percentages.

    Raises:
        UserError: they are.
    """
    units: dict[str, TrainingLog] = {}
    for one in logs:
        units.setdefault(one.settings.get(UNIT, ""), one)
    if len(units.keys() - {""}) > 1:
        (its, first), (theirs, other), *_ = ((unit, one) for unit, one in units.items() if unit)
        raise UserError(
            f"losses of {other.name} are in {theirs} ({other.place}) and those of {first.name} in "
            f"{its} ({first.place}), which are not comparable; write them in one unit"
        )
    named = [one for one in logs if _SHARE.search(one.loss_name.lower())]
    most = {id(one): max((x for x in one.losses.tolist() if x == x), default=0.0) for one in named}
    shares = [one for one in named if 0 < most[id(one)] <= 1]
    others = [one for one in named if 1 < most[id(one)] <= 100]
    if shares and others:
        one, other = shares[0], others[0]
        raise UserError(
            f"{short_repr(one.loss_name)} of {one.name} is at most {most[id(one)]:g}, and of "
            f"{other.name} {most[id(other)]:g}: the one may be a share and the other a percentage; "
            "write both in one unit"
        )


def _find_text(log: TrainingLog) -> str | None:
    """Return the word for the text that the readings of a run are of, where one is there."""
    for name, value in log.settings.items():
        word, flag = str(value).strip().lower(), name.lower().removeprefix("is_")
        if name.lower() in PARTS and word in TEXTS:
            return word
        if flag in TEXTS and word.removesuffix(".0") in FLAGS:
            return flag if word.removesuffix(".0") in ("1", "true") else f"not {flag}"
    path = Path(log.place)
    words = [log.arm.lower(), path.stem.lower(), *(one.lower() for one in path.parts[-2::-1])]
    return next((one for one in words if one in TEXTS), None)


def _kind(word: str) -> str:
    """Return what words for one text have in common."""
    if word.startswith("not "):
        return "held out" if _kind(word[4:]) == "train" else "train"
    word = _SAME.get(word, word)
    return word if word in _ALONE else "held out"
