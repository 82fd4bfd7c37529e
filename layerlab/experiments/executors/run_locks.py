"""Locks planned runs, begun or not, against any other executor."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from layerlab.records.heartbeat import LOG
from layerlab.system.locks import lock_folder


@contextmanager
def lock_runs(folders: Iterable[Path]) -> Iterator[None]:
    """Lock the folders of runs, and their logs, before anything is written.

    A worker asks for its folder by itself, but what it says then goes to the log, which is that of
    whoever came first. So a runner asks here, and is told where its user reads it.

    Raises:
        UserError: another runner holds one of them, or a worker is in it.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(lock_folder(folder / LOG))
            # Let go at once: it is the worker's own while it goes on.
            with lock_folder(folder):
                pass
        yield
