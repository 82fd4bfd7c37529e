"""Stored tensors of a checkpoint: in which files they lie, their kinds and shapes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from layerlab.errors import UserError
from layerlab.loading.weights.weightless import Outline
from layerlab.records.parse import one_line, read_json
from layerlab.system.files import check_regular
from layerlab.validation import short_repr

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_outlines(folder: Path) -> dict[str, Outline]:
    """Read kind and shape of each stored tensor by name; only the heads of the files are read.

    Raises:
        UserError: the folder has no safetensors, they cannot be read, are complex numbers, or hold
            other tensors than the index says.
    """
    found: dict[str, Outline] = {}
    for file, names in list_stored(folder).items():
        with open_store(file) as store:
            _check_names(file, set(names), set(store.keys()))
            for name in names:
                tensor = store.get_slice(name)
                if tensor.get_dtype().startswith("C"):
                    raise UserError(
                        f"{name} in {str(file)!r} holds complex numbers; expected real weights"
                    )
                found[name] = Outline(tensor.get_dtype(), tuple(tensor.get_shape()))
    return found


def list_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights of a checkpoint, its index first.

    Raises:
        UserError: the folder has no safetensors, or an index that is none.
    """
    index = [folder / INDEX] if (folder / INDEX).is_file() else []
    return [*index, *sorted(list_stored(folder))]


def list_stored(folder: Path) -> Mapping[Path, list[str]]:
    """Return the names in each safetensors file of a checkpoint.

    Raises:
        UserError: there is no such file, or an index that is none or stands beside a single file.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            places = dict(read_json(index)["weight_map"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{index} is not an index of safetensors; write it anew") from None
        files: dict[Path, list[str]] = {}
        for name, path in places.items():
            if not isinstance(path, str) or Path(path).name != path:
                raise UserError(f"{index} names {path!r}, which is not a file beside it")
            files.setdefault(folder / path, []).append(name)
        if (folder / SINGLE).exists() and files.keys() != {folder / SINGLE}:
            raise UserError(
                f"{str(folder)!r} holds both {SINGLE} and {INDEX}, and nothing says which of the "
                "two models is meant; move one of them away"
            )
        return files
    file = folder / SINGLE
    if not file.is_file():
        raise UserError(
            f"no {SINGLE} and no {INDEX} in {folder}; pickle files are not opened: "
            "save with save_pretrained(folder), which writes safetensors"
        )
    with open_store(file) as store:
        return {file: list(store.keys())}


def open_store(file: Path) -> Any:
    """Open a safetensors file.

    Raises:
        UserError: it is damaged.
    """
    check_regular(file)
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"the weights of {file} are damaged ({one_line(error)}); copy them anew"
        ) from None


def _check_names(file: Path, named: set[str], stored: set[str]) -> None:
    """Refuse a file whose tensors are not those that the index names: each reader takes others."""
    if named == stored:
        return
    name = min(named ^ stored)
    where = f"is in {str(file)!r}, and {INDEX} names another file or none for it"
    if name in named:
        where = f"is not in {str(file)!r}, where {INDEX} says that it is"
    raise UserError(
        f"the tensor {short_repr(name)} {where}; save the model anew with save_pretrained(folder)"
    )
