"""Live progress of an inspection on standard error: model, layer, measure, time left."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from layerlab.console.display import Display, error_console
from layerlab.console.tables import printable
from layerlab.console.units import duration

PAUSE = 60.0  # seconds between two lines where there is no terminal
PERIOD = 600.0  # seconds that the time left is estimated by: a layer of a large model takes minutes


class InspectionBar(Display):
    """One bar per model, on standard error, so that standard output stays clean for `--json`.

    A log, where nothing can be drawn anew, gets at most a line a minute, and the bar at its end.
    """

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        console = console or error_console()
        self.progress = RichProgress(
            TextColumn("{task.fields[model]}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            get_time=clock,
            speed_estimate_period=PERIOD,
        )
        super().__init__(self.progress)
        self.task: TaskID | None = None
        # A notebook with widgets draws anew as a terminal does.
        self._live = console.is_terminal or console.is_jupyter
        self._clock, self._last_time = clock, clock()

    def begin(self, name: str, steps: int = 0) -> None:
        """Begin a bar for the next model; the one before is full."""
        self.end(name)
        self.task = self.progress.add_task("", total=steps, model=printable(name, 40))

    def step(self, now: str = "", steps: int = 1) -> None:
        """Start the next step; the one before is done."""
        if self.task is not None:
            self.progress.update(self.task, advance=steps, description=now)
            self._tell(self.progress.tasks[self.task])

    def skip(self) -> None:
        """Leave out the step that was taken last: the time left is that of those that take some."""
        task = None if self.task is None else self.progress.tasks[self.task]
        if task is not None and task.completed and task.total:
            self.progress.update(task.id, advance=-1, total=task.total - 1)

    def end(self, name: str, outcome: str = "finished") -> None:
        """Fill the bar: layers without a reading are not stepped through."""
        if self.task is not None:
            total = self.progress.tasks[self.task].total
            self.progress.update(self.task, completed=total, description="done")

    def note(self, text: str) -> None:
        """Show a line above the bar."""
        self.progress.console.print(Text(printable(text)), soft_wrap=True)

    def _tell(self, task: Task) -> None:
        now = self._clock()
        if self._live or now - self._last_time < PAUSE:
            return
        self._last_time = now
        left = task.time_remaining
        line = f"{task.fields['model']}: {task.percentage:.0f}%, {task.description}"
        line += "" if left is None else f", {duration(left)} left"
        self.progress.console.print(Text(line), soft_wrap=True)

    def _fill(self) -> None:
        self.end("")
