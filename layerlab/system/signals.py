"""Handles signals that ask to stop: at once, or between two updates."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from layerlab.errors import Interrupted

# What terminals, schedulers, Slurm before the end of a job's time and a terminal that is closed
# send; Windows lacks the last two.
SENT = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
# Seconds in which a second signal is the first again: Slurm and systemd signal every process, and
# what started this one (torchrun, or layerlab itself) passes on what it heard.
ECHO = 1.0


class Stopped(SystemExit):
    """A signal asked to stop.

    Its code is 128 and the number of the signal: 130 after ctrl-c, 143 after SIGTERM.
    """


@contextmanager
def hear(name: str) -> Iterator[None]:
    """Raise `Stopped` on a signal that has no other handler.

    Raises:
        Stopped: it came.
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


class CtrlC(KeyboardInterrupt):
    """An interruption; where it is of Python's own class, Python ends with no code, but a signal.

    So it does wherever one came while a text was executed, whoever caught it.
    """


@contextmanager
def hear_ctrl_c() -> Iterator[list[int]]:
    """Note that Ctrl-C was typed, and raise it: what is imported then may swallow it."""
    typed: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield typed
        return

    def note(number: int, frame: FrameType | None) -> None:
        typed.append(number)
        raise CtrlC

    signal.signal(signal.SIGINT, note)
    try:
        yield typed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def explain_interruption(kept: str, further: str = "") -> Iterator[None]:
    """Explain an interruption in one line.

    Args:
        kept: what is.
        further: what else may be typed.

    Raises:
        Interrupted: it was interrupted; its code is 128 and the number of the signal.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        code = getattr(stop, "code", None)
        raise Interrupted(
            f"interrupted; {kept}: type the same command to go on{further}",
            code if isinstance(code, int) else 128 + signal.SIGINT,
        ) from None


@contextmanager
def hear_interruptions(kept: Path) -> Iterator[None]:
    """Hear every signal that asks to stop, and explain an interruption in one line.

    Args:
        kept: where finished tasks are.

    Raises:
        Interrupted: as `explain_interruption`.
    """
    with ExitStack() as stack:
        stack.enter_context(explain_interruption(f"what is finished is kept in {kept}"))
        for name in SENT[1:]:  # Python itself hears ctrl-c
            stack.enter_context(hear(name))
        yield


class GracefulStop:
    """Listens for signals while it is open; the loop looks at `wanted` between two updates.

    The first signal is noted; one that is no echo of it ends the process at once. Outside the main
    thread, where Python lets nobody listen, it hears nothing; nor the terminal under nohup.

    Args:
        cut_off: whether an error after a signal comes of it: terminals and launchers signal a whole
            group, whose other processes do not wait for the update to end.

    Attributes:
        signal: that was heard, or None.

    Example:
        >>> with GracefulStop() as halt:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     halt.wanted
        True
    """

    def __init__(self, cut_off: Callable[[BaseException], bool] = lambda error: False) -> None:
        self.signal: signal.Signals | None = None
        self._cut_off = cut_off
        self._signal_time = 0.0
        self._former: dict[signal.Signals, Any] = {}

    @property
    def wanted(self) -> bool:
        """Return whether a signal asked to stop."""
        return self.signal is not None

    def leave(self) -> None:
        """End the run.

        Raises:
            Stopped: always, with the code that says which signal it was.
        """
        raise Stopped(128 + (self.signal or 0)) from None

    def __enter__(self) -> "GracefulStop":
        if threading.current_thread() is threading.main_thread():
            for name in SENT:
                number = getattr(signal, name, None)
                if number is None or (
                    name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN
                ):
                    continue
                self._former[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, former in self._former.items():
            # None: it was set by something other than Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if former is None else former)
        self._former.clear()
        if self.wanted and isinstance(error, Exception) and self._cut_off(error):
            self.leave()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._signal_time = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._signal_time > ECHO:
            # Nothing is lost: checkpoints are renamed into place, and locks end with the process.
            os._exit(128 + number)


def _leave(number: int, frame: FrameType | None) -> None:
    raise Stopped(128 + number)
