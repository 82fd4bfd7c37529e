"""What has to be there before the first question: the engine, the data, the tasks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.files import read_files
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.harness.options import Options
from layerlab.evaluation.tasks.configs import task_configs


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
            f"evaluation needs {error.name}, which is not installed; type "
            "pip install 'layerlab[eval]'"
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
