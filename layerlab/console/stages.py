"""Live progress of stages on standard error, a line each; plain lines without a terminal."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from layerlab.console.display import Display
from layerlab.console.tables import printable
from layerlab.console.units import duration

PARTS = 4  # of a stage that are told without a terminal
MOST = 300  # characters of what is said


@dataclass
class StageLine:
    """The line of one stage."""

    title: str
    state: str = "waiting"
    text: str = ""
    share: float = 0.0
    begun: float = 0.0
    seconds: float | None = None
    last_part: int = 0


class StagesDisplay(Display):
    """A line for each stage.

    Example:
        >>> board = StagesDisplay({"base-1": "base"}, console=Console(quiet=True))
        >>> board.end("base-1", "kept")
        >>> board.lines["base-1"].state
        'kept'
    """

    def __init__(
        self,
        titles: Mapping[str, str],
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show nothing yet.

        Args:
            titles: of the stages, by key.
            console: on standard error, where it is left out.
        """
        self.lines = {key: StageLine(title) for key, title in titles.items()}
        self.console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        super().__init__(
            Live(console=self.console, get_renderable=self.render, refresh_per_second=4)
            if self.console.is_terminal
            else None
        )

    def begin(self, name: str, steps: int = 0) -> None:
        """Begin a stage."""
        line = self.lines[name]
        line.state, line.begun = "running", self._clock()
        self._print(f"{line.title}: begins")

    def tell(self, name: str, text: str, share: float) -> None:
        """Tell what a stage does now, and the share of it that is done."""
        line = self.lines[name]
        line.text, line.share = printable(text, MOST), min(1.0, max(0.0, share))
        part = int(PARTS * line.share)
        if part > line.last_part and part < PARTS:
            line.last_part = part
            self._print(f"{line.title}: {line.share:.0%}, {line.text}")

    def end(self, name: str, outcome: str = "finished") -> None:
        """End a stage."""
        line = self.lines[name]
        line.state, line.share = outcome, 1.0
        if outcome == "kept":
            self._print(f"{line.title}: finished before, kept as it is")
            return
        line.seconds = self._clock() - line.begun
        self._print(f"{line.title}: {outcome} in {duration(line.seconds)}")

    def note(self, text: str) -> None:
        """Show a note above the lines of the stages."""
        self.console.print(Text(printable(text, MOST)), soft_wrap=True)

    def render(self) -> RenderableType:
        """Return what a terminal shows now."""
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(4):
            table.add_column(no_wrap=True, overflow="ellipsis")
        for line in self._visible_lines():
            running = line.state == "running"
            seconds = self._clock() - line.begun if running else line.seconds
            bar: RenderableType = ProgressBar(total=1.0, completed=line.share, width=12)
            table.add_row(
                Text(printable(line.title, MOST), style="bold" if running else ""),
                bar if running else Text(line.state, style="dim"),
                Text("" if seconds is None else duration(seconds), style="dim"),
                Text(line.text if running else "", style="dim"),
            )
        return table

    def _visible_lines(self) -> list[StageLine]:
        """Return the seen as many as a terminal has room for, around the last that has begun."""
        every, room = list(self.lines.values()), max(1, self.console.height - 1)
        begun = [number for number, line in enumerate(every) if line.state != "waiting"]
        first = max(0, min(max(begun, default=0) - room // 2, len(every) - room))
        return every[first : first + room]

    def _print(self, text: str) -> None:
        if not self.drawn:
            self.console.print(Text(printable(text, MOST)), soft_wrap=True)
