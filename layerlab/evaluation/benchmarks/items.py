"""Questions of a benchmark, in one shape: what is asked, its options, the right ones.

Files differ in how they write a question and its answer; nothing after this file has to know. What
is odd in a published file stays as published and is noted, so that counts are the official ones.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layerlab.data.normal_form import normal_form
from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.readers import FileRow, read_rows
from layerlab.evaluation.benchmarks.spec import Benchmark, Subtask
from layerlab.validation import short_repr

LETTERS = "ABCDEFG"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question with what is needed to ask and to mark it.

    Attributes:
        location: its file and line.
        text: what is asked.
        passage: what is read before; empty where there is nothing to read.
        options: to choose from; none where the reply is free text.
        right: places of the right options.
        reply: the right text where there are no options.
        explanation: why the answer is right; empty where the file says nothing.
    """

    location: str
    text: str
    passage: str = ""
    options: tuple[str, ...] = ()
    right: tuple[int, ...] = ()
    reply: str = ""
    explanation: str = ""

    @property
    def line(self) -> str:
        """Return the place without its folders, which is the same on every machine."""
        return self.location.rpartition("/")[2]

    @property
    def answered(self) -> bool:
        """Return whether the file says what is right."""
        return bool(self.right or self.reply)

    @property
    def letters(self) -> str:
        """Return the letters of the right options, as "B" or "ACD"."""
        return "".join(LETTERS[index] for index in self.right)


def read_items(
    benchmark: Benchmark, subtask: Subtask, split: str, folder: Path | None = None
) -> list[Item]:
    """Read the questions of a split that have an answer, in the order of the file.

    Args:
        folder: the data folder; LAYERLAB_DATA where none is given.

    Raises:
        UserError: the split is not there, not in the benchmark's format, or has no answers.
    """
    read, given = _READERS[benchmark.name], read_rows(benchmark, subtask, split, folder)
    found = [read(row) for row in given]
    if benchmark.first and split == benchmark.split:
        found = found[: benchmark.first]
    answered = [one for one in found if one.answered]
    for one in answered:
        if not one.text.strip():
            raise UserError(f"{one.location} has an empty question; mend that line or leave it out")
    if not answered:
        raise UserError(_refuse_unanswered(benchmark, split, given))
    return answered


def describe_odd_items(
    benchmark: Benchmark, subtask: Subtask, split: str, folder: Path | None = None
) -> list[str]:
    """Describe what is odd in a file, a line each; its questions are scored as published.

    Two options of the same text make a question ambiguous where one of them is right; an option
    without a text cannot be told from none. A question without an answer among answered ones is
    left out.
    """
    read = _READERS[benchmark.name]
    found = [read(row) for row in read_rows(benchmark, subtask, split, folder)]
    twins = [
        f"{one.line}: the option {short_repr(twin)} stands there twice; it is scored as published"
        for one in found
        if (twin := _twin(one.options)) is not None
    ]
    empty = [
        f"{one.line}: the option {letter} is empty; it is scored so, as published"
        for one in found
        if (letter := _blank(one.options)) is not None
    ]
    bare = [f"{one.line} has no answer; it is left out" for one in found if not one.answered]
    return [*twins, *empty, *bare]


def sum_up_alike(lines: Iterable[str]) -> Iterator[str]:
    """Yield the first line of each kind, and how many more there are: kinds end alike.

    Example:
        >>> list(sum_up_alike(["line 4 is empty; it is left out", "line 7 lacks; it is left out"]))
        ['line 4 is empty; it is left out; so is 1 more']
    """
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(line.rpartition("; ")[2], []).append(line)
    for alike in found.values():
        more = len(alike) - 1
        others = "; so is 1 more" if more == 1 else f"; so are {more} more"
        yield f"{alike[0]}{others if more else ''}"


def describe_repeated(name: str, keys: Sequence[str]) -> Iterator[str]:
    """Yield a line where questions stand there more than once.

    Args:
        keys: what is equal where a question stands there again; empty of one that is not known.
    """
    counts = Counter(filter(None, keys))
    count = sum(many for many in counts.values() if many > 1)
    if count:
        yield (
            f"{name}: {count:,} of {len(keys):,} questions stand there more than once; its "
            "interval takes them for different ones, and is too narrow"
        )


def letters_of(answer: str, count: int) -> tuple[int, ...]:
    """Return the places of the options that an answer names, whatever surrounds its letters.

    Args:
        answer: letters of any width and case, as "B", "（Ｃ）" or "A B D".
        count: number of options.

    Example:
        >>> letters_of("Ｃ", 4), letters_of("A B D", 4), letters_of("E", 4)
        ((2,), (0, 1, 3), ())
    """
    plain = normal_form("NFKC", answer).upper()
    return tuple(sorted({LETTERS.index(one) for one in re.findall(f"[{LETTERS[:count]}]", plain)}))


