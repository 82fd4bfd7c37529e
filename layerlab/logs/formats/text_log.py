"""Reads lines of plain text, as nanoGPT-like scripts print them, by a regular expression."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError
from layerlab.logs.directions import is_higher_better
from layerlab.logs.formats.held_out_lines import PART, refuse_unread
from layerlab.logs.formats.line_words import PASSING, describe_line, keep_common_words
from layerlab.logs.formats.tables import decode, table_of
from layerlab.logs.run_names import compile_groups, read_name
from layerlab.logs.training_log import TEXTS, LogColumns
from layerlab.system.files import read_whole
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST = 2000  # characters of a line that is searched: an expression may take their square
COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
# What nanoGPT and modded-nanogpt print: a step, and behind it losses of several kinds. DeepSpeed
# begins with "steps: 10"; total steps: 10 are none.
THOUSANDS = {**dict.fromkeys("0123456789.", 1.0), "k": 1e3, "m": 1e6}
COUNT = r"\d{1,3}(?:[,_]\d{3})+|\d+(?:\.\d+)?[km]?"
STEP = re.compile(
    r"(?<![a-z_])(?:global_|train_)?(?:iter(?:ation)?|step|(?<!\w\s)steps(?=:))\s*[:=]?\s*\[?"
    rf"({COUNT})(?:/[\d,_.]*[\dkm])?(?!\w)",
    re.I,
)
# What follows a number without a space is of it, so that 1.12k and 1.#QNAN are none.
NUMBER = r"[-+]?(?:(?:nan|inf(?:inity)?)\b|(?:\d+,\d[\d.,]*|\.?\d[-+.\dE]*)(?:[#\w]\S*)?)"
LOSS = re.compile(
    rf"(?<![^\W_])loss(?:\s+value)?(?:\s*[:=]\s*|\s+)(?:tensor\(\s*)?(?P<loss>{NUMBER})", re.I
)
PAIR = re.compile(r"\s*/\s*[-+.]?\d")  # as in "train/val loss: 3.0/3.25"
# In each line that Trainer of Hugging Face prints, with its epoch and no step.
EPOCH = "'epoch': "
# Words before a loss, as in "best val loss" or "mtp_1 loss"; of so many characters.
KIND = re.compile(r"(?<![^\W_])(?:[^\W\d_][^\W_]*(?:[_/-]\d+)*[ _/-])*$")
WIDEST = 60
# Words directly before a number; and a number by itself, as none is in top-5 or acc@1.
NAME = re.compile(r"(?<![^\W_])([^\W\d_][^\W_]*(?:[ _/-][^\W\d_][^\W_]*)*)\W*$")
FIGURE = re.compile(r"(?<![^\s:=(\[|,])[-+]?\d[^\s|,;)\]]*")
WORD = re.compile(r"[^\W_]+")
HOLD_OUT = re.compile(r"h[eo]ld[-_ ]out")
# A text that is said of a loss by itself, as in [valid], split=val or "on the test set".
ALONE = re.compile(
    rf"\W*(?:(?:on|the|split|phase|mode|stage|set|data)\W+)*(?P<text>{'|'.join(TEXTS)})"
    r"(?:\W+(?:set|split|data|phase))?\W*"
)


def read_text(path: Path, columns: LogColumns) -> "pa.Table":
    """Read the lines that a regular expression fits; others, and long ones, are left out.

    Args:
        columns: whose line has the groups step and loss, either of which may be of a line of its
            own; lines like nanoGPT's where it is None, of which each kind of loss is a column.

    Raises:
        UserError: it fits no line, a group is no number, a line has two losses of one name, or
            losses on held-out text stand in lines that cannot be read.
    """
    line = columns.line
    every = COLOUR.sub("", decode(read_whole(path))).splitlines()
    lines = [one for one in every if len(one) <= LONGEST]
    arm, _ = read_name(path, columns.name)
    rows: list[dict[str, Any]]
    if line is None:
        read = [(one, dict(_find_losses(one, path))) for one in lines]
        _refuse_unlike(read, path)
        rows = [row for _, row in read if len(row) > 1]
        words = [_describe(one, arm) for one, row in read if len(row) > 1]
        rows += _find_behind([row for _, row in read])
        if rows and columns.loss is None:
            refuse_unread(read, path)
    else:
        found = list(_find_groups(columns, lines, path))
        rows = [row for _, row in found]
        words = [_describe_groups(one, arm) for one, _ in found]
    if rows:
        return keep_common_words(table_of(rows, path), words)
    what = "no line that nanoGPT would write" if line is None else "no line that --line fits"
    example = next((one for one in lines if "loss" in one.lower()), None)
    if example is not None and EPOCH in example:
        raise UserError(
            f"{path} has lines of Trainer, as {short_repr(example)}, in which no step stands; give "
            "the trainer_state.json of its last checkpoint, or type, with 'loss' where that is "
            "judged: --line \"'eval_loss': '?(?P<loss>[^',}]+).*'epoch': '?(?P<step>[\\d.]+)\""
        )
    raise UserError(
        f"{path} has {what}{'' if example is None else f', as {short_repr(example)}'}; type --line "
        "'step (?P<step>\\d+).*val loss (?P<loss>\\S+)', with what stands there around the groups "
        "step and loss, and | between them where they stand in lines of their own"
    )


def _find_behind(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the last step behind all losses, if there is one: Megatron leaves out those of NaN."""
    numbers = [number for number, row in enumerate(rows) if len(row) > 1]
    behind = [row["step"] for row in rows[numbers[-1] :] if row] if numbers else []
    return [{"step": behind[-1]}] if behind and behind[-1] > behind[0] else []


