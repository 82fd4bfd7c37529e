"""Places for what is half-written, and reasons why a write failed, by the operating system."""

import errno
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from layerlab.errors import UserError

# What passes once somebody makes room; the last is a limit of the shell.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# How libraries written in Rust (safetensors, tokenizers) name an error of the operating system.
_SYSTEM = re.compile(r"os error (\d+)")
# How torch does that writes a file itself: without the number, and mostly for want of room.
_UNFINISHED = re.compile(r"PytorchStreamWriter failed|inline_container.*unexpected pos")
REASONS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    # torch's own writer does not say which of the two.
    errno.EFBIG: "no more could be written, for want of room or by a limit (ulimit -f)",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a part of the path is a file",
    errno.ENOTEMPTY: "something else was written there meanwhile",
    errno.ENAMETOOLONG: "the name is too long",
}

LONGEST = 78  # characters of a name that what lies beside it has: in Chinese, 234 of 255 bytes
NO_TEMPORARY = "no folder for temporary files can be written to; set TMPDIR to one that can"


class WriteError(UserError):
    """The file system refused a write.

    Attributes:
        reason: what could not be written, and why, without what to do.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason


def find_os_error(error: Exception) -> OSError | None:
    """Return the operating system's error, also where a library has wrapped it in its own text."""
    if isinstance(error, OSError):
        return error
    cause = error.__cause__ or error.__context__
    if isinstance(error, RuntimeError) and isinstance(cause, OSError):  # torch.save
        return cause
    if isinstance(error, RuntimeError) and _UNFINISHED.search(str(error)):
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    matched = _SYSTEM.search(str(error))
    return OSError(int(matched[1]), os.strerror(int(matched[1]))) if matched else None


def check_out(folder: Path) -> None:
    """Refuse a folder for results in whose place, or above it, a file stands.

    Raises:
        UserError: there is one.
    """
    for part in (folder, *folder.parents):
        if os.path.isfile(part):  # noqa: PTH113 (of any name)
            raise UserError(f"{part} is a file; give --out a folder for the results")


def reason_of(error: OSError) -> str:
    """Return why the file system refused, in words."""
    return REASONS.get(error.errno or 0, error.strerror or str(error))


@contextmanager
def explain_write(path: Path) -> Iterator[None]:
    """Turn an error of the file system into one line that says what to do."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and "null" in str(error):
            message = f"cannot write {str(path)!r}: a name cannot hold a null byte"
            raise UserError(message) from error
        found = find_os_error(error)
        if found is None:
            raise
        room = "make room there, or " if found.errno in FULL else ""
        raise WriteError(
            f"cannot write {path}: {reason_of(found)}", f"{room}name another place"
        ) from error


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder for temporary files, removed in the end.

    Raises:
        UserError: none can be made, or there is no room for what is written into it.
    """
    with make_temporary(tempfile.TemporaryDirectory) as folder, explain_temporary(folder):
        yield folder


def make_temporary(make: Callable[[], Any]) -> Any:
    """Return what `tempfile` makes.

    Raises:
        UserError: none can be made.
    """
    try:
        return make()
    except OSError as error:
        raise UserError(NO_TEMPORARY) from error


@contextmanager
def explain_temporary(folder: str) -> Iterator[None]:
    """Turn want of room in a folder for temporary files into one line that says what to do."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        found = find_os_error(error)
        # What has a name lies elsewhere, or says it itself.
        if found is None or found.errno not in FULL or found.filename is not None:
            raise
        raise WriteError(
            f"cannot write temporary files to {Path(folder).parent}: {reason_of(found)}",
            "make room there, or set TMPDIR to another folder",
        ) from error


def partial_name(target: Path) -> Path:
    """Return a hidden name beside something that is written, which nothing else has."""
    return target.with_name(f".{target.name[:LONGEST]}.{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def neighbour(target: Path) -> Iterator[Path]:
    """Yield a temporary name beside `target`, removed in the end."""
    partial = partial_name(target)
    try:
        yield partial
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


@contextmanager
def make_parents(target: Path) -> Iterator[None]:
    """Make the folders above `target`, and remove them again if the writing fails."""
    made = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for parent in made:
                parent.rmdir()
        raise
