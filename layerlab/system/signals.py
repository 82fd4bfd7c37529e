"""Signals that interrupt."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def hear(name: str) -> Iterator[None]:
    """A signal ends what runs, where nobody else listens to it and Python lets us.

    Raises:
        SystemExit: it came; the code is 128 and its number.
    """
    number = getattr(signal, name, None)  # Windows lacks some
    main = threading.current_thread() is threading.main_thread()
    if number is None or not main or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    signal.signal(number, _leave)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


class Signalled(SystemExit):
    """The end that a signal asked for."""


def _leave(number: int, frame: FrameType | None) -> None:
    raise Signalled(128 + number)