def _describe(line: str, arm: str) -> dict[str, str]:
    """Return what a line like nanoGPT's says beside its numbers."""
    before, *_ = STEP.split(line, maxsplit=1)
    return describe_line(before, [line[one.end() :] for one in LOSS.finditer(line)], arm)


def _describe_groups(found: re.Match[str], arm: str) -> dict[str, str]:
    """Return what a line that an expression fits says beside its groups."""
    line, spans = found.string, [found.span(name) for name in found.re.groupindex]
    first = min(start for start, _ in spans if start >= 0)
    return describe_line(line[:first], [line[found.end("loss") :]], arm)


def _find_groups(
    columns: LogColumns, lines: Sequence[str], path: Path
) -> Iterator[tuple[re.Match[str], dict[str, Any]]]:
    """Yield each line that has a loss with its groups, at its own step or the last one above it.

    Raises:
        UserError: a group is missing, or holds no number, or losses are of several kinds.
    """
    pattern = compile_groups(columns.line or "", ("step", "loss"), "--line")
    called = columns.loss if columns.loss not in pattern.groupindex else None
    step, first = None, None
    for found in filter(None, map(pattern.search, lines)):
        step = step if found["step"] is None else found["step"]
        if found["loss"] is None or step is None:
            continue
        first = first or found
        _refuse_other(found, first, columns, path)
        numbers = {"step": _number("step", step, path)}
        numbers[called or "loss"] = _number("loss", found["loss"], path)
        yield found, {**found.groupdict(), **numbers}


def _refuse_other(
    found: re.Match[str], first: re.Match[str], columns: LogColumns, path: Path
) -> None:
    """Refuse a number that words say is of another kind than those before, or a score.

    Args:
        first: what the first line gave.

    Raises:
        UserError: it is, and nobody named it.
    """
    before, known = (one.string[: one.start("loss")][-WIDEST:].lower() for one in (found, first))
    words = NAME.findall(before)
    if words != NAME.findall(known):
        raise UserError(
            f"--line fits lines that may be of unlike losses: {short_repr(first.string)} and "
            f"{short_repr(found.string)}; put what tells those that are judged before the group "
            "loss, as 'step (?P<step>\\d+).*val loss (?P<loss>\\S+)'"
        )
    name = "_".join(_list_words(FIGURE.split(before)[-1]))
    if columns.loss is None and is_higher_better(name):
        raise UserError(
            f"{path} has {name!r} before the group loss of --line, of which more is better: "
            f"{short_repr(found.string)}; type --loss {name}=higher"
        )


