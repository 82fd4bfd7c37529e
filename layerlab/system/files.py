"""Writes a folder or a file whole or not at all.

Everything goes into a hidden neighbour first and takes its final name by one rename. What stood
there before steps aside for that moment and comes back if the rename fails.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from layerlab.errors import UserError
from layerlab.system.write_errors import (
    LONGEST,
    explain_write,
    make_parents,
    neighbour,
    partial_name,
)

File = str | os.PathLike[str]
Like = Callable[[Path], bool]
# What stands under a name: a folder's device, number and last change; nothing where nothing does.
Standing = tuple[int, ...]
LARGEST = 256 << 20  # bytes of a file that is read whole
# In a folder that is written as a whole: what was written, with its hashes: nothing else goes.
OWN = ".written.json"


def write_folder(
    folder: Path,
    fill: Callable[[Path], None],
    what: str,
    like: Like | None = None,
    before: Standing | None = None,
) -> Path:
    """Write a folder; `fill` is handed an empty one to write into.

    Args:
        what: is written, in words.
        like: tells whether a folder holds an earlier one, whose place it may then take.
        before: what stood there when the work began, as `check_folder` said; else what does now.

    What came into the folder since then stays there, an earlier one that another process wrote too,
    and what was made then gets a folder beside it.

    Raises:
        UserError: the folder cannot be written, or holds something that must not be lost.
    """
    with explain_write(folder):
        target = resolve(folder)
        if before is None:
            _refuse_others(target, folder, what, like)
            before = _stand(target)
        with make_parents(target), neighbour(target) as partial:
            partial.mkdir()
            fill(partial)
            with suppress(OSError):  # safetensors heeds no umask: nobody else could read a model
                for weights in partial.rglob("*.safetensors"):
                    weights.chmod(partial.stat().st_mode & 0o666)
            if isinstance(like, OnlyOwn):
                own = {name: _identify(path) for name, path in _paths(partial).items()}
                (partial / OWN).write_text(json.dumps(own), encoding="utf-8")
            if not _swap(partial, target, like, before):
                kept = _beside(target)
                partial.rename(kept)
                raise UserError(
                    f"{folder} was given files while this ran, and they stay; the {what} is in "
                    f"{from_here(kept)}: move one of the two"
                )
    return target


def check_folder(folder: Path, what: str, like: Like | None = None) -> Standing:
    """Raise at once what `write_folder` would raise when the work is done; return what is there.

    Raises:
        UserError: the folder cannot be written, or holds something that must not be lost.
    """
    with explain_write(folder):
        target = resolve(folder)
        check_links(target)
        _refuse_others(target, folder, what, like)
        nearest = next(parent for parent in target.parents if parent.exists())
        with neighbour(nearest / target.name) as partial:
            partial.mkdir()
        return _stand(target)


def write_file(path: Path, content: str | bytes, like: Like | None = None) -> Path:
    """Write one file; a text in UTF-8.

    Args:
        like: tells whether a file that is there may go; any may where it is left out. One that may
            not stays, and what was made gets a name beside it.

    Raises:
        UserError: it cannot be written, or a folder or a link to nothing has that name.
    """
    with _half_written(path, content) as (partial, target):
        if like is not None and target.exists() and not like(target):
            partial.rename(kept := _beside(target, target.suffix))
            raise UserError(
                f"{path} came there while this ran, and stays; what was to be written is in "
                f"{from_here(kept)}: move one of the two"
            )
        partial.replace(target)
    return target


def write_files(folder: Path, contents: Mapping[str, str | None]) -> None:
    """Write files by their paths in a folder, or none of them, as where the disk fills up.

    The first takes its name first; what is None is removed.

    Raises:
        UserError: as `write_file`.
    """
    with ExitStack() as stack:
        places = [(folder / name, text) for name, text in contents.items()]
        written = [
            stack.enter_context(_half_written(at, text)) for at, text in places if text is not None
        ]
        for path in (at for at, text in places if text is None):
            path.unlink(missing_ok=True)
        for partial, target in written:
            partial.replace(target)


@contextmanager
def _half_written(path: Path, content: str | bytes) -> Iterator[tuple[Path, Path]]:
    """Write a file under a temporary name; yield that, and the one that it is to take."""
    with explain_write(path):
        target = _file_target(path)
        with make_parents(target), neighbour(target) as partial:
            partial.write_bytes(content.encode() if isinstance(content, str) else content)
            yield partial, target


def check_file(path: Path) -> None:
    """Raise at once what `write_file` would raise when the work is done.

    Raises:
        UserError: it cannot be written, or a folder or a link to nothing has that name.
    """
    with explain_write(path):
        target = _file_target(path)
        # Rights do not tell of folders in which nobody can make a file: so one is made.
        nearest = next(parent for parent in target.parents if parent.exists())
        with neighbour(nearest / target.name) as partial:
            partial.touch()


def _file_target(path: Path) -> Path:
    """Return where a file is written."""
    target = resolve(path, "file")
    if target.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; give a file name")
    return target


def resolve(path: Path, what: str = "folder") -> Path:
    """Return where something is written; through no link to nothing, which may lead anywhere.

    Raises:
        UserError: the path goes through one.
    """
    for one in (path, *path.parents):
        if one.is_symlink() and not one.exists():
            raise UserError(
                f"{one} is a link to {str(one.readlink())!r}, where nothing is; delete the link, "
                f"or name another {what}"
            )
    return path.resolve()


def force_to_disk(path: Path) -> None:
    """Force a file, or the names in a folder, onto the disk itself, so that power may fail."""
    # Windows, and some disks of clusters, cannot be asked for a folder.
    with suppress(OSError) if path.is_dir() else nullcontext():
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def unshare(path: Path) -> None:
    """Give a file that is changed in place a copy of its own where another name shares it."""
    if path.stat().st_nlink > 1:
        with neighbour(path) as partial:
            shutil.copyfile(path, partial)
            partial.replace(path)


def force_folder_to_disk(folder: Path) -> None:
    """Force a folder with all that it holds onto the disk."""
    for path in (*folder.rglob("*"), folder):
        force_to_disk(path)


def from_here(path: Path) -> str:
    """Return a path as one types it: relative to the current folder where it lies below."""
    with suppress(OSError, ValueError):  # it lies elsewhere, or the current folder is gone
        return str(path.relative_to(Path.cwd()))
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


def read_whole(path: Path) -> bytes:
    """Read a file that may be of a stranger.

    Raises:
        OSError: it cannot be read.
        UserError: it is a pipe or a device, or has more than 256 MiB.
    """
    check_size(path)
    return path.read_bytes()


def check_links(folder: Path) -> None:
    """Refuse links, pipes and devices inside a folder that is written into; it may be a link.

    What was copied from elsewhere may hold a link that leads out of it, and what is written there
    would take the place of a file of the user's own. Whoever opens a pipe waits without end.

    Raises:
        UserError: there is one.
    """
    for inside, folders, names in os.walk(folder):
        for name in (*folders, *names):
            check_link(Path(inside, name), folder)


def check_link(path: Path, folder: Path) -> None:
    """Refuse a file in a folder that is written into if it is a link, a pipe or a device.

    Raises:
        UserError: it is one.
    """
    if path.is_symlink():
        raise UserError(
            f"{path} is a link to {str(path.readlink())!r}, and what is written into "
            f"{folder} would be written there; delete the link, or name another folder"
        )
    check_regular(path)


@dataclass(frozen=True)
class OnlyOwn:
    """Tells whether a folder holds only what an earlier `write_folder` wrote, as it wrote it.

    Earlier versions kept names without hashes: there a file counts as written by its name.
    """

    def __call__(self, folder: Path) -> bool:
        """Return whether the folder holds nothing else that would be lost."""
        return not self.others(folder)

    def others(self, folder: Path) -> list[str]:
        """Return the names of what else the folder holds or was changed in it, in their order.

        Raises:
            UserError: its table is a pipe or a device.
        """
        try:
            own = json.loads(read_whole(folder / OWN))
            names = {*own, OWN}
        except (OSError, ValueError, TypeError, RecursionError):
            own, names = {}, set[str]()
        hashes = own if isinstance(own, dict) else {}
        return sorted(
            name
            for name, path in _paths(folder).items()
            if name not in names
            or (name in hashes and hashes[name] != _identify(path, hashes[name]))
        )


def _paths(folder: Path) -> dict[str, Path]:
    """Return all that a folder holds, by its path in there."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}


