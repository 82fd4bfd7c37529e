"""Tasks of lm-eval on the page of an evaluation, and what cannot be told from guessing."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from layerlab.records.index.task_metrics import is_share
from layerlab.records.json_values import Json, Record
from layerlab.report.i18n.language import Label, label, labels
from layerlab.report.pages.adaptation_tables import table

# Metrics that are shares of right answers, and so have a chance level.
ACCURACIES = ("acc", "acc_norm")
NOT_ABOVE, ABOVE = labels("not above chance", "above chance")


def verdict(row: Record) -> Label | None:
    """Return whether an accuracy can be told from guessing; None where it was not tested.

    Example:
        >>> str(verdict({"guessing": {"above": False}})), verdict({"score": 0.5})
        ('not above chance', None)
    """
    found = row.get("guessing")
    return None if found is None else ABOVE if found["above"] else NOT_ABOVE


def explain_verdicts(rows: Iterable[Record]) -> Label | None:
    """Describe the test behind the verdicts; None where nothing was tested."""
    tests = next((row["guessing"]["tests"] for row in rows if row.get("guessing")), 0)
    if not tests:
        return None
    return Label(f"Above chance: exact one-sided test at the 5 % level, Holm over {tests}.")


EXPLAINED = (label("Above chance: exact one-sided test at the 5 % level, Holm over {tests}."),)


def with_normalized(rows: Iterable[Record]) -> Iterator[Record]:
    """Yield every benchmark, and behind it its acc_norm where that is another number."""
    for row in rows:
        yield row
        if found := row.get("acc_norm"):
            title = f"{row['title']} (acc_norm)"
            yield {**found, "arm": row["arm"], "title": title, "lost": row.get("lost")}


def metrics(tasks: Sequence[Record]) -> Iterator[Json]:
    """Yield a row for every metric of every task, as rows of benchmarks are."""
    for task in tasks:
        for one in task["measured"]:
            chance = task.get("chance") if one["metric"] in ACCURACIES else None
            yield {
                **{name: task.get(name) for name in ("arm", "n", "abstained", "shots", "lost")},
                **one,
                "title": f"{task['task']} ({one['metric']})",
                "score": one["value"],
                "chance": chance,
                "share": is_share(one),
            }


def few_shot(shots: Record | None) -> Label | None:
    """Return how many examples a task was asked with, in words; None where it is not known."""
    if not shots:
        return None
    if "told" in shots:
        return Label(shots["told"]) or None
    asked = str(shots["asked"])
    return Label(asked + (f" ({shots['unfit']} too long)" if shots["unfit"] else ""))


def group_table(rows: Sequence[Record], score: Any, span: Any) -> Json:
    """Return the means of groups of lm-eval.

    Args:
        score: formats a share.
        span: formats its interval.
    """
    cells = []
    for row in rows:
        plain = row.get("low") is not None and not (is_share(row) or row.get("lost"))
        pair = [row["score"], None] if plain else [score(row), span(row)]
        cells.append([f"{row['group']} ({row['metric']}): {row['arm']}", *pair, row["n"]])
    head = labels("", "score", "95 % interval", "questions")
    formulas = dict.fromkeys(f"{row['group']}: {row['formula']}." for row in rows)
    return table("task-groups", label("Groups of lm-eval"), head, cells, " ".join(formulas))
