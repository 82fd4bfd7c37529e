"""Preparation before the first question: the engine, the data, the tasks."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.errors import UserError, describe_install
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.benchmarks.files import read_files
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.benchmarks.suites import SUITES, select_benchmarks
from layerlab.evaluation.harness.options import Options
from layerlab.evaluation.lm_eval_tasks.request import check_tasks
from layerlab.evaluation.tasks.configs import task_configs

# Functions of lm-eval that make a score of all answers together, and of none alone.
OF_ALL = ("bleu", "chrf", "chrfpp", "ter", "f1_score", "matthews_corrcoef", "brier_score")


def engine() -> Any:
    """Import the part that needs lm-eval, which is an extra.

    Raises:
        UserError: it is not installed.
    """
    try:
        from layerlab.evaluation.harness import run as harness
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("lm_eval", "jieba"):
            raise
        raise UserError(
            f"evaluation needs {error.name}, which is not installed; {describe_install('eval')}"
        ) from None
    return harness


def available(
    benchmarks: Sequence[Benchmark], folder: Path | None = None
) -> tuple[list[Benchmark], list[dict[str, str]]]:
    """Return the benchmarks whose data is here, and the others with the reason.

    Args:
        folder: the data folder; LAYERLAB_DATA where none is given.

    Raises:
        UserError: none is.
    """
    there, left_out = [], []
    for benchmark in benchmarks:
        try:
            read_files(benchmark, benchmark.subjects[0], benchmark.split, folder)
            there.append(benchmark)
        except UserError as error:
            left_out.append(_describe_left_out(benchmark, error))
    if not there:
        _refuse(left_out)
    return there, left_out


def _describe_left_out(benchmark: Benchmark, error: UserError) -> dict[str, str]:
    return {"benchmark": benchmark.name, "title": benchmark.title, "reason": str(error)}


def _refuse(left_out: Sequence[Mapping[str, str]]) -> None:
    others = [one["title"] for one in left_out[1:]]
    more = f"; nor can {', '.join(others)} be read" if others else ""
    absent = any("is not here" in one["reason"] for one in left_out)
    listed = "; type layerlab evaluate --list to see what is here" if absent else ""
    raise UserError(f"nothing can be asked: {left_out[0]['reason']}{more}{listed}")


def list_tasks(
    harness: Any,
    options: Options,
    benchmarks: Sequence[Benchmark],
    left_out: list[dict[str, str]],
    folder: Path | None = None,
) -> list[Any]:
    """List the tasks of all benchmarks, in order; a benchmark that cannot be read is left out.

    Args:
        folder: the data folder; LAYERLAB_DATA where none is given.

    Raises:
        UserError: none can be read.
    """
    found: list[Any] = []
    where = {} if folder is None else {"folder": str(folder)}
    for benchmark in benchmarks:
        try:
            configs = task_configs(benchmark, options.way(benchmark))
            tasks = harness.load_tasks(configs, {**options.changes(benchmark), **where})
        except UserError as error:
            left_out.append(_describe_left_out(benchmark, error))
            continue
        found += [
            harness.BenchmarkTask(benchmark, part, tasks[benchmark.leaf(part)])
            for part in benchmark.subjects
        ]
    if not found:
        _refuse(left_out)
    return found


def check_whole(name: str) -> tuple[str | None, str | None]:
    """Return the suite or the tasks of lm-eval that a name stands for, all of whose data is here.

    Whether the data of lm-eval's own tasks is here `load_whole` tells.

    Returns:
        One of the two, and None.

    Raises:
        UserError: there is neither, or the data of a benchmark is not here.
    """
    known = [*SUITES, *BENCHMARKS]
    parts = [word.strip().lower() for word in name.split(",")]
    if not all(word in known for word in parts):
        try:
            check_tasks(name)
        except UserError:
            if any(difflib.get_close_matches(word, known, n=1) for word in parts):
                select_benchmarks(name)  # which tells the nearest
            raise
        return None, name
    _, left_out = available(select_benchmarks(name))
    _refuse_part(left_out)
    return name, None


def load_whole(name: str) -> list[Any]:
    """Load the tasks that a name stands for, each with its questions.

    Raises:
        UserError: as `check_whole`; a task cannot be loaded, or measures nothing of each question
            of which more is better.
    """
    (suite, tasks), harness = check_whole(name), engine()
    if suite is not None:
        left_out: list[dict[str, str]] = []
        found = list_tasks(harness, Options(), select_benchmarks(suite), left_out)
        _refuse_part(left_out)
        return found
    named, _ = harness.load_named(tasks)
    for one in named:
        higher, sums = one.task.higher_is_better(), one.task.aggregation()
        single = [getattr(sums.get(name), "__name__", "") not in OF_ALL for name in higher]
        if higher and not any(map(all, zip(higher.values(), single, strict=True))):
            raise UserError(
                f"less is better, or no question has a score by itself, in all that "
                f"{one.task.task_name} measures ({', '.join(higher)}); name another task, or a "
                "command of your own: command:NAME"
            )
    return [harness.LmEvalTask(one.task, one.groups, one.remarks) for one in named]


def _refuse_part(left_out: Sequence[Mapping[str, str]]) -> None:
    if left_out:
        raise UserError(left_out[0]["reason"])