def _identify(path: Path, size_before: object = None) -> str:
    """Return the SHA-256 of a file, or its size (0.1 kept that of large ones); else its kind."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return "folder" if stat.S_ISDIR(found.st_mode) else "no file"
    if size_before == (size := f"{found.st_size} bytes"):
        return size
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    if not _may_go(target, like):
        held = f"something other than a {what}" if like else "files already"
        raise UserError(f"{given} holds {held}; name a new or an empty folder")


def _may_go(folder: Path, like: Like | None) -> bool:
    return not any(folder.iterdir()) or bool(like and like(folder))


def _stand(target: Path) -> Standing:
    """Return what is known of a folder however it is called: it has a number of its own."""
    with suppress(FileNotFoundError):
        found = target.stat()
        return (found.st_dev, found.st_ino, found.st_mtime_ns)
    return ()


def _swap(partial: Path, target: Path, like: Like | None, before: Standing) -> bool:
    """Give a folder its name; return whether what is there now may go, without which it stays."""
    if not target.exists():
        return _take_name(partial, target)
    if not target.is_dir():
        return False
    # A process that is killed here leaves the earlier one under a name that says what it is.
    aside = target.with_name(f"{target.name[:LONGEST]}.{uuid.uuid4().hex[:8]}.earlier")
    target.rename(aside)
    try:
        # Under this name nothing more comes in by the other.
        if not _may_go(aside, like if _stand(aside) == before else None):
            _take_name(aside, target)
            return False
        if not _take_name(partial, target):
            return False
    except BaseException:
        _take_name(aside, target)
        raise
    shutil.rmtree(aside.rename(partial_name(target)), ignore_errors=True)
    return True


def _take_name(partial: Path, target: Path) -> bool:
    """Give a folder its name; return whether no other came there in this very moment."""
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _beside(target: Path, ending: str = "") -> Path:
    """Return a name beside a folder or a file that nothing has."""
    number, name = 2, target.name.removesuffix(ending)
    while (found := target.with_name(f"{name}-{number}{ending}")).exists():
        number += 1
    return found
