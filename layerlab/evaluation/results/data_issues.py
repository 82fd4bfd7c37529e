"""What is odd in the files of benchmarks, in lines to stand below their scores."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from layerlab.evaluation.benchmarks.items import oddities
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.lawbench.rows import read_scored_rows


def remarks(benchmarks: Iterable[Benchmark], folder: Path | None = None) -> list[str]:
    """Return a line for each benchmark and each way in which its questions are odd.

    They are scored as published or left out, so that counts are the official ones.

    Args:
        folder: the data folder; LAYERLAB_DATA where none is given.
    """
    return [
        line
        for one in benchmarks
        for line in (_count_unscored(one, folder) if one.name == "lawbench" else _odd(one, folder))
    ]


def _odd(benchmark: Benchmark, folder: Path | None) -> Iterator[str]:
    """Yield the first question of each kind, and how many more there are."""
    found: dict[str, list[str]] = {}
    for subject in benchmark.subjects:
        for line in oddities(benchmark, subject, benchmark.split, folder):
            found.setdefault(line.rpartition("; ")[2], []).append(line)
    for lines in found.values():
        more = len(lines) - 1
        others = f"; so {'is' if more == 1 else 'are'} {more} more" if more else ""
        yield f"{benchmark.title}: {lines[0]}{others}"


def _count_unscored(benchmark: Benchmark, folder: Path | None) -> Iterator[str]:
    """Yield a line for each kind of rows that the source leaves out of a task's score."""
    for subject in benchmark.subjects:
        left_out = read_scored_rows(subject.name, folder=folder).left_out
        for why, count in Counter(left_out.values()).items():
            rows = "1 row is" if count == 1 else f"{count} rows are"
            yield f"{benchmark.title} {subject.name}: {rows} left out: {why}"
