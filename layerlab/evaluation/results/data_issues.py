"""Oddities in the files of benchmarks, in lines to stand below their scores."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from layerlab.evaluation.benchmarks.items import (
    describe_odd_items,
    describe_repeated,
    read_items,
    sum_up_alike,
)
from layerlab.evaluation.benchmarks.readers import read_rows
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.lawbench.rows import read_scored_rows


def remarks(
    benchmarks: Iterable[Benchmark], folder: Path | None = None, *, complete: bool = True
) -> list[str]:
    """Return a line for each benchmark and each way in which its questions are odd.

    They are scored as published or left out, so that counts are the official ones.

    Args:
        folder: the data folder; LAYERLAB_DATA where none is given.
        complete: whether all questions were asked, so that their number matters.
    """
    return [
        line
        for one in benchmarks
        for line in (
            *(_compare_count(one, folder) if complete else ()),
            *(describe_repeated(one.title, _list_keys(one, folder)) if complete else ()),
            *(_count_unscored(one, folder) if one.name == "lawbench" else _odd(one, folder)),
        )
    ]


def _compare_count(benchmark: Benchmark, folder: Path | None) -> Iterator[str]:
    """Yield a line where a benchmark has not as many rows as its authors publish."""
    split = benchmark.split
    if benchmark.rows is None:
        return
    there = sum(len(read_rows(benchmark, one, split, folder)) for one in benchmark.subjects)
    if there != benchmark.rows:
        yield (
            f"{benchmark.title}: its split {split} has {there:,} questions here, and "
            f"{benchmark.rows:,} as published; the score is of those here: copy its files anew"
        )


def _list_keys(benchmark: Benchmark, folder: Path | None) -> list[str]:
    """Return of each question what is equal where it stands there again."""
    if benchmark.name == "lawbench":
        rows = (read_scored_rows(one.name, folder=folder).kept for one in benchmark.subjects)
        return [row["prompt"] for kept in rows for row in kept]
    parts = (read_items(benchmark, one, benchmark.split, folder) for one in benchmark.subjects)
    return [repr((one.passage, one.text, one.options)) for items in parts for one in items]


def _odd(benchmark: Benchmark, folder: Path | None) -> Iterator[str]:
    """Return the first question of each kind, and how many more there are."""
    lines = (
        line
        for subtask in benchmark.subjects
        for line in describe_odd_items(benchmark, subtask, benchmark.split, folder)
    )
    return (f"{benchmark.title}: {line}" for line in sum_up_alike(lines))


def _count_unscored(benchmark: Benchmark, folder: Path | None) -> Iterator[str]:
    """Yield a line for each kind of rows that the source leaves out of a task's score."""
    for subtask in benchmark.subjects:
        left_out = read_scored_rows(subtask.name, folder=folder).left_out
        for why, count in Counter(left_out.values()).items():
            rows = "1 row is" if count == 1 else f"{count} rows are"
            yield f"{benchmark.title} {subtask.name}: {rows} left out: {why}"
