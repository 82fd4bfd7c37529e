"""Writes a folder or a file whole or not at all.

Everything goes into a hidden neighbour first and takes its final name by one rename. What stood
there before steps aside for that moment and comes back if the rename fails.
"""

import errno
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from layerlab.errors import UserError

Like = Callable[[Path], bool]
# What passes once somebody makes room; the last is a limit of the shell.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Of a file that is read whole: bytes.
LARGEST = 256 << 20
# In a folder that is written as a whole: the names of what was written, so that nothing else goes.
OWN = ".written.json"
# How libraries written in Rust (safetensors, tokenizers) name an error of the operating system.
_SYSTEM = re.compile(r"os error (\d+)")
_REASONS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a part of the path is a file",
    errno.ENOTEMPTY: "something else was written there meanwhile",
    errno.ELOOP: "it is a link that leads to itself",
    errno.ENAMETOOLONG: "the name is too long",
}


class WriteError(UserError):
    """The file system refused a write.

    Attributes:
        reason: what could not be written, and why, without what to do.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason


def write_folder(
    folder: Path, fill: Callable[[Path], None], what: str, like: Like | None = None
) -> Path:
    """Write a folder; `fill` is handed an empty one to write into.

    Args:
        what: is written, in words.
        like: tells whether a folder holds an earlier one, whose place it may then take.

    Raises:
        UserError: the folder cannot be written, or holds something that must not be lost.
    """
    with _explain(folder):
        target = folder.resolve()
        _refuse_others(target, folder, what, like)
        with _parents(target), _neighbour(target) as partial:
            partial.mkdir()
            fill(partial)
            if isinstance(like, OnlyOwn):
                own = sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*"))
                (partial / OWN).write_text(json.dumps(own), encoding="utf-8")
            _swap(partial, target)
    return target


def check_folder(folder: Path, what: str, like: Like | None = None) -> None:
    """Raise at once what `write_folder` would raise when the work is done.

    Raises:
        UserError: the folder cannot be written, or holds something that must not be lost.
    """
    with _explain(folder):
        target = folder.resolve()
        check_links(target)
        _refuse_others(target, folder, what, like)
        nearest = next(parent for parent in target.parents if parent.exists())
        with _neighbour(nearest / target.name) as partial:
            partial.mkdir()


def write_file(path: Path, content: str | bytes) -> Path:
    """Write one file; a text in UTF-8.

    Raises:
        UserError: it cannot be written, or a folder has that name.
    """
    with _explain(path):
        target = path.resolve()
        if target.is_dir():
            raise UserError(f"cannot write {path}: it is a folder; give a file name")
        with _parents(target), _neighbour(target) as partial:
            partial.write_bytes(content.encode() if isinstance(content, str) else content)
            partial.replace(target)
    return target


def force_to_disk(path: Path) -> None:
    """Force a file, or the names in a folder, onto the disk itself, so that power may fail."""
    # Windows, and some disks of clusters, cannot be asked for a folder.
    with suppress(OSError) if path.is_dir() else nullcontext():
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def from_here(path: Path) -> str:
    """Return a path as one types it: relative to the current folder where it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):  # it lies elsewhere, or the current folder is gone
        return str(path)


def check_regular(path: Path) -> None:
    """Refuse a path that is no regular file, such as a pipe or a device.

    Raises:
        UserError: it is a device, a pipe or a socket.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # whoever opens it says why
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kinds |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    if (kind := kinds.get(stat.S_IFMT(mode))) is not None:
        raise UserError(f"{str(path)!r} is {kind}; expected a file: copy what it gives into one")


def check_size(path: Path) -> None:
    """Refuse a file that is too large to be read whole.

    Raises:
        UserError: it has more than 256 MiB, or is no file.
    """
    check_regular(path)
    with suppress(OSError, ValueError):
        if path.stat().st_size > LARGEST:
            raise UserError(
                f"{path} has {path.stat().st_size / 2**20:,.0f} MiB; expected at most "
                f"{LARGEST >> 20} MiB: name the file that was meant"
            )


def check_links(folder: Path) -> None:
    """Refuse links inside a folder that is written into; the folder itself may be one.

    What was copied from elsewhere may hold one that leads out of it, and what is written there
    would take the place of a file of the user's own.

    Raises:
        UserError: there is one.
    """
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink():
                raise UserError(
                    f"{path} is a link to {str(path.readlink())!r}, and what is written into "
                    f"{folder} would be written there; delete the link, or name another folder"
                )


@dataclass(frozen=True)
class OnlyOwn:
    """Tells whether a folder holds only what an earlier `write_folder` wrote.

    Attributes:
        also: names of what is written into it later.
    """

    also: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> bool:
        """Return whether the folder holds nothing else that would be lost."""
        return not self.others(folder)

    def others(self, folder: Path) -> list[str]:
        """Return the names of what else the folder holds, in their order."""
        try:
            own = {*json.loads((folder / OWN).read_text("utf-8")), OWN, *self.also}
        except (OSError, ValueError, TypeError, RecursionError):
            own = set()
        return sorted({path.relative_to(folder).as_posix() for path in folder.rglob("*")} - own)


def _refuse_others(target: Path, given: Path, what: str, like: Like | None) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"cannot write a {what} to {given}: it is a file; name a folder")
    if target == Path.cwd() or target in Path.cwd().parents or target.is_mount():
        raise UserError(
            f"cannot put a {what} in place of {given}, which is in use; "
            f"name a folder inside it, such as {given / what}"
        )
    if any(target.iterdir()) and not (like and like(target)):
        held = f"something other than a {what}" if like else "files already"
        raise UserError(f"{given} holds {held}; name a new or an empty folder")


def _swap(partial: Path, target: Path) -> None:
    if not target.exists():
        partial.rename(target)
        return
    aside = _hidden(target)
    target.rename(aside)
    try:
        partial.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name[:80]}.{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def _neighbour(target: Path) -> Iterator[Path]:
    """Yield a temporary name beside `target`, removed in the end."""
    partial = _hidden(target)
    try:
        yield partial
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Make the folders above `target`, and remove them again if the writing fails."""
    made = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for parent in made:
            try:
                parent.rmdir()
            except OSError:
                break
        raise


@contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Turn an error of the file system into one line that says what to do."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and "null" in str(error):
            said = f"cannot write {str(path)!r}: a name cannot hold a null byte"
            raise UserError(said) from error
        found = _system(error)
        if found is None:
            raise
        reason = _REASONS.get(found.errno or 0, found.strerror or str(found))
        remedy = "make room there, or name another place"
        raise WriteError(
            f"cannot write {path}: {reason}",
            remedy if found.errno in FULL else "name another place",
        ) from error


def _system(error: Exception) -> OSError | None:
    """Return the operating system's error, also where a library has wrapped it in its own text."""
    if isinstance(error, OSError):
        return error
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # Path.resolve
        return OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    cause = error.__cause__ or error.__context__
    if isinstance(error, RuntimeError) and isinstance(cause, OSError):  # torch.save
        return cause
    matched = _SYSTEM.search(str(error))
    return OSError(int(matched[1]), os.strerror(int(matched[1]))) if matched else None
