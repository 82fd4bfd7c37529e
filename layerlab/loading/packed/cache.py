"""Folders of the cache that hold unpacked models."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from glob import escape
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile, rmtree

from layerlab.console.tables import printable
from layerlab.errors import UserError
from layerlab.system.files import write_folder
from layerlab.system.locks import lock_folder
from layerlab.system.write_errors import WriteError
from layerlab.version import VERSION

HOUR = 3600.0  # seconds for another process that unpacks the same model
KEPT = 30 * 24 * HOUR  # since a model was last asked for
FREE = "set LAYERLAB_CACHE to another folder"
UNPACKED = "unpacked"
SHOWN = 48  # characters of a model's name; a name has at most 255 bytes
_LOG = logging.getLogger("layerlab")


def unpack_once(
    source: Path, files: Iterable[Path], fill: Callable[[Path], None], done: str = "unpacked"
) -> Path:
    """Return the folder of the cache with an unpacked model, filled the first time.

    What nobody has asked for within a month makes room for it.

    Args:
        source: the file or folder that is unpacked.
        files: what is read of it; where one changes, all is unpacked again.
        fill: is handed an empty folder to write the model into.
        done: what happens to it, as the user is told.

    Raises:
        UserError: the cache has no room, or cannot be written.
    """
    from layerlab.system.hardware import cache_folder  # late: it needs torch

    state = [version("transformers"), VERSION]
    for file in files:
        found = file.stat()
        # A copy may keep the first of the times.
        state.append(f"{file.resolve()} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}")
    key = hashlib.sha256("\n".join(state).encode()).hexdigest()[:12]
    whole = source.resolve()
    own = whole.stem if whole.is_file() else whole.name
    folder = cache_folder() / UNPACKED / f"{own[:SHOWN]}-{key}"
    if not folder.is_dir():
        with lock_folder(folder, wait=HOUR, way=FREE):
            for left in folder.parent.glob(f".{escape(folder.name)}.*.partial"):
                rmtree(left, ignore_errors=True)  # of a process that was killed
            if not folder.is_dir():
                _make_room(folder.parent)
                message = printable(f"{source} is {done} once, into {folder}")
                _LOG.warning("%s, which takes up to 4 bytes a parameter", message)
                try:
                    write_folder(folder, fill, "unpacked model")
                except WriteError as error:
                    raise UserError(f"{error.reason}; make room there, or {FREE}") from error
    with suppress(OSError):  # of a cache that is only read
        os.utime(folder)
    return folder


def _make_room(cache: Path) -> None:
    """Remove the models that were last asked for long ago."""
    if cache.is_dir():
        for one in cache.iterdir():
            with suppress(OSError):  # where another process removes it, too
                if one.is_dir() and time.time() - one.stat().st_mtime > KEPT:
                    rmtree(one)


def copy_files(files: Iterable[Path], source: Path, into: Path) -> None:
    """Copy files of a folder to the same places of another."""
    for file in files:
        place = into / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        copyfile(file, place)
