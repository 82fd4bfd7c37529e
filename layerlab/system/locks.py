"""File locks that end with their process: one run per folder, one model at a time."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

from filelock import FileLock, Timeout

from layerlab.errors import UserError
from layerlab.system.files import check_links

# What a disk says that knows no locks, as some of clusters do: there it is up to the user.
LOCKLESS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
# Seconds: long enough to try again where the holder has just removed its file.
TIMEOUT = 0.2
# While a model is loaded or built, transformers and accelerate change torch for all threads: how
# parameters are registered and start, the default dtype, who hears of progress.
MODELS = RLock()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder: a hidden file beside it, removed afterwards.

    Raises:
        UserError: another run holds it, it cannot be written there, or it holds a link.
    """
    try:
        target = folder.resolve()
        check_links(target)
        file = target.with_name(f".{target.name[:80]}.lock")
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file, timeout=TIMEOUT, poll_interval=TIMEOUT / 4, mode=0o600)
        lock.acquire()
    except Timeout:
        raise UserError(
            f"another run is writing to {folder}; wait until it has ended, or type another --out"
        ) from None
    except (OSError, RuntimeError) as error:  # the latter of links that lead to themselves
        if getattr(error, "errno", None) not in LOCKLESS:
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
        lock.release()
