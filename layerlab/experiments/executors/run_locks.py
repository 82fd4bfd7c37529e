"""Locks planned runs, begun or not, against any other executor."""

import resource
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from layerlab.records.heartbeat import LOG
from layerlab.system.locks import lock_folder

OTHERS = 1024  # open files of a process beside its locks


@contextmanager
def lock_runs(folders: Iterable[Path]) -> Iterator[None]:
    """Lock the folders of runs, and their logs, before anything is written.

    A worker asks for its folder by itself, but what it says then goes to the log, which is that of
    whoever came first. So a runner asks here, and is told where its user reads it.

    Raises:
        UserError: another runner holds one of them, or a worker is in it.
    """
    folders = list(folders)
    _allow_open_files(len(folders) + OTHERS)
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(lock_folder(folder / LOG, named=folder))
            # Let go at once: it is the worker's own while it goes on.
            with lock_folder(folder):
                pass
        yield


def _allow_open_files(count: int) -> None:
    """Raise this process's limit of open files to so many, or as near as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        count = min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < count:
        with suppress(ValueError, OSError):  # a system may permit less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
