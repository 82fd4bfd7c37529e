"""A signal to stop, heard between two updates."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

# What terminals, schedulers and Slurm before the end of a job's time send; Windows lacks the last.
_HEARD = ("SIGINT", "SIGTERM", "SIGUSR1")


class Halted(SystemExit):
    """The end of a run that was asked to stop and has left a checkpoint.

    Its code is 128 and the number of the signal: 130 after ctrl-c, 143 after SIGTERM.
    """


class GracefulStop:
    """Listens for signals while it is open; the loop looks at `wanted` between two updates.

    The first signal is noted, the second ends the process at once. Outside the main thread, where
    Python lets nobody listen, it hears nothing.

    Attributes:
        signal: that was heard, or None.

    Example:
        >>> with GracefulStop() as halt:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     halt.wanted
        True
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    @property
    def wanted(self) -> bool:
        """Whether a signal asked to stop."""
        return self.signal is not None

    def leave(self) -> None:
        """End the run.

        Raises:
            Halted: always, with the code that says which signal it was.
        """
        raise Halted(128 + (self.signal or 0))

    def __enter__(self) -> "GracefulStop":
        if threading.current_thread() is threading.main_thread():
            for name in _HEARD:
                heard = getattr(signal, name, None)
                if heard is not None:
                    self._former[heard] = signal.signal(heard, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for heard, former in self._former.items():
            # None: it was set by something other than Python, and cannot be set again from here.
            signal.signal(heard, signal.SIG_DFL if former is None else former)
        self._former.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            # Nothing is lost: checkpoints are renamed into place, and locks end with the process.
            os._exit(128 + number)
        self.signal = signal.Signals(number)
