"""Folders of PEFT's adapters, and the models that come of merging them."""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from layerlab.errors import UserError, describe_install
from layerlab.loading.folder_checks import CONFIG, LEARNED
from layerlab.loading.packed.cache import copy_files, unpack_once
from layerlab.records.checkpoint_names import ADAPTER, BASE
from layerlab.records.parse import one_line, read_json
from layerlab.system.logs import quiet_libraries
from layerlab.system.untrusted.trust import WEIGHTS
from layerlab.system.write_errors import find_os_error
from layerlab.validation import short_repr

# Of what lies in both folders, endings of the files that no copy is made of.
WRITTEN = (f"/{CONFIG}", f"/{ADAPTER}", ".index.json", *WEIGHTS)


def merge_adapter(
    folder: Path, find_model: Callable[[str], Path], list_read: Callable[[Path], list[Path]]
) -> Path:
    """Return the folder of the cache with an adapter merged into its model, the first time.

    What is merged is in float32, so that nothing of what was learned is rounded away.

    Args:
        find_model: finds the folder of the model that the adapter's configuration names.
        list_read: lists the files of a folder that a loader may read.

    Raises:
        UserError: there is no such model, the adapter does not fit it, or the cache has no room.
    """
    name, base = find_base(folder, find_model)
    if not (folder / LEARNED).is_file():
        raise UserError(
            f"{str(folder)!r} holds an adapter without {LEARNED}; expected its weights as "
            "safetensors: save it anew (PEFT's save_pretrained) in a place that you trust"
        )
    files = {source: list_read(source) for source in (base, folder)}
    return unpack_once(
        folder,
        [*files[base], *files[folder]],
        partial(_fill, folder, name, base, files),
        done=f"merged into its model {name}",
    )


def find_base(folder: Path, find_model: Callable[[str], Path]) -> tuple[str, Path]:
    """Return the name and the folder of the model that an adapter changes.

    Args:
        find_model: finds the folder of the model that the adapter's configuration names.

    Raises:
        UserError: it names none, or one that is not there.
    """
    file = folder / ADAPTER
    try:
        config = read_json(file)
    except ValueError as error:
        raise UserError(f"{str(file)!r} is no JSON: {one_line(error)}; copy it anew") from error
    name = config.get(BASE) if isinstance(config, dict) else None
    way = _show_way(folder)
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"the adapter {str(folder)!r} names no model; {way}")
    if config.get("revision") not in (None, "main"):
        raise UserError(
            f"the adapter {str(folder)!r} means the revision {short_repr(config['revision'])} of "
            f"{name!r}; fetch that into a folder, leave revision out, and {way}"
        )
    try:
        return name, find_model(name)
    except UserError as error:
        raise UserError(f"the model of the adapter {str(folder)!r}: {error}; or {way}") from error


def _show_way(folder: Path) -> str:
    """Return what to type where another model is meant."""
    return f"write its folder or Hub id as {BASE} into {str(folder / ADAPTER)!r}"


def _fill(folder: Path, name: str, base: Path, files: dict[Path, list[Path]], into: Path) -> None:
    for source, read in files.items():
        copy_files([one for one in read if not str(one).endswith(WRITTEN)], source, into)
    with _explain(folder, name), quiet_libraries(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PEFT, which knows other ways to use what it made
        from layerlab.loading.packed.merging import merge

        model, dtype = merge(folder / LEARNED, base)
        model.save_pretrained(into)
    config = read_json(into / CONFIG)
    config["dtype"] = dtype  # as before, and not that of the first weight
    (into / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")


@contextmanager
def _explain(folder: Path, name: str) -> Iterator[None]:
    """Say in one line why an adapter cannot be merged."""
    what = f"the adapter {str(folder)!r} cannot be merged into {name!r}"
    try:
        yield
    except MemoryError as error:
        raise UserError(
            f"{what}: {error or 'there is too little memory'}; take a machine with more"
        ) from error
    except ModuleNotFoundError as error:
        raise UserError(
            f"{what} without the package {error.name}; {describe_install('sft')}, or pip install "
            f"{error.name}"
        ) from error
    except UserError as error:  # of the model
        raise UserError(f"{what}: {error}; {_show_way(folder)}") from error
    except Exception as error:  # of files that may hold anything
        if find_os_error(error):
            raise
        raise UserError(
            f"{what}: {one_line(error).rstrip('.')}; expected an adapter of that model that PEFT "
            "can merge"
        ) from error
