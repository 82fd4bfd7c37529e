"""One score of a model over all that it was asked, as a weighted sum of its questions' scores."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.results.question_remarks import sentence_remarks, shared_scores, title_of
from layerlab.records.json_values import Record
from layerlab.records.scores import ModelScore, TaskPart


def score_whole(
    content: Mapping[str, Any], asked: str, seconds: float, remarks: Iterable[str] = ()
) -> ModelScore:
    """Return the score of an evaluation of one model: the mean of its benchmarks and tasks.

    Each benchmark is averaged as its authors do, and a tie of k options counts 1 / k, as in the
    difference of two evaluations.

    Args:
        content: of the evaluation.
        asked: a digest of what was asked, and how.
        seconds: that it took.
        remarks: on its questions.

    Raises:
        UserError: a task has no score of which more is better, or no finite one.
    """
    parts = [
        TaskPart(
            task=str(record["task"]),
            weight=weight,
            score=_score(record),
            questions=_questions(record),
            abstained=record["abstained"],
        )
        for record, weight in _weigh(content)
    ]
    return ModelScore(
        score=math.fsum(part.weight * part.score for part in parts),
        asked=asked,
        seconds=seconds,
        parts=parts,
        remarks=[*remarks, *sentence_remarks(content["subjects"])],
    )


def _weigh(content: Mapping[str, Any]) -> Iterator[tuple[Record, float]]:
    """Yield each task's record with its share of the score."""
    groups: dict[str, list[Record]] = {}
    for record in content["subjects"]:
        groups.setdefault(record["benchmark"], []).append(record)
    tasks: Sequence[Record] = content.get("tasks", ())
    parts = len(groups) + len(tasks)
    for name, records in groups.items():
        by_questions = BENCHMARKS[name].average == "weighted"
        counts = [record["n"] if by_questions else 1 for record in records]
        for record, count in zip(records, counts, strict=True):
            yield record, count / sum(counts) / parts
    for record in tasks:
        yield record, 1 / parts


def _score(record: Record) -> float:
    """Return the score of a task."""
    higher = {row["metric"]: row["higher_is_better"] for row in record.get("measured", ())}
    if higher and not higher.get(record["worth"]):
        raise UserError(
            f"{title_of(record)} has no score of each question of which more is better; name "
            "another task, or score models by a command of your own: command:NAME"
        )
    worth = list(_questions(record).values())
    found = math.fsum(worth) / len(worth) if worth else record["score"]
    if record["lost"] or found is None or not math.isfinite(found):
        raise UserError(
            f"{title_of(record)} has no score: logits of {record['arm']} are NaN or infinite"
        )
    return float(found)


def _questions(record: Record) -> dict[str, float]:
    return {name: float(one) for name, one in shared_scores(record).items()}
