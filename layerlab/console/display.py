"""A display that a terminal shows while work goes on, and that is gone when it ends."""

from importlib.util import find_spec
from types import TracebackType
from typing import IO, Self

from rich.console import Console
from rich.live import Live
from rich.progress import Progress as RichProgress

from layerlab.console.progress import Progress


def error_console(file: IO[str] | None = None) -> Console:
    """Return a console on standard error; a notebook's own only where it has what rich draws with.

    Args:
        file: that it stays bound to, whatever standard error is later.
    """
    widgets = None if find_spec("ipywidgets") else False
    return Console(stderr=True, file=file, force_jupyter=widgets)


class Display(Progress):
    """Drawn from `with` on until its end, where there is something to draw on.

    Attributes:
        drawn: whether it is drawn now.
    """

    def __init__(self, screen: Live | RichProgress | None) -> None:
        self._screen = screen
        self.drawn = False

    def __enter__(self) -> Self:
        if self._screen is not None:
            self._screen.start()
            self.drawn = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._fill()
        if self._screen is not None and self.drawn:
            if isinstance(self._screen, RichProgress) and not self._screen.tasks:
                self._screen.live.stop()  # without an empty line where no terminal is
            else:
                self._screen.stop()
            self.drawn = False

    def _fill(self) -> None:
        """Show that all is done; a display that counts what may be passed over has to."""
