"""The results that lm-eval writes beside answers: what they say of these, and whether it is so."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from layerlab.errors import UserError
from layerlab.evaluation.harness.task_result import is_number
from layerlab.evaluation.paired.answers import TaskAnswers
from layerlab.records.json_values import Record
from layerlab.records.parse import one_line, read_json

# Tables by the names of tasks; a file that has none of them is no results.
_TABLES = ("results", "configs", "higher_is_better", "n-samples")
# Metrics that are means over questions where a task does not say how they come about.
_MEANS = ("acc", "acc_norm", "exact_match")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def read_results(path: Path) -> Record:
    """Read the results of one date; empty where there is no such file.

    Raises:
        UserError: it is there, and cannot be read or is something else.
    """
    try:
        found = read_json(path)
        if not isinstance(found, dict):
            raise ValueError("it is no table")
        for name in _TABLES:
            table = found.get(name, {})
            if not isinstance(table, dict) or not all(
                isinstance(one, dict) for one in table.values()
            ):
                raise ValueError(f"{name} is no table of tasks")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {one_line(error)}; expected the results that lm-eval wrote "
            "beside the answers: copy them again, or move the file away"
        ) from None
    return found


def pick_directions(results: Record, task: str) -> dict[str, bool]:
    """Return whether more is better of a question, by metric, where the results say it."""
    directions = results.get("higher_is_better", {}).get(task, {})
    ways = _list_ways(task, results)
    return {
        # What makes a perplexity of all questions is the log-likelihood of each.
        str(name): one or ways.get(str(name)) == "perplexity"
        for name, one in directions.items()
        if isinstance(one, bool)
    }


def describe_marking(task: str, results: Record) -> dict[str, str]:
    """Return how answers to a task are marked, by the names of settings that results tell."""
    config, versions = results.get("configs", {}).get(task, {}), results.get("versions")
    found = {name: config.get(name) for name in ("filter_list", "metric_list", "repeats")}
    found["version"] = versions.get(task) if isinstance(versions, Mapping) else None
    # Of a function its address in memory is written, too.
    return {
        name: _ADDRESS.sub("", json.dumps(one, sort_keys=True))
        for name, one in found.items()
        if one is not None
    }


def list_result_tasks(results: Record) -> set[str]:
    """Return the tasks that results tell of, whether their answers lie beside or not."""
    return {str(task) for task in results.get("n-samples", {})}


def check_answers(task: str, found: TaskAnswers, results: Record, path: Path) -> None:
    """Hold answers against the results beside them: how many they are, and their means.

    Raises:
        UserError: they are others.
    """
    count = results.get("n-samples", {}).get(task, {}).get("effective")
    if is_number(count) and count != len(found.answers):
        raise UserError(
            f"{found.path} holds the answers to {len(found.answers):,} questions, and {path.name} "
            f"tells of {count:,}; {_restore()}"
        )
    for name, claim in _list_means(task, found, results):
        mean = fmean(one.scores[name] for one in found.answers.values())
        if not math.isclose(mean, claim, rel_tol=1e-6, abs_tol=1e-9):
            raise UserError(
                f"the mean {name} of the questions of {found.path} is {mean:.6g}, and {path.name} "
                f"says {claim:.6g}; {_restore()}"
            )


def _restore() -> str:
    return (
        "expected answers and results of one evaluation: copy both again, or move the results away "
        "to judge by the answers alone"
    )


def _list_means(task: str, found: TaskAnswers, results: Record) -> Iterator[tuple[str, float]]:
    """Yield the metrics that are means over all questions, with what the results say of each."""
    metrics = results.get("results", {}).get(task, {})
    ways = _list_ways(task, results)
    each = [one.scores for one in found.answers.values()]
    for name in each[0]:
        metric = name.partition(",")[0]
        way = ways.get(metric) or ("mean" if metric in _MEANS else None)
        keys = [key for key in metrics if key == name or key.partition(",")[0] == name]
        # Of several filters it is not said which one these are.
        if way == "mean" and len(keys) == 1 and all(name in one for one in each):
            if is_number(value := metrics[keys[0]]):
                yield name, float(value)


def _list_ways(task: str, results: Record) -> dict[str, object]:
    """Return how the score of all questions comes about, by metric, where the results say it."""
    listed = results.get("configs", {}).get(task, {}).get("metric_list") or ()
    return {
        str(one.get("metric")): one.get("aggregation") for one in listed if isinstance(one, Mapping)
    }
