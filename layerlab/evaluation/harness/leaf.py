"""Tasks ready to be asked: a subject of a benchmark of ours, or any task of lm-eval."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from layerlab.evaluation.benchmarks.spec import Benchmark, full_name
from layerlab.evaluation.benchmarks.spec import Subtask as Part
from layerlab.evaluation.harness.options import Options
from layerlab.evaluation.harness.task_result import (
    ALONE,
    CHOICES,
    ROLLING,
    TaskResult,
    metric_rows,
    normalized_scores,
)
from layerlab.evaluation.lawbench.aggregate import corpus_mean
from layerlab.evaluation.metrics.estimates import Mean, mark_accuracy, with_interval

LIKELIEST = "choice_ll"
# What lm-eval calls tasks whose answers are written.
WRITTEN = "generate_until"


class LeafTask:
    """One task with its questions.

    Attributes:
        task: as lm-eval has it.
    """

    task: Any

    def questions(self, limit: int | None) -> int:
        """Return how many questions will be asked."""
        count = len(self.task.eval_docs)
        return count if limit is None else min(count, limit)

    @property
    def generates(self) -> bool:
        """Return whether the model writes its answers."""
        return str(self.task.OUTPUT_TYPE) == WRITTEN

    @property
    def samples(self) -> bool:
        """Return whether the answers that it writes are drawn at random."""
        return bool((self.task.config.generation_kwargs or {}).get("do_sample"))

    @property
    def reads(self) -> bool:
        """Return whether whole texts are read, and nothing is asked."""
        return str(self.task.OUTPUT_TYPE) == ROLLING


@dataclass(frozen=True)
class BenchmarkTask(LeafTask):
    """One subject of one benchmark of ours."""

    benchmark: Benchmark
    subject: Part
    task: Any

    @property
    def name(self) -> str:
        """Return what a reader calls it."""
        title, part = self.benchmark.title, self.subject.english
        return title if part == title else f"{title} {part}"

    @property
    def stem(self) -> str:
        """Return the beginning of the names of its files."""
        return self.benchmark.leaf(self.subject).removeprefix("layerlab_")

    def scoring(self, options: Options) -> str:
        """Return how its answers are scored."""
        return options.choose_scoring(self.benchmark)

    def cot(self, options: Options) -> bool:
        """Return whether its examples are explained."""
        return options.shows_explanations(self.benchmark)

    def examples(self, options: Options) -> int | None:
        """Return how many examples to show; None as the task declares."""
        return options.examples(self.benchmark)

    def record(self, found: TaskResult, scoring: str, options: Options) -> dict[str, Any]:
        """Return what it came to, as results keep it."""
        mean = score_task(found)
        record = {
            "task": self.task.task_name,
            "benchmark": self.benchmark.name,
            "subject": self.subject.name,
            "english": self.subject.english,
            "called": full_name(self.subject.name, self.subject.english),
            "category": self.subject.category,
            **_score(mean),
            **_about(found),
            "metrics": dict(found.metrics),
        }
        if inside := options.inside(self.benchmark):
            record["shots"] |= {"asked": inside, "mean": float(inside), "least": inside}
        if scoring == LIKELIEST and found.guesses:
            normalized = normalized_scores(found.samples)
            if normalized is not None:
                tied = len(found.ties.get("acc_norm", ()))
                record["acc_norm"] = {**_score(mark_accuracy(normalized)), "tied": tied}
        return record


@dataclass(frozen=True)
class LmEvalTask(LeafTask):
    """Any task of lm-eval, asked as it is declared.

    Attributes:
        groups: names of the groups that were asked for and that it belongs to.
        remarks: on questions that are left out, and on those that stand there twice.
    """

    task: Any
    groups: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return what a reader calls it."""
        return str(self.task.task_name)

    @property
    def stem(self) -> str:
        """Return the beginning of the names of its files, whatever its author called it."""
        return re.sub(r"[^A-Za-z0-9_]", "_", self.name)[:80]

    def scoring(self, options: Options) -> str:
        """Return how its answers are scored."""
        return LIKELIEST if self._kind == CHOICES else self._kind

    def cot(self, options: Options) -> bool:
        """Return whether its examples are explained, which the task alone says."""
        return False

    def examples(self, options: Options) -> int | None:
        """Return how many examples to show; None as the task declares."""
        return options.shots if isinstance(options.shots, int) else None

    def record(self, found: TaskResult, scoring: str, options: Options) -> dict[str, Any]:
        """Return what it came to, as results keep it, scored by the metric it is known by."""
        rows = metric_rows(found, self.task.higher_is_better())
        values = {row["metric"]: row["value"] for row in rows}
        worth = values.get(found.worth, next(iter(values.values()), None))
        blank = {"score": worth, "error": None, "low": None, "high": None, "effective_n": None}
        # A perplexity of all questions is no mean of what each of them is worth.
        means = [row["metric"] for row in rows if "share" in row]
        mean = mark_accuracy(list(found.scores.values())) if found.worth in means else None
        return {
            "task": self.name,
            "groups": list(self.groups),
            "kind": self._kind,
            **({**blank, "n": len(found.samples)} if mean is None else _score(mean)),
            **_about(found),
            "measured": rows,
            "metrics": dict(found.metrics),
        }

    @property
    def _kind(self) -> str:
        return str(self.task.OUTPUT_TYPE)


def score_task(found: TaskResult) -> Mean:
    """Return a task's score: the mean over its questions, or one F of all their edits.

    Source: fei23 for corrections, whose samples have counts of edits as their score.
    """
    counts = [one["score"] for one in found.samples if ALONE in one]
    return corpus_mean(counts) if counts else mark_accuracy(list(found.scores.values()))


def _score(mean: Mean) -> dict[str, Any]:
    return {"score": mean.value, "error": mean.error, **with_interval(mean), "n": mean.n}


def _about(found: TaskResult) -> Mapping[str, Any]:
    """Return what is known of how the questions were asked."""
    asked = len(found.samples)
    return {
        "abstained": found.abstained,
        "chance": found.chance,
        "guesses": [list(pair) for pair in found.guesses],
        "shots": asdict(found.shots),
        "limited": found.limited,
        "unsound": found.unsound,
        "lost": found.unsound > 0 and found.unsound + found.shots.unfit >= asked,
        "overlong": found.overlong,
        "near": found.near,
        "batch": found.batch,
        "beyond": list(found.beyond),
        "cut": dict(found.cut),
        "worth": found.worth,
        "ties": {name: dict(ties) for name, ties in found.ties.items()},
        "scores": dict(found.scores),
    }
