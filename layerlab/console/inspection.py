"""Live progress of an inspection on standard error: model, layer, measure, time left."""

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from layerlab.console.display import Display, error_console
from layerlab.console.tables import printable


class InspectionBar(Display):
    """One bar per model, on standard error, so that standard output stays clean for `--json`."""

    def __init__(self, console: Console | None = None) -> None:
        self.progress = RichProgress(
            TextColumn("{task.fields[model]}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console or error_console(),
        )
        super().__init__(self.progress)
        self.task: TaskID | None = None

    def begin(self, name: str, steps: int = 0) -> None:
        """Begin a bar for the next model; the one before is full."""
        self.end(name)
        self.task = self.progress.add_task("", total=steps, model=printable(name, 40))

    def step(self, now: str = "", steps: int = 1) -> None:
        """Start the next step; the one before is done."""
        if self.task is not None:
            self.progress.update(self.task, advance=steps, description=now)

    def end(self, name: str, outcome: str = "finished") -> None:
        """Fill the bar: layers without a reading are not stepped through."""
        if self.task is not None:
            total = self.progress.tasks[self.task].total
            self.progress.update(self.task, completed=total, description="done")

    def _fill(self) -> None:
        self.end("")
