"""Specs of benchmarks: subjects, files, way of scoring, average."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from layerlab.errors import UserError
from layerlab.validation import short_repr

SourceGroup = Literal["examination", "knowledge", "reasoning", "understanding", "finance", "law"]
AveragingRule = Literal["macro", "weighted", "lawbench"]
Scoring = Literal["choice_ll", "mean_nll", "gen"]
# How a file of a benchmark is written; reader.py has one function for each.
FileForm = Literal["csv", "headless", "jsonl", "json", "labelled", "parallel"]
SUBJECTS = Path(__file__).with_name("subtasks.toml")


@dataclass(frozen=True, kw_only=True)
class Subtask:
    """A part of a benchmark that is scored by itself: one leaf task.

    Attributes:
        name: in the benchmark's own spelling, as `high_school_physics` or `1-1`.
        english: its name in English.
        chinese: its name in Chinese; empty where the benchmark has none.
        category: the source's heading over several subjects.
        file: what stands for it in the names of the files.
    """

    name: str
    english: str
    chinese: str = ""
    category: str
    file: str


def full_name(name: str, english: str) -> str:
    """Return a subject's name and its English name, once where both say the same.

    Example:
        >>> full_name("college_physics", "College Physics")
        'College Physics'
        >>> full_name("2-1", "Document Proofreading")
        '2-1 Document Proofreading'
    """
    plain = ["".join(filter(str.isalnum, one.casefold())) for one in (name, english)]
    return english if plain[0] == plain[1] else f"{name} {english}".strip()


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark, and all that a run or a table of it has to know.

    Attributes:
        name: as a user types it, kebab-case.
        title: as its authors write it.
        group: the heading of the source over several benchmarks.
        language: of its prompts.
        split: the part that is scored; it has answers.
        rows: of that part, counted in the files at `source`; None where they are not counted.
        first: so many questions of it are scored, where the source scores no more; 0: all.
        shots_split: the part that examples come from, in the order of its file; None: no examples.
        shots: the usual number of examples.
        most_shots: so many examples are there for every subject.
        metric: what the primary metric `score` of its leaves is, in words.
        extra: further metrics of its leaves beside `score`.
        average: how the score of the benchmark is made of those of its subjects.
        scorings: the ways of scoring that it knows, the usual one first.
        options: the number of options of a question; 0 where it differs or there are none.
        explained: whether its examples come with explanations, which `cot` shows.
        licence: of its data.
        source: where its data comes from.
        hub: its name on the Hugging Face Hub, where it has a home there.
        hub_files: which files there are the original ones; none where it has only other tables.
        folder: where it lies in the data folder.
        form: how its files are written.
        files: for every split, the files of a subject, with `{file}` in place of `Subtask.file`.
        subjects: its leaf tasks, in the order of the source.
    """

    name: str
    title: str
    group: SourceGroup
    language: Literal["zh", "en"]
    split: str
    rows: int | None = None
    first: int = 0
    shots_split: str | None = None
    shots: int = 0
    most_shots: int = 0
    metric: str = "accuracy"
    extra: tuple[str, ...] = ()
    average: AveragingRule = "macro"
    scorings: tuple[Scoring, ...] = ("choice_ll", "mean_nll")
    options: int = 4
    explained: bool = False
    licence: str
    source: str
    hub: str | None = None
    hub_files: tuple[str, ...] = ()
    folder: str
    form: FileForm
    files: Mapping[str, tuple[str, ...]] = field(hash=False)
    subjects: tuple[Subtask, ...]

    @property
    def task(self) -> str:
        """Return the name of the benchmark's group in lm-eval.

        Example:
            >>> from layerlab.evaluation.benchmarks.catalog import find_benchmark
            >>> find_benchmark("ax-b").task
            'layerlab_ax_b'
        """
        return f"layerlab_{self.name.replace('-', '_')}"

    def leaf(self, subtask: Subtask) -> str:
        """Return the name of a subject's task in lm-eval.

        Example:
            >>> from layerlab.evaluation.benchmarks.catalog import find_benchmark
            >>> lawbench = find_benchmark("lawbench")
            >>> lawbench.leaf(lawbench.subjects[0])
            'layerlab_lawbench_1_1'
        """
        return f"{self.task}_{subtask.name.replace('-', '_')}"

    def __getitem__(self, name: str) -> Subtask:
        """Return a subject by its name.

        Raises:
            UserError: there is none of that name.
        """
        known = {one.name: one for one in self.subjects}
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, n=1) or list(known)[:1]
        raise UserError(
            f"{self.title} has no subject {short_repr(name)}; "
            f"did you mean {near[0]}, one of its {len(known)}?"
        )


def subjects(benchmark: str) -> tuple[Subtask, ...]:
    """Return the subjects of a benchmark, in the order of their file."""
    return tuple(
        Subtask(name=name, **{"file": name, **settings})
        for name, settings in _TABLE[benchmark].items()
    )


_TABLE: Mapping[str, Mapping[str, Mapping[str, str]]] = MappingProxyType(
    tomllib.loads(SUBJECTS.read_text("utf-8"))
)
