"""Remarks on single questions: ties of options, answers marked in part, or of one batch."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.harness.task_result import ALONE
from layerlab.evaluation.metrics.mark import MARKED, MARKED_PER_TOKEN
from layerlab.records.json_values import Record

TaskNames = tuple[str, ...]


def shared_scores(record: Record) -> dict[str, float]:
    """Return the scores of a task's questions, a tie of k options as 1 / k for the right one.

    Example:
        >>> ties = {"acc": {"1": 0.5}}
        >>> shared_scores({"scores": {"0": 1.0, "1": 1.0}, "worth": "acc", "ties": ties})
        {'0': 1.0, '1': 0.5}
    """
    return {**record["scores"], **record.get("ties", {}).get(record.get("worth"), {})}


def title_of(record: Record) -> str:
    """Return what a reader calls the benchmark of a task, or a task of lm-eval."""
    if "benchmark" in record:
        return BENCHMARKS[record["benchmark"]].title
    return str(record["task"])


def sentence_remarks(records: Iterable[Record]) -> list[str]:
    """Say which tasks are compared by their sentences, and are scored by one F of all edits."""
    tasks = dict.fromkeys(str(one["task"]) for one in records if one.get("worth") == ALONE)
    return [describe_sentences(task) for task in tasks]


def describe_sentences(task: str) -> str:
    """Say of a task of corrections what it is compared by."""
    return (
        f"{task}: compared by the mean of the F of each sentence; its score is one F of all edits "
        "together, which no single sentence has"
    )


def question_remarks(records: Iterable[Record]) -> list[str]:
    """Return a line for every model and score with ties, or with answers that it qualifies."""
    ties, cut = Counter[TaskNames](), Counter[TaskNames]()
    asked, near, written = Counter[TaskNames](), Counter[TaskNames](), Counter[TaskNames]()
    batches: dict[TaskNames, set[int]] = {}
    for one in records:
        named = (str(one["arm"]), title_of(one))
        cut[named] += one.get("overlong") or 0
        asked[named] += one["n"]
        if one.get("near") is not None:
            near[named] += one["near"]
            written[named] += one["n"] - one["shots"]["unfit"]
            batches.setdefault(named, set()).add(one["batch"])
        for metric, count in _count_ties(one).items():
            ties[*named, metric] += count
    return [
        *_tell_ties(ties, asked),
        *_tell_cut(cut, asked),
        *_tell_near(near, written, batches),
    ]


def _count_ties(record: Record) -> dict[str, int]:
    """Return the number of ties by metric; that of a score stands under no name."""
    if "benchmark" not in record:
        return {row["metric"]: row.get("tied", 0) for row in record["measured"]}
    ties = record.get("ties", {}).get(record.get("worth"), {})
    return {"": len(ties), "acc_norm": (record.get("acc_norm") or {}).get("tied", 0)}


def _tell_ties(ties: Counter[TaskNames], asked: Counter[TaskNames]) -> Iterator[str]:
    for (arm, title, metric), count in ties.items():
        of, n = f"{title} ({metric})" if metric else title, asked[arm, title]
        if count:
            yield (
                f"{arm}: {of}: the likeliest options tie at {count:,} of {n:,} questions, exactly "
                "or within the rounding of the arithmetic; the score counts the first of them, the "
                "test against guessing and differences 1 / k for k options"
            )


def _tell_cut(cut: Counter[TaskNames], asked: Counter[TaskNames]) -> Iterator[str]:
    for (arm, title), count in cut.items():
        n, least, more = asked[arm, title], MARKED, MARKED_PER_TOKEN
        if count:
            yield (
                f"{arm}: {title}: {count:,} of {n:,} answers are longer than {least:,} characters "
                f"and {more} for each token that they may have; what lies beyond is not marked"
            )


def _tell_near(
    near: Counter[TaskNames], written: Counter[TaskNames], batches: Mapping[TaskNames, set[int]]
) -> Iterator[str]:
    for (arm, title), count in near.items():
        n, sizes = written[arm, title], ", ".join(map(str, sorted(batches[arm, title])))
        if count:
            yield (
                f"{arm}: {title}: {count:,} of {n:,} written answers hold a near tie of two "
                "tokens; in this precision they may differ with the batch, which is of "
                f"{sizes} here; with --batch-size 1, or in float32, no answer depends on it"
            )
