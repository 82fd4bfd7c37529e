"""Tasks of lm-eval in a result: the means of their groups, and their metrics as a terminal's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from layerlab.evaluation.harness.task_result import PER_TEXT
from layerlab.evaluation.metrics.estimates import Mean, with_interval
from layerlab.evaluation.results.averages import WEIGHTED, incomplete, weighted_mean
from layerlab.records.index.task_metrics import is_share
from layerlab.records.json_values import Record


def task_group_rows(records: Iterable[Record], groups: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the means of groups of lm-eval, by model, as their files say.

    Args:
        groups: with `name`, `tasks`, and `metrics`: whether tasks weigh by their questions.
    """
    found: list[dict[str, Any]] = []
    records = list(records)
    for arm in dict.fromkeys(one["arm"] for one in records):
        own = {one["task"]: one for one in records if one["arm"] == arm}
        for group in groups:
            inside = [own[name] for name in group.tasks if name in own]
            for metric, weighted in _list_metrics(inside, group.metrics):
                means = _means(inside, metric)
                if means:
                    its = [one for one in inside if one["task"] in means]
                    row = _row(arm, group, metric, weighted, means)
                    row["lost"] = all(one.get("lost") for one in its)
                    row["share"] = all(is_share(_find_metric(one, metric)) for one in its)
                    found.append(row)
    return found


def _list_metrics(tasks: Sequence[Record], asked: Mapping[str, bool]) -> Iterator[tuple[str, bool]]:
    """Yield the metrics that a group averages as its tasks call them, by each of several filters.

    Args:
        asked: with the filter that is meant behind a comma, where one is named.
    """
    names = dict.fromkeys(row["metric"] for task in tasks for row in task["measured"])
    for metric, weighted in asked.items():
        bare = metric.partition(",")[0]
        for name in names:
            # A task of one filter does not name it.
            if name in (bare, metric) or (metric == bare and name.startswith(f"{bare},")):
                yield name, weighted


def _find_metric(task: Record, metric: str) -> Record:
    found: Record = next(row for row in task["measured"] if row["metric"] == metric)
    return found


def _means(tasks: Iterable[Record], metric: str) -> dict[str, Mean]:
    """Return the means of a metric by task; a metric that is none is not averaged."""
    return {
        task["task"]: Mean(row["value"], row["error"], task["n"], row["effective_n"])
        for task in tasks
        for row in task["measured"]
        if row["metric"] == metric and row["low"] is not None
    }


def _row(
    arm: str, group: Any, metric: str, weighted: bool, means: Mapping[str, Mean]
) -> dict[str, Any]:
    weights = {name: one.n if weighted else 1 for name, one in means.items()}
    how = WEIGHTED if weighted else ""
    average = weighted_mean(means, weights, group.tasks, "tasks", how)
    mean = average.mean
    row = {
        "arm": arm,
        "group": group.name,
        "metric": metric,
        "score": mean.value,
        "error": mean.error,
        **with_interval(mean),
        "n": mean.n,
        "formula": average.formula,
        **average.extent(),
    }
    blank = dict.fromkeys(("score", "error", "low", "high", "effective_n"))
    return row if average.official else {**row, **blank}


def expand_metrics(tasks: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Yield a row for every metric of every task, with what is known of the task."""
    for task in tasks:
        about = {name: value for name, value in task.items() if name not in ("measured", "metrics")}
        for row in task["measured"]:
            yield {**about, **row, "score": row["value"]}


def missing_metric_remarks(tasks: Iterable[Record]) -> Iterator[str]:
    """Say which tasks have no metric by word or byte, or one beyond all numbers, and why."""
    for task in tasks:
        beyond = task.get("beyond", ())
        if beyond:
            yield (
                f"{task['task']}: {', '.join(beyond)} not given for {task['arm']}: more than "
                "1.8e308, as perplexities by word are of texts without spaces between words"
            )
        names = [
            row["metric"]
            for row in task["measured"]
            if row["metric"].partition(",")[0] in PER_TEXT and row["value"] is None
            if row["metric"] not in beyond
        ]
        if names:
            yield (
                f"{task['task']}: {', '.join(names)} not given for {task['arm']}: its tokenizer "
                "does not give the text back, so that tokens do not say which words and bytes "
                "they stand for"
            )


def format_metric(row: Record) -> str:
    """Format a metric with its standard error: a share in percent, any other as it is.

    Example:
        >>> format_metric({"value": 0.25, "error": 0.05, "low": 0.2, "high": 0.4})
        '25.00 +- 5.00'
        >>> format_metric({"value": 23.456, "error": None, "low": None, "high": None})
        '23.46'
    """
    value, error = row["value"], row["error"]
    if row.get("lost"):
        return "not finite"
    if value is None:
        return "-"
    if is_share(row):
        return Mean(value, error, 0).summary()
    return f"{value:.4g}" + (f" +- {error:.2g}" if error else "")


def format_group(row: Record) -> str:
    """Format the mean of a group as the metrics of its tasks are.

    Example:
        >>> row = {"score": 31.25, "error": 2.0, "low": 27.3, "high": 35.2, "complete": True}
        >>> format_group(row), format_group({**row, "complete": False, "parts": 1, "whole": 2})
        ('31.25 +- 2', 'incomplete (1 of 2)')
    """
    return incomplete(row) or format_metric({**row, "value": row["score"]})