def _find_losses(line: str, path: Path) -> Iterator[tuple[str, float]]:
    """Yield the step of a line and its losses, each by the words that it is called by.

    Raises:
        UserError: two are called the same and differ, or one is no number.
    """
    steps = list(STEP.finditer(line))
    if not steps:
        return
    # Beside a step of its epoch a line may have the one of all.
    step = next((one for one in steps if one[0].lower().startswith("global")), steps[0])
    yield "step", _number("step", step[1], path)
    seen: dict[str, float] = {}
    start = step.end()
    # Behind its last part, and where nothing is said to come next, a line may name its text.
    tail = max(
        line.lower().rfind("ing"), *(one.start() for one in PART.finditer(line, start)), start
    )
    for found in LOSS.finditer(line, step.end()):
        before = line[max(step.end(), found.start() - WIDEST) : found.start()]
        kind = KIND.search(before)
        words = [TEXTS.get(one, one) for one in _list_words(kind[0] if kind else "")]
        # A loss of which no text is said may be of one that stands further off.
        between = line[start : found.start()]
        start = found.end()
        if not any(one in TEXTS.values() for one in words):
            alone = [*PART.split(between)[::-1], *([line[start:]] if start > tail else [])]
            words = [*(_find_alone(alone) or _find_text(line[: step.start()])), *words]
        if PAIR.match(line, found.end()):
            raise UserError(
                f"{path} has two numbers behind a loss, as {short_repr(line)}; type --line 'step "
                "(?P<step>\\d+).*loss: [^/]*/(?P<loss>\\S+)' with what stands before the "
                "one that is meant"
            )
        name = "_".join([*words, "loss"])
        value = _number("loss", found["loss"].rstrip("."), path)
        if seen.setdefault(name, value) != value and not math.isnan(value):
            raise UserError(
                f"{path} has a line with two losses of one name, {name}, {seen[name]:g} and "
                f"{value:g}: {short_repr(line)}; type --line 'step (?P<step>\\d+).*loss "
                "(?P<loss>\\S+)' with what stands around the one that is meant"
            )
        yield name, value


def _find_text(words: str) -> list[str]:
    """Return the text that words name, if they name one."""
    texts = {TEXTS[one] for one in _list_words(words) if one in TEXTS}
    return list(texts) if len(texts) == 1 else []


def _find_alone(parts: Sequence[str]) -> list[str]:
    """Return the text that the first of these parts names by itself, if one does."""
    found = (ALONE.fullmatch(HOLD_OUT.sub("heldout", one.lower())) for one in parts)
    return next(([TEXTS[one["text"]]] for one in found if one), [])


def _list_words(text: str) -> list[str]:
    """Return the words of a text; held-out is one."""
    return WORD.findall(HOLD_OUT.sub("heldout", text.lower()))


def _refuse_unlike(read: Sequence[tuple[str, Mapping[str, float]]], path: Path) -> None:
    """Refuse losses of one name, where the words before a step differ.

    Args:
        read: each line with the step and the losses that were found in it.

    Raises:
        UserError: there are some, as where a trainer validates and says so in a word of its own.
    """
    seen: dict[str, tuple[set[str], str]] = {}
    for line, row in read:
        if not row:
            continue
        before, *_ = STEP.split(line, maxsplit=1)
        words = {one for one in _list_words(before) if one.isalpha()} - PASSING
        for name in row.keys() - {"step"}:
            known, first = seen.setdefault(name, (words, line))
            if words != known:
                raise UserError(
                    f"{path} has lines that may be of unlike losses: {short_repr(first)} and "
                    f"{short_repr(line)}; type --line with what tells those that are judged, as "
                    "'val.*step (?P<step>\\d+).*loss (?P<loss>\\S+)'"
                )


def _number(name: str, text: str | None, path: Path) -> float:
    given = text or ""
    try:
        if name != "step":
            return float(given)
        digits = given.lower().replace(",", "").replace("_", "")
        return float(digits.rstrip("km")) * THOUSANDS[digits[-1:]]
    except (KeyError, ValueError):
        raise UserError(
            f"the group {name} is {short_repr(text)} in a line of {path}; expected a number, "
            "as 3.21"
        ) from None
