"""What has to be there before the first question: the engine, the data, the tasks."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.files import read_files
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.harness.options import Options

DATA = "LAYERLAB_DATA"


def engine() -> Any:
    """Import the part that needs lm-eval, which is an extra.

    Raises:
        UserError: it is not installed.
    """
    try:
        from layerlab.evaluation.harness import run as sitting
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("lm_eval", "jieba"):
            raise
        raise UserError(
            f"evaluation needs {error.name}, which is not installed; type "
            "pip install 'layerlab[eval]'"
        ) from None
    return sitting


@contextmanager
def data_from(folder: Path | None) -> Iterator[None]:
    """Let the readers find their files in a folder until the block ends."""
    before = os.environ.get(DATA)
    if folder is not None:
        os.environ[DATA] = str(folder)
    try:
        yield
    finally:
        if folder is not None and before is None:
            del os.environ[DATA]
        elif folder is not None:
            os.environ[DATA] = str(before)


def available(benchmarks: Sequence[Benchmark]) -> tuple[list[Benchmark], list[dict[str, str]]]:
    """Return the benchmarks whose data is here, and the others with the reason.

    Raises:
        UserError: none is.
    """
    there, left_out = [], []
    for benchmark in benchmarks:
        try:
            read_files(benchmark, benchmark.subjects[0], benchmark.split)
            there.append(benchmark)
        except UserError as error:
            left_out.append(_left(benchmark, error))
    if not there:
        _refuse(left_out)
    return there, left_out


def _left(benchmark: Benchmark, error: UserError) -> dict[str, str]:
    return {"benchmark": benchmark.name, "title": benchmark.title, "reason": str(error)}


def _refuse(left_out: Sequence[Mapping[str, str]]) -> None:
    others = [one["title"] for one in left_out[1:]]
    more = f"; nor can {', '.join(others)} be read" if others else ""
    absent = any("is not here" in one["reason"] for one in left_out)
    listed = "; type layerlab evaluate --list to see what is here" if absent else ""
    raise UserError(f"nothing can be asked: {left_out[0]['reason']}{more}{listed}")


def list_tasks(
    sitting: Any, options: Options, benchmarks: Sequence[Benchmark], left_out: list[dict[str, str]]
) -> list[Any]:
    """List the tasks of all benchmarks, in order; a benchmark that cannot be read is left out.

    Raises:
        UserError: none can be read.
    """
    found: list[Any] = []
    for benchmark in benchmarks:
        try:
            own = sitting.TASKS / benchmark.name  # of a folder every file is read
            tasks = sitting.load_tasks(own, options.group(benchmark), options.changes(benchmark))
        except UserError as error:
            left_out.append(_left(benchmark, error))
            continue
        found += [
            sitting.LeafTask(benchmark, part, tasks[benchmark.leaf(part)])
            for part in benchmark.subjects
        ]
    if not found:
        _refuse(left_out)
    return found
