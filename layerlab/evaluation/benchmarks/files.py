"""Files of a benchmark: in its folder, at any depth, or in an archive there.

What is not in the data folder is taken from the Hub, where its authors keep the same files there.

Archives are read in memory and never unpacked, so no name in them can lead outside.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from layerlab.data.archives import is_archive, read_members
from layerlab.data.places import data_folder
from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.spec import Benchmark, Subtask
from layerlab.system.files import read_whole
from layerlab.system.hub import fetch_files


class BenchmarkFile(NamedTuple):
    """A file of a benchmark; `name` is where it lies, as errors repeat it."""

    name: str
    content: bytes


def read_files(
    benchmark: Benchmark, subtask: Subtask, split: str, folder: Path | None = None
) -> list[BenchmarkFile]:
    """Read the files of a split of a subject.

    Args:
        folder: the data folder; LAYERLAB_DATA where none is given.

    Raises:
        UserError: the benchmark has no such split, or a file is not there.
    """
    if split not in benchmark.files:
        raise UserError(
            f"{benchmark.title} has no split {split!r}; expected {' or '.join(benchmark.files)}"
        )
    home = _home(benchmark, folder)
    wanted = [pattern.format(file=subtask.file) for pattern in benchmark.files[split]]
    return [_find(home, path) or _from_afar(benchmark, home, path) for path in wanted]


def is_here(benchmark: Benchmark, folder: Path | None = None) -> bool:
    """Return whether the scored split of a benchmark's first subject is in the data folder."""
    files = benchmark.files[benchmark.split]
    home, first = _home(benchmark, folder), benchmark.subjects[0]
    return all(_find(home, pattern.format(file=first.file)) for pattern in files)


def _home(benchmark: Benchmark, folder: Path | None) -> Path:
    return (folder or data_folder()) / benchmark.folder


def _find(home: Path, wanted: str) -> BenchmarkFile | None:
    direct = home / wanted
    if direct.is_file():  # where it is expected
        return BenchmarkFile(str(direct), _read(direct))
    inside = sorted(path for path in home.rglob("*") if path.is_file()) if home.is_dir() else []
    paths = (path for path in inside if _ends(path.relative_to(home).as_posix(), wanted))
    found = [BenchmarkFile(str(path), _read(path)) for path in paths]
    found += [
        BenchmarkFile(f"{path}:{name}", content)
        for path in filter(is_archive, inside)
        for name, content in _members(path, PurePosixPath(wanted).suffix).items()
        if _ends(name, wanted)
    ]
    if not found:
        return None
    first, *others = found
    if other := next((one.name for one in others if one.content != first.content), None):
        raise UserError(
            f"{first.name} and {other} differ, and nothing says which of them is {wanted}; "
            "move one of them away"
        )
    return first


def _ends(name: str, wanted: str) -> bool:
    """Return whether a path equals another one or ends in it, name by name."""
    return f"/{name}".endswith(f"/{wanted}")


def _read(path: Path) -> bytes:
    try:
        return read_whole(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; copy it anew") from None


def _members(path: Path, ending: str) -> Mapping[str, bytes]:
    stat = path.stat()
    return _unpack(path, ending, stat.st_ctime_ns, stat.st_size)


# Every subject has a file of its own in the same archive.
@lru_cache(maxsize=4)
def _unpack(path: Path, ending: str, changed_ns: int, size_bytes: int) -> Mapping[str, bytes]:
    return dict(read_members(path, lambda name: name.endswith(ending)))


def _from_afar(benchmark: Benchmark, home: Path, wanted: str) -> BenchmarkFile:
    """Fetch a file that the data folder lacks from the Hub, where that has the same files."""
    tried = ""
    if benchmark.hub_files:
        try:
            found = _find(download_benchmark(benchmark), wanted)
        except UserError as error:
            found, tried = None, f" ({str(error).partition(';')[0]})"
        if found:
            return found
    raise UserError(
        f"{benchmark.title} is not here: expected {home / wanted}, or an archive in {home} that "
        f"holds it{tried}; get it from {benchmark.source}, or name its place in LAYERLAB_DATA"
    )


def download_benchmark(benchmark: Benchmark) -> Path:
    """Download a benchmark's files from the Hub, or find the copy that is kept here.

    Raises:
        UserError: neither is to be had.
    """
    return _download(str(benchmark.hub), benchmark.hub_files)


# Only what was found is kept, so that a network that comes back is used.
@cache
def _download(name: str, patterns: tuple[str, ...]) -> Path:
    try:
        return fetch_files(name, patterns, "dataset")
    except UserError as error:
        raise UserError(f"cannot get {name} from the Hub: {error}; get it in another way") from None
