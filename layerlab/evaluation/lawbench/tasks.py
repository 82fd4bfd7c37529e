"""The twenty tasks and how each is marked; their names and levels are declared with the benchmark.

A row is what the source's files hold: an instruction, a question and an answer.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from layerlab.evaluation.lawbench import references
from layerlab.evaluation.lawbench import scoring as judge
from layerlab.evaluation.metrics.amount_match import number_match
from layerlab.evaluation.metrics.mark import Mark
from layerlab.evaluation.metrics.prison_term import term_score
from layerlab.evaluation.metrics.segmentation import JIEBA_LINES

TaskRow = Mapping[str, str]
TaskKind = Literal["generation", "single choice", "label set", "extraction", "regression"]


@dataclass(frozen=True, kw_only=True)
class LawBenchTask:
    """One of the twenty.

    Attributes:
        number: as the source counts, `1-1` to `3-8`.
        metric: in words, as it is printed.
        read: what an answer means; raises `gold.Unreadable` for one of another wording.
        judge: marks an output, given that meaning.
        of_question: whether the judge needs the question too.
        may_be_blank: whether a blank answer is one: that there is nothing to find.
        kept_out: why answers that hold some word are left out of the score, as in the source.
        note: what a reader of the score has to know.
    """

    number: str
    kind: TaskKind
    metric: str
    read: Callable[[str], Any] = str
    judge: Callable[..., Mark]
    of_question: bool = False
    may_be_blank: bool = False
    kept_out: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def score(self, output: str, row: TaskRow) -> Mark:
        """Mark one output.

        Source: fei23.
        """
        question = {"source": row["question"].split("\n")[0]} if self.of_question else {}
        return self.judge(output, self.read(row["answer"]), **question)

    def exclusion_reason(self, answer: str) -> str | None:
        """Return why a row with this answer is not scored, or None where it is."""
        return next((why for word, why in self.kept_out.items() if word in answer), None)


with (Path(__file__).parent / "label.toml").open("rb") as _file:
    LABELS: Mapping[str, list[str]] = tomllib.load(_file)

_ROUGE = f"ROUGE-L F, {JIEBA_LINES}"
_text = partial(judge.text, segment=JIEBA_LINES)
_ABSTAINS = "an empty output counts as an abstention; the source counts none"
_UNMARKED = {"赔偿": "its label is not among the sixteen"}
_ENDLESS = {"死刑": "a death sentence has no months", "无期": "a life sentence has no months"}


def _choose(start: str, options: str) -> dict[str, Any]:
    return {
        "kind": "single choice",
        "metric": "accuracy",
        "read": partial(references.letter, start, options),
        "judge": partial(judge.score_choice, options=options),
    }


def _label(name: str, start: str, end: str, between: str) -> dict[str, Any]:
    return {
        "kind": "label set",
        "metric": "F1 of label sets",
        "read": partial(references.labels, start, end, between),
        "judge": partial(judge.score_label_set, options=LABELS[name]),
    }


def _describe(start: str = "") -> dict[str, Any]:
    return {
        "kind": "generation",
        "metric": _ROUGE,
        "read": partial(references.after, start),
        "judge": _text,
        "note": _ABSTAINS,
    }


def _term(number: str) -> LawBenchTask:
    return LawBenchTask(
        number=number,
        kind="regression",
        metric="1 - log distance / ln 216",
        read=references.months,
        judge=term_score,
        kept_out=_ENDLESS,
        note="terms far off score below 0, as in the source",
    )


_ALL = (
    LawBenchTask(number="1-1", **_describe("答案:")),
    LawBenchTask(number="1-2", **_choose("正确答案：", "ABCD")),
    LawBenchTask(
        number="2-1",
        kind="generation",
        metric="F0.5 of character edits, approximate",
        judge=judge.score_correction,
        of_question=True,
        note="approximate: edits of difflib; the task's score is one F of all edits, as the source "
        "takes it, and not the mean of its sentences",
    ),
    LawBenchTask(
        number="2-2",
        kind="single choice",
        metric="accuracy",
        read=partial(references.label, "争议焦点类别：", "。", LABELS["dispute"]),
        judge=partial(judge.score_choice, options=LABELS["dispute"]),
        kept_out=_UNMARKED,
        note="the source's description says F1, its code computes accuracy",
    ),
    LawBenchTask(number="2-3", **_label("marriage", "类别:", "。", "、")),
    LawBenchTask(
        number="2-4",
        kind="single choice",
        metric="accuracy",
        read=partial(references.label, "", "", LABELS["topic"]),
        judge=partial(judge.score_choice, options=LABELS["topic"]),
    ),
    LawBenchTask(
        number="2-5",
        kind="extraction",
        metric="F1 of characters",
        read=partial(references.after, "回答:"),
        judge=judge.score_characters,
        note=_ABSTAINS,
    ),
    LawBenchTask(
        number="2-6",
        kind="extraction",
        metric="soft F1 of entities",
        read=references.entities,
        may_be_blank=True,
        judge=partial(judge.score_entities, types=LABELS["entity"]),
        note="an entity ends at a space or a line, so answers on one line lose points",
    ),
    LawBenchTask(number="2-7", **_describe()),
    LawBenchTask(number="2-8", **_choose("[正确答案]", "ABCDE")),
    LawBenchTask(number="2-9", **_label("event", "", "", ";")),
    LawBenchTask(
        number="2-10",
        kind="extraction",
        metric="soft F1 in order",
        read=references.parts,
        judge=judge.score_triggers,
        note=_ABSTAINS,
    ),
    LawBenchTask(
        number="3-1",
        kind="label set",
        metric="F1 of article numbers",
        read=references.articles,
        judge=judge.score_articles,
    ),
    LawBenchTask(number="3-2", **_describe()),
    LawBenchTask(
        number="3-3",
        **_label("charge", "罪名:", "", ";"),
        note="a charge that stands inside another one is found with it, and costs precision",
    ),
    _term("3-4"),
    _term("3-5"),
    LawBenchTask(number="3-6", **_choose("正确答案:", "ABCD")),
    LawBenchTask(
        number="3-7",
        kind="regression",
        metric="accuracy",
        read=references.amount,
        judge=number_match,
    ),
    LawBenchTask(number="3-8", **_describe()),
)
TASKS: Mapping[str, LawBenchTask] = {task.number: task for task in _ALL}
