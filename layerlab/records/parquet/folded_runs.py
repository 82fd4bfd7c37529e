"""Packs the runs of a comparison into two Parquet files, and unpacks them byte for byte."""

from collections.abc import Collection, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError
from layerlab.records.json_values import json_text
from layerlab.records.parquet.pages import page_sizes
from layerlab.records.parse import json_of, one_line
from layerlab.records.result import EVENTS, FILE, MANIFEST
from layerlab.records.run_files import RECIPE, RUN, RUNS
from layerlab.records.scores import SCORES
from layerlab.system.files import LARGEST, check_regular, check_size, write_file, write_folder
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pyarrow

MANIFESTS, CURVES = "manifests.parquet", "curves.parquet"
# A row of manifests.parquet holds the text of each, under its name.
TEXTS = (RUN, RECIPE, MANIFEST, FILE)
# What a run may have; where none has it there is no such column.
OPTIONAL = (SCORES,)
ROWS = 4096  # at once


def fold_runs(root: Path) -> int:
    """Write the finished runs of a comparison into two files beside `runs/`, and count the runs.

    `runs/` is left as it is. A row of curves.parquet is a line of a journal: its kind and update
    are columns, so that curves can be drawn from it, and the line itself is beside them.

    Args:
        root: folder of a comparison.

    Raises:
        UserError: no run is finished, one has no text in UTF-8, files that are there hold others,
            or they cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    found = [folder for folder in sorted((root / RUNS).glob("*")) if (folder / FILE).is_file()]
    if not found:
        raise UserError(f"no run in {root} is finished, so there is none to fold; let one end")
    _check_folded(root, {folder.name for folder in found})
    kept = [name for name in OPTIONAL if any((folder / name).exists() for folder in found)]
    heads = [
        {
            "run": folder.name,
            **{name: _text(folder / name) for name in TEXTS},
            **{name: _text(folder / name) if (folder / name).exists() else None for name in kept},
        }
        for folder in found
    ]
    lines = [line for folder in found for line in _lines(folder)]
    for name, rows in ((MANIFESTS, heads), (CURVES, lines)):
        content = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), content, compression="zstd")
        write_file(root / name, content.getvalue().to_pybytes())
    return len(found)


def unfold_runs(root: Path) -> None:
    """Unpack the `runs/` of a comparison, unless they are there.

    Args:
        root: folder of a comparison.

    Raises:
        UserError: a file cannot be read, names a run that is no plain name, or no room is left.
    """
    if (root / RUNS).exists() or not (root / MANIFESTS).exists():
        return
    heads, lines = _read(root / MANIFESTS), _read(root / CURVES)
    for name in heads.column("run").to_pylist():
        if name in {"", ".", ".."} or PurePath(name).name != name:
            raise UserError(
                f"cannot unfold {root / MANIFESTS}: {short_repr(name)} is no name of a folder; "
                "get the file again from where it came"
            )
    journals: dict[str, list[str]] = {}
    for name, text in zip(*(lines.column(one).to_pylist() for one in ("run", "text")), strict=True):
        journals.setdefault(name, []).append(text)

    def fill(folder: Path) -> None:
        for head in heads.to_pylist():
            own = folder / head["run"]
            own.mkdir()
            for name in (*TEXTS, *OPTIONAL):
                if head.get(name) is not None:
                    (own / name).write_bytes(head[name].encode())
            (own / EVENTS).write_bytes("\n".join(journals.get(head["run"], ())).encode())

    try:
        write_folder(root / RUNS, fill, "the runs of a comparison")
    except UserError:
        if not (root / RUNS).exists():  # else another process was quicker
            raise


def _check_folded(root: Path, names: Collection[str]) -> None:
    """Refuse to replace folded runs that are not among those to be folded.

    Raises:
        UserError: some are not, or the file cannot be read.
    """
    if not (root / MANIFESTS).exists():
        return
    lost = sorted(set(_read(root / MANIFESTS).column("run").to_pylist()) - set(names))
    if lost:
        raise UserError(
            f"{root / MANIFESTS} holds {len(lost)} runs that are not in {root / RUNS}, the first "
            f"{short_repr(lost[0])}, and would lose them; move {MANIFESTS} and {CURVES} away, or "
            f"move {RUNS} away to have it unfolded from them"
        )


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal; the last is what stands after the last end of a line."""
    for text in _text(folder / EVENTS).split("\n"):
        try:
            event = json_of(text)
        except ValueError:
            event = {}
        found = event if isinstance(event, dict) else {}
        kind, update = found.get("kind"), found.get("update")
        yield {
            "run": folder.name,
            "kind": json_text(kind) if isinstance(kind, str) else None,
            "update": update if type(update) is int and update in range(1 << 63) else None,
            "text": text,
        }


def _text(path: Path) -> str:
    check_regular(path)
    try:
        return path.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot fold {path}: {one_line(error)}; take the run out of {path.parent.parent}"
        ) from None


def _batches(
    file: "pyarrow.parquet.ParquetFile", path: Path, texts: "pyarrow.Schema"
) -> Iterator["pyarrow.RecordBatch"]:
    """Yield the rows of a file of texts, as long as they are no more than a run could write.

    Raises:
        UserError: they unpack to more; a word that rows share counts for each of them.
    """
    large = UserError(
        f"{path} unpacks to more than {LARGEST >> 20} MiB; get the file again from where it came"
    )
    stored = max(1, *page_sizes(path, file.metadata))
    if stored > LARGEST:
        raise large
    left, rows = LARGEST, min(ROWS, LARGEST // stored)
    for batch in file.iter_batches(rows, columns=texts.names):
        selected = batch.select(texts.names).cast(texts)
        left -= selected.nbytes
        if left < 0:
            raise large
        selected.validate(full=True)  # that texts are UTF-8
        yield selected


def _read(path: Path) -> "pyarrow.Table":
    """Read a file of texts, of which none is missing but those that a run may lack."""
    import pyarrow
    import pyarrow.parquet

    columns = ["run", "text"] if path.name == CURVES else ["run", *TEXTS]
    try:
        check_size(path)
        with pyarrow.parquet.ParquetFile(path) as file:
            there = [name for name in OPTIONAL if name in file.schema_arrow.names]
            texts = pyarrow.schema([(name, pyarrow.string()) for name in (*columns, *there)])
            table = pyarrow.Table.from_batches(_batches(file, path, texts), texts)
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        raise UserError(
            f"cannot unfold {path}: {one_line(error)}; get the file again from where it came"
        ) from None
    if any(table.column(name).null_count for name in columns):
        raise UserError(f"cannot unfold {path}: a value is missing; get the file again")
    return table
