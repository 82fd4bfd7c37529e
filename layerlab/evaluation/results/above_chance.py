"""Accuracies against guessing: exact tests, corrected for all of a result."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.metrics.guessing import LEVEL, Guesses, guessing_p
from layerlab.evaluation.results.question_remarks import shared_scores
from layerlab.experiments.statistics.multiple_comparisons import holm
from layerlab.records.json_values import Record

ACCURACIES = ("acc", "acc_norm")


def judge_guessing(
    benchmarks: Sequence[dict[str, Any]],
    subjects: Sequence[Record],
    tasks: Sequence[Mapping[str, Any]],
) -> None:
    """Add to every accuracy with a chance level whether it can be told from guessing.

    Each gets `guessing`: p, p after Holm's correction over all accuracies of the result, how many
    those are, and whether it is `above` chance at the level of 0.05. Of a tie of k options, which
    tells nothing, 1 / k counts as right.

    Args:
        benchmarks: rows of official averages.
        subjects: results of their subjects.
        tasks: results of tasks of lm-eval, with their metrics as `measured`.
    """
    tested = [*_benchmarks(benchmarks, subjects), *_tasks(tasks)]
    corrected = holm([p for _, p in tested])
    for (row, p), after in zip(tested, corrected, strict=True):
        row["guessing"] = {"p": p, "holm": after, "tests": len(tested), "above": after < LEVEL}


def list_tested(content: Record, arm: str, *, above: bool) -> list[str]:
    """Return the accuracies of a model that were tested, by name.

    Args:
        above: those above chance; else those that cannot be told from guessing.
    """
    found = [
        str(row["title"])
        for row in content["benchmarks"]
        if row["arm"] == arm and _is_judged(row, above)
    ]
    for task in content.get("tasks", ()):
        inside = [one["metric"] for one in task["measured"] if _is_judged(one, above)]
        if task["arm"] == arm and inside:
            found.append(f"{task['task']} ({', '.join(inside)})")
    return found


def _is_judged(row: Record, above: bool) -> bool:
    return bool(row.get("guessing")) and row["guessing"]["above"] == above


def count_tests(content: Record) -> int:
    """Return how many accuracies were tested together."""
    rows = [*content["benchmarks"], *(o for t in content.get("tasks", ()) for o in t["measured"])]
    return max((row["guessing"]["tests"] for row in rows if row.get("guessing")), default=0)


def _benchmarks(
    rows: Sequence[dict[str, Any]], subjects: Sequence[Record]
) -> Iterator[tuple[dict[str, Any], float]]:
    for row in rows:
        if row.get("chance") is None or row.get("without"):
            continue
        weighted = BENCHMARKS[row["benchmark"]].average == "weighted"
        parts = [
            _guesses(one, one["n"] if weighted else 1)
            for one in subjects
            if (one["arm"], one["benchmark"]) == (row["arm"], row["benchmark"])
        ]
        if all(part is not None for part in parts):
            yield row, guessing_p([part for part in parts if part is not None])


def _guesses(one: Record, weight: float) -> Guesses | None:
    """Return a subject as whoever guesses meets it; None where it is not marked right or wrong."""
    if not set(one["scores"].values()) <= {0, 1}:
        return None
    # What is written and not chosen, as AGIEval's cloze, no guess gets right.
    chances = [(float(chance), int(count)) for chance, count in one.get("guesses") or ()]
    right = math.fsum(shared_scores(one).values())
    return Guesses(right, chances or [(one["chance"] or 0.0, one["n"])], weight)


def _tasks(tasks: Sequence[Record]) -> Iterator[tuple[dict[str, Any], float]]:
    for task in tasks:
        chances = [(float(chance), int(count)) for chance, count in task["guesses"]]
        for row in task["measured"]:
            if chances and row["metric"] in ACCURACIES and row["value"] is not None:
                share = row.get("shared", row["value"])
                yield row, guessing_p([Guesses(share * task["n"], chances)])
