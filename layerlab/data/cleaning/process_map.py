"""A function over many batches, in as many processes as there are cores, in order."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import chain, islice
from typing import Any, TypeVar

from layerlab.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
# Batches that wait for each process, so that none is idle while the results are taken.
AHEAD = 2
# Seconds between two looks at whether the parent was killed.
LOOK = 2


def map_in_processes(function: Callable[[T], R], batches: Iterable[T]) -> Iterator[R]:
    """Yield the result of each batch in order; few batches are in memory at once.

    One process where loky is not installed, there is one core, or there is one batch. All cores
    that this process may use are taken, at most LOKY_MAX_CPU_COUNT.

    Raises:
        UserError: a process was killed, mostly for want of memory.
    """
    waiting = iter(batches)
    first = list(islice(waiting, 2))
    every = chain(first, waiting)
    processes = _count_processes() if len(first) > 1 else 1
    if processes == 1:
        yield from map(function, every)
        return
    from loky import ProcessPoolExecutor
    from loky.process_executor import TerminatedWorkerError

    results: deque[Any] = deque()
    pool = ProcessPoolExecutor(processes, initializer=_watch_parent, initargs=(os.getpid(),))
    try:
        for one in every:
            results.append(pool.submit(function, one))
            if len(results) > AHEAD * processes:
                yield results.popleft().result()
        while results:
            yield results.popleft().result()
    except TerminatedWorkerError as error:
        raise UserError(
            f"one of {processes} processes was killed, mostly for want of memory; set "
            f"LOKY_MAX_CPU_COUNT={processes // 2} and type the same again"
        ) from error
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def _count_processes() -> int:
    if find_spec("loky") is None:
        return 1
    from loky import cpu_count

    return int(cpu_count())


def _watch_parent(parent: int) -> None:
    """End this process soon after its parent, which may be killed before it can say so."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
