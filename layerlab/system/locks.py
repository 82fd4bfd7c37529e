"""One run per folder, one model at a time: locks that end with the process that holds them."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

from layerlab.errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows; there two runs at once are up to the user
    fcntl = None  # type: ignore[assignment]

# What a disk says that knows no locks, as some of clusters do: there it is up to the user too.
LOCKLESS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
# While a model is loaded or built, transformers and accelerate change torch for all threads: how
# parameters are registered and start, the default dtype, who hears of progress.
MODELS = RLock()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, in a hidden neighbour that is gone afterwards.

    Raises:
        UserError: another run holds it, or it cannot be written there.
    """
    try:
        target = folder.resolve()
        file = target.with_name(f".{target.name[:80]}.lock")
        file.parent.mkdir(parents=True, exist_ok=True)
        held = _take(file)
    except BlockingIOError:
        raise UserError(
            f"another run is writing to {folder}; wait until it has ended, or type another --out"
        ) from None
    except (OSError, RuntimeError) as error:  # the latter of links that lead to themselves
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot lock {folder}: {reason}; type another --out, which is writable"
        ) from error
    try:
        yield
    finally:
        # Before it is released: whoever opened it meanwhile sees that it is gone.
        with suppress(OSError):
            file.unlink()
        os.close(held)


def _take(file: Path) -> int:
    """Return an open file that nobody else has locked, and that still has this name."""
    while True:
        held = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if fcntl is None or not _locks(held):
                return held
            if file.exists() and os.path.samestat(os.fstat(held), file.stat()):
                return held
        except BaseException:
            os.close(held)
            raise
        os.close(held)


def _locks(held: int) -> bool:
    """Return whether it is locked now; not where the disk knows no locks."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in LOCKLESS:
            raise
        return False
    return True
