"""Benchmark contamination of training text: runs of units shared with its questions."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from layerlab.console.tables import add_title, grid
from layerlab.data.cleaning.ngrams import join_units, keys, units, windows
from layerlab.data.sources import TextChunk
from layerlab.errors import UserError

SIZE, SHORTEST = 13, 8
# A run that more questions than this share, each in words of its own, is a benchmark's own wording.
COMMON = 10
# From here on a question counts as held, not only touched.
HELD = 0.8
# What is known to derive from what, whatever a search finds.
JEC_QA, FED = "jec-qa", {"1-2", "3-6"}
DERIVED = (
    "LawBench 1-2 and 3-6 are taken from JEC-QA: whoever trains on JEC-QA, or on what is made of "
    "it (Lawyer LLaMA, LawGPT), has seen them; leave them out of an average, or say so beside it"
)


class Question(NamedTuple):
    """A question of a benchmark.

    Attributes:
        benchmark: or a subject of it, as `lawbench/1-2`.
        id: within the benchmark.
        text: the question with what belongs to it, without the instruction that all share.
    """

    benchmark: str
    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TouchedQuestion:
    """A question that training text touches.

    Attributes:
        covered: share of its units in runs that training text has too, of those in runs that were
            looked for: wording that many questions share is no part of it.
        document: the first one that has a run of it; the first document has number 1.
        run: that they share, the first of them.
    """

    benchmark: str
    id: str
    covered: float
    document: int
    run: str


@dataclass(frozen=True, kw_only=True)
class BenchmarkOverlap:
    """The questions of one benchmark that were found.

    Attributes:
        questions: that were given; those of the same text are one.
        short: with too few units to tell.
        touched: that share a run with training text.
        held: of which at least 80 % is there.
        covered: mean share of a question's units that is there, of those that could be told.
        common: with no run but those that too many questions share, so that they cannot be told.
    """

    questions: int
    short: int
    touched: int
    held: int
    covered: float
    common: int


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """The questions of some benchmarks that training text contains.

    Attributes:
        documents: of training text that were read.
        size: units of a run.
        benchmarks: by name.
        matches: every question that is touched, those that are held first.
        notes: what the reader has to know.
    """

    documents: int
    size: int
    benchmarks: dict[str, BenchmarkOverlap]
    matches: tuple[TouchedQuestion, ...]
    notes: tuple[str, ...]

    @property
    def held(self) -> tuple[TouchedQuestion, ...]:
        """Return the questions that are there nearly whole."""
        return tuple(one for one in self.matches if one.covered >= HELD)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)

    def table(self) -> Any:
        """Return a table for a terminal."""
        headings = (
            *("benchmark", "questions", "too short", "too common", "touched", "held"),
            "covered",
        )
        rows = [
            (name, *map("{:,}".format, counted), f"{one.covered:.1%}")
            for name, one in self.benchmarks.items()
            for counted in [(one.questions, one.short, one.common, one.touched, one.held)]
        ]
        title = f"{self.documents:,} documents against {len(self.benchmarks)} benchmarks"
        return add_title(title, grid(headings, rows, headings[:1]))


class Index:
    """The runs of all questions, and which of them have been met.

    A run is 13 units: words of scripts with spaces, single characters of Chinese and Japanese. A
    question of 8 to 12 units is one run of its own; a shorter one cannot be told. The same text in
    one benchmark is one question: LawBench holds each with an example before it and without.

    Source: brown20, appendix C (13-grams of words in lower case without punctuation; 8 to 13 for
        short ones; runs that many share are ignored).
    """

    def __init__(self, questions: Iterable[Question], size: int = SIZE) -> None:
        """Read the questions.

        Raises:
            UserError: there are none, or runs of fewer than 8 units are asked for.
        """
        if size < SHORTEST:
            raise UserError(
                f"size is {size}; expected runs of at least {SHORTEST} units: shorter ones are "
                "shared by chance"
            )
        self.size = size
        distinct = {(one.benchmark, one.text): one for one in questions}
        self.questions = [(one.benchmark, one.id, units(one.text)) for one in distinct.values()]
        if not self.questions:
            raise UserError(
                "there is no question to look for; give benchmarks with at least one question"
            )
        self.runs = [self._runs(parts) for _, _, parts in self.questions]
        # The same question in several benchmarks, or files of one, shares its runs with itself.
        texts = {runs.tobytes(): runs for runs in self.runs}
        shared = Counter(key for runs in texts.values() for key in set(runs.tolist()))
        self._ignored = {key for key, n in shared.items() if n > COMMON}
        ignored = np.array([*self._ignored], np.uint64)
        self._sought = [np.isin(runs, ignored, invert=True) for runs in self.runs]
        self._partly = sum(not one.all() for one in self._sought)
        self._common = [len(one) > 0 and not one.any() for one in self._sought]
        self._known: dict[int, np.ndarray] = {}
        for length in {self._length(parts) for _, _, parts in self.questions} - {0}:
            every = np.concatenate(
                [
                    runs
                    for runs, (_, _, parts) in zip(self.runs, self.questions, strict=True)
                    if self._length(parts) == length
                ]
            )
            self._known[length] = np.setdiff1d(every, ignored)
        # The first document that has each run; 0 is none.
        self._first = {n: np.zeros(len(hashes), np.int64) for n, hashes in self._known.items()}

    def read(self, found: np.ndarray, document: int) -> None:
        """Look for the runs in a part of a document, given as a number for each unit."""
        for length, hashes in self._known.items():
            if len(found) < length:
                continue
            runs = windows(found, length)
            places = np.searchsorted(hashes, runs)
            there = places < len(hashes)
            places = places[there][hashes[places[there]] == runs[there]]
            first = self._first[length]
            fresh = np.unique(places[first[places] == 0])
            first[fresh] = document

    def matches(self) -> Iterator[TouchedQuestion]:
        """Yield every question of which a run was met."""
        every = zip(self.questions, self.runs, self._sought, strict=True)
        for (benchmark, name, parts), runs, sought in every:
            length = self._length(parts)
            if not length:
                continue
            documents = self._documents(runs, length)
            hits = np.flatnonzero(documents)
            if not len(hits):
                continue
            covered, usable = (_cover(starts, length, len(parts)) for starts in (documents, sought))
            yield TouchedQuestion(
                benchmark=benchmark,
                id=name,
                covered=float(covered[usable].mean()),
                document=int(documents[hits].min()),
                run=join_units(parts[hits[0] : hits[0] + length]),
            )

    def counts(self, matches: Iterable[TouchedQuestion]) -> dict[str, BenchmarkOverlap]:
        """Return the counts by benchmark, in the order in which the benchmarks were given."""
        found: dict[str, list[TouchedQuestion]] = {}
        for one in matches:
            found.setdefault(one.benchmark, []).append(one)
        given: dict[str, list[int]] = {}
        common = Counter[str]()
        for (benchmark, _, parts), shared in zip(self.questions, self._common, strict=True):
            given.setdefault(benchmark, []).append(self._length(parts))
            common[benchmark] += shared
        return {
            name: BenchmarkOverlap(
                questions=len(lengths),
                short=lengths.count(0),
                common=common[name],
                touched=len(found.get(name, ())),
                held=sum(one.covered >= HELD for one in found.get(name, ())),
                covered=sum(one.covered for one in found.get(name, ()))
                / max(1, len(lengths) - lengths.count(0) - common[name]),
            )
            for name, lengths in given.items()
        }

    def describe_ignored(self) -> list[str]:
        """Say how many runs were not looked for, and in how many questions."""
        if not self._ignored:
            return []
        some, every, only = self._partly, len(self.runs), sum(self._common)
        return [
            f"{len(self._ignored):,} runs stand in more than {COMMON} different questions each: "
            "they are taken for wording that these share, and were not looked for; "
            f"{some:,} of {every:,} questions have some, and {only:,} have no others and cannot be "
            "told"
        ]

    def _documents(self, runs: np.ndarray, length: int) -> np.ndarray:
        """Return the first document of each run of a question; 0 is none."""
        hashes = self._known[length]
        places = np.minimum(np.searchsorted(hashes, runs), max(0, len(hashes) - 1))
        if not len(hashes):
            return np.zeros(len(runs), np.int64)
        return np.where(hashes[places] == runs, self._first[length][places], 0)

    def _runs(self, parts: list[str]) -> np.ndarray:
        length = self._length(parts)
        return windows(keys(parts), length) if length else np.zeros(0, np.uint64)

    def _length(self, parts: list[str]) -> int:
        """Return how many units the runs of a question have; 0 where it is too short."""
        return 0 if len(parts) < SHORTEST else min(len(parts), self.size)


def contamination(
    texts: Iterable[str | TextChunk],
    benchmarks: Iterable[Question | tuple[str, str, str]],
    *,
    size: int = SIZE,
) -> Contamination:
    """Look for the questions of benchmarks in training text.

    A question is touched when one of its runs of 13 units is there, and held when such runs cover
    at least 80 % of it, but for the wording that many questions share. Law names and formulas are
    long enough to touch questions by themselves; what is held is hardly chance. Nothing found is no
    proof: a question in other words is missed.

    Source: brown20, appendix C (touched); llama23, appendix A.6 (80 %).

    Args:
        texts: documents, or pieces of them in order.
        benchmarks: of each question the benchmark, a name within it, and the text.
        size: units of a run.

    Raises:
        UserError: there is no question, or size is below 8.

    Example:
        >>> asked = "Which of these courts hears an appeal against the first ruling of a county?"
        >>> found = contamination(["Exam. " + asked], [("law", "1", asked), ("law", "2", "Why?")])
        >>> found.benchmarks["law"].held, found.benchmarks["law"].short
        (1, 1)
    """
    index = Index((Question(*one) for one in benchmarks), size)
    documents = 0
    rest, tail = "", np.zeros(0, np.uint64)
    for text, first in _pieces(texts):
        if first:
            index.read(np.concatenate([tail, keys(units(rest))]), documents)
            documents += 1
            rest, tail = "", tail[:0]
        lines, rest = _cut(rest + text)
        found = np.concatenate([tail, keys(units(lines))])
        index.read(found, documents)
        tail = found[max(0, len(found) - size + 1) :]
    index.read(np.concatenate([tail, keys(units(rest))]), documents)
    matches = sorted(index.matches(), key=lambda one: -one.covered)
    return Contamination(
        documents=documents,
        size=size,
        benchmarks=index.counts(matches),
        matches=tuple(matches),
        notes=(*index.describe_ignored(), *_notes(name for name, _, _ in index.questions)),
    )


def _cover(runs: np.ndarray, length: int, count: int) -> np.ndarray:
    """Return which of so many units lie in a run of those that count.

    Args:
        runs: by where they begin; those that are 0 do not count.
        length: units of a run.
    """
    covered = np.zeros(count, bool)
    for start in np.flatnonzero(runs):
        covered[start : start + length] = True
    return covered


def _pieces(texts: Iterable[str | TextChunk]) -> Iterator[TextChunk]:
    for one in texts:
        yield one if isinstance(one, TextChunk) else TextChunk(one, True)


def _cut(text: str) -> tuple[str, str]:
    """Return the text up to the last line's end, and the rest, for the next piece to go on."""
    end = text.rfind("\n") + 1 or text.rfind(" ") + 1
    return text[:end], text[end:]


def _notes(names: Iterable[str]) -> tuple[str, ...]:
    """Return what is known of these benchmarks without a search."""
    names_asked = {name.lower().replace("_", "-") for name in names}
    fed = any(
        "lawbench" in name or name.startswith(JEC_QA) or name.split("/")[-1] in FED
        for name in names_asked
    )
    return (DERIVED,) if fed else ()
