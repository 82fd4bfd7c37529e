"""File locks that end with their process: one run per folder, one model at a time."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

from filelock import FileLock, Timeout

from layerlab.errors import UserError
from layerlab.system.files import check_links, resolve
from layerlab.system.write_errors import LONGEST

# What a disk says that knows no locks, as some of clusters do: there it is up to the user.
LOCKLESS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
MORE_FILES = "ask for fewer runs at a time, or have the limit raised that ulimit -n shows"
# Seconds: long enough to try again where the holder has just removed its file.
TIMEOUT = 0.2
# While a model is loaded or built, transformers and accelerate change torch for all threads: how
# parameters are registered and start, the default dtype, who hears of progress.
MODELS = RLock()
_LOOKS = RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Have other threads wait that look into a model; also a decorator.

    Hooks, modes and settings of torch are set meanwhile, and all threads would have them.
    """
    with _LOOKS:
        yield


def is_locked(folder: Path) -> bool | None:
    """Return whether a process holds the lock of a folder, and write nothing.

    None where the system or the disk does not tell.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    try:
        held = os.open(
            name_neighbour(folder.resolve(), "lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        )
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        # A shared lock, and given back at once: two that look do not take each other for a holder.
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(held)
    return False


def name_neighbour(target: Path, kind: str) -> Path:
    """Return a hidden neighbour of a folder; those of long names are told apart by a digest."""
    name = target.name
    if len(name) > LONGEST:
        digest = hashlib.blake2b(os.fsencode(name), digest_size=4).hexdigest()
        name = f"{name[:LONGEST]}-{digest}"
    return target.with_name(f".{name}.{kind}")


def _refuse_others(file: Path, way: str) -> None:
    """Refuse a file of the user's with the name of a lock, which is removed in the end."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_size:
        raise UserError(
            f"{file} is no lock of layerlab, which would have its name; move it away, or {way}"
        )


@contextmanager
def lock_folder(
    folder: Path,
    wait: float = TIMEOUT,
    way: str = "type another --out",
    *,
    named: Path | None = None,
) -> Iterator[None]:
    """Hold the lock of a folder: a hidden file beside it, removed afterwards.

    Args:
        wait: seconds for whoever holds it.
        way: what to do where it cannot be had.
        named: how the folder is called then, where it is a file of it that is locked.

    Raises:
        UserError: another run holds it, it cannot be written there, or it holds a link.
    """
    try:
        target = resolve(folder)
        check_links(target)
        file = name_neighbour(target, "lock")
        file.parent.mkdir(parents=True, exist_ok=True)
        _refuse_others(file, way)
        # A lock by the mere existence of its file would outlive a killed process.
        lock = FileLock(
            file, timeout=wait, poll_interval=TIMEOUT / 4, mode=0o600, fallback_to_soft=False
        )
        lock.acquire()
    except Timeout:
        raise UserError(
            f"another run is writing to {named or folder}; wait until it has ended, or {way}"
        ) from None
    except OSError as error:
        if error.errno not in LOCKLESS:
            remedy = MORE_FILES if error.errno == errno.EMFILE else f"{way}, which is writable"
            reason = error.strerror or error
            raise UserError(f"cannot lock {named or folder}: {reason}; {remedy}") from error
    try:
        yield
    finally:
        # Before it is released: whoever opened it meanwhile sees that it is gone.
        with suppress(OSError):
            file.unlink()
        lock.release()
