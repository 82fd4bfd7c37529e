"""A run of tasks that is told to stop: it ends at once and in words, what is finished is kept."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from layerlab.pause import Paused

# What schedulers send, and Slurm before the end of a job's time; Windows lacks the last. Python
# itself hears ctrl-c.
HEARD = ("SIGTERM", "SIGUSR1")


class Stopped(KeyboardInterrupt):
    """A signal that was heard; like ctrl-c it passes by whoever catches errors.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def pausing(kept: Path) -> Iterator[None]:
    """An interruption in words.

    Args:
        kept: where finished tasks are.

    Raises:
        Paused: it was interrupted; its code is 128 and the number of the signal.
    """
    try:
        with ExitStack() as stack:
            for name in HEARD:
                stack.enter_context(_heard(name))
            yield
    except KeyboardInterrupt as stop:
        raise Paused(
            f"interrupted; what is finished is kept in {kept}: type the same command to go on",
            128 + getattr(stop, "number", signal.SIGINT),
        ) from None


@contextmanager
def _heard(name: str) -> Iterator[None]:
    """A signal stops what runs, where nobody else listens to it and Python lets us."""
    number = getattr(signal, name, None)
    main = threading.current_thread() is threading.main_thread()
    if number is None or not main or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    signal.signal(number, _stop)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)
