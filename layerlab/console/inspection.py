"""A live bar on the terminal: which model, which layer, which measure, and the time left."""

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from layerlab.console.tables import printable


class Bar:
    """One bar per model, on standard error, so that standard output stays clean for `--json`."""

    def __init__(self, console: Console | None = None) -> None:
        self.progress = Progress(
            TextColumn("{task.fields[model]}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self.task: TaskID | None = None

    def __enter__(self) -> "Bar":
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def start(self, model: str, steps: int) -> None:
        """A bar for the next model; the one before is full."""
        self.finish()
        self.task = self.progress.add_task("", total=steps, model=printable(model, 40))

    def step(self, layer: int | None, measure: str) -> None:
        """Say what begins now, and that what began before is done."""
        if self.task is not None:
            where = measure if layer is None else f"layer {layer}: {measure}"
            self.progress.update(self.task, advance=1, description=where)

    def finish(self) -> None:
        """Fill the bar: layers without a reading are not stepped through."""
        if self.task is not None:
            total = self.progress.tasks[self.task].total
            self.progress.update(self.task, completed=total, description="done")