def _refuse_unanswered(benchmark: Benchmark, split: str, given: Sequence[FileRow]) -> str:
    """Explain why no row of a split has an answer: it is withheld, or the file is another."""
    file = given[0].location.rpartition(", ")[0]
    if split not in (benchmark.split, benchmark.shots_split):
        return (
            f"{file} has no answers: {benchmark.title} publishes its split {split} without them; "
            f"use the split {benchmark.split}"
        )
    column = _ANSWERS.get(benchmark.name, "label")
    if any(column in row.cells for row in given):
        return f"{file} has no answers: every {column} is empty; copy the split {split} anew"
    there = ", ".join(name for name in given[0].cells if name) or "nothing"
    return f"{file} has no {column!r}; it has {there}: rename what holds the answers to {column!r}"


def _texts(options: Sequence[str]) -> list[str]:
    """Return the text behind the letter of each option."""
    return [re.sub(rf"^\([{LETTERS}]\)", "", one).strip() for one in options]


def _twin(options: Sequence[str]) -> str | None:
    texts = _texts(options)
    return next((one for index, one in enumerate(texts) if one and one in texts[:index]), None)


def _blank(options: Sequence[str]) -> str | None:
    """Return the letter of the first option without a text."""
    texts = _texts(options)
    return next((letter for letter, one in zip(LETTERS, texts, strict=False) if not one), None)


def _of_exam(row: FileRow) -> Item:
    options = tuple(row.text(name) for name in "abcd")
    answer = row.text("answer") if "answer" in row.cells else ""
    right = letters_of(answer, len(options))
    if answer.strip() and (len(right) != 1 or not _only_letters(answer)):
        raise UserError(
            f"{row.location}: the answer is {short_repr(answer)}; expected one of A, B, C and D"
        )
    return Item(
        location=row.location,
        text=row.text("question"),
        options=options,
        right=right,
        explanation=row.text("explanation") if "explanation" in row.cells else "",
    )


def _only_letters(answer: str) -> bool:
    """Return whether an answer holds no word besides its letter."""
    return len(re.findall(r"\w", normal_form("NFKC", answer))) == 1


def _of_agieval(row: FileRow) -> Item:
    options = tuple(row.texts("options"))
    if not options:
        return Item(
            location=row.location,
            text=row.text("question"),
            passage=row.text("passage"),
            reply=row.text("answer"),
        )
    return Item(
        location=row.location,
        text=row.text("question"),
        passage=row.text("passage"),
        options=options,
        right=letters_of(" ".join(row.texts("label")), len(options)),
    )


def _of_boolq(row: FileRow) -> Item:
    asked, passage = row.text("question"), row.text("passage")
    return _by_label(row, asked, ("No", "Yes"), ("false", "true"), passage)


def _of_ax_b(row: FileRow) -> Item:
    asked, passage = row.text("sentence2"), row.text("sentence1")
    return _by_label(row, asked, ("True", "False"), ("entailment", "not_entailment"), passage)


def _of_piqa(row: FileRow) -> Item:
    asked, options = row.text("goal"), (row.text("sol1"), row.text("sol2"))
    return _by_label(row, asked, options, ("0", "1"))


def _of_csl(row: FileRow) -> Item:
    asked, passage = "，".join(row.texts("keyword")), row.text("abst")
    return _by_label(row, asked, ("否", "是"), ("0", "1"), passage)


def _of_eprstmt(row: FileRow) -> Item:
    return _by_label(row, row.text("sentence"), ("消极", "积极"), ("negative", "positive"))


def _of_summary(row: FileRow) -> Item:
    """Read an article and its summary; an empty article of XSum counts as unanswered."""
    text = row.text("dialogue", "document", "text", "content")
    return Item(
        location=row.location, text=text, reply=row.text("summary", "abst") if text.strip() else ""
    )


def _by_label(
    row: FileRow, text: str, options: Sequence[str], labels: Sequence[str], passage: str = ""
) -> Item:
    """Return a question whose label names the right option; none where the split has no labels."""
    item = Item(location=row.location, text=text, passage=passage, options=tuple(options))
    label = row.text("label").strip() if "label" in row.cells else ""
    if not label:
        return item
    if label.lower() not in labels:
        known = " or ".join(map(repr, labels))
        raise UserError(f"{row.location}: the label is {short_repr(label)}; expected {known}")
    return replace(item, right=(labels.index(label.lower()),))


# Where answers stand; elsewhere in a label.
_EXAMS = ("ceval", "cmmlu", "mmlu", "financeiq", "fineval")
_ANSWERS: Mapping[str, str] = dict.fromkeys(_EXAMS, "answer")
_READERS: Mapping[str, Callable[[FileRow], Item]] = {
    **dict.fromkeys(_EXAMS, _of_exam),
    **dict.fromkeys(("xsum", "lcsts"), _of_summary),
    "agieval": _of_agieval,
    "boolq": _of_boolq,
    "ax-b": _of_ax_b,
    "piqa": _of_piqa,
    "csl": _of_csl,
    "eprstmt": _of_eprstmt,
}
