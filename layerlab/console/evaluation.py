"""Live progress of an evaluation on standard error: task, questions, time left."""

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from layerlab.console.display import Display, error_console
from layerlab.console.tables import printable

# Columns of a task's name and of the bar, where there is room; and of all that stands beside them.
NAME, BAR = 44, 24
BESIDE = 38


class EvaluationBar(Display):
    """One bar over all questions.

    Args:
        questions: of all tasks together.
        console: on standard error, where it is left out. It is bound to that file at once, because
            the engine's own talk is caught on its way there.
    """

    def __init__(self, questions: int, console: Console | None = None) -> None:
        console = console or error_console(sys.stderr)
        room = console.width - BESIDE
        bar = min(BAR, max(4, room // 4))
        self._name = min(NAME, max(8, room - bar))
        self.progress = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=bar),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        super().__init__(self.progress)
        self._task = self.progress.add_task("", total=questions)
        self._done = 0
        self._of = 0
        self._begun = 0

    def begin(self, name: str, steps: int = 0) -> None:
        """Begin a task of so many questions."""
        self._of, self._begun = steps, 0
        self.progress.update(self._task, description=printable(name, self._name).ljust(self._name))

    def step(self, now: str = "", steps: int = 1) -> None:
        """Count prompts that were run; a question may take several."""
        self._begun = min(self._of, self._begun + steps)
        self.progress.update(self._task, completed=self._done + self._begun)

    def end(self, name: str, outcome: str = "finished") -> None:
        """End the task: all of its questions were asked."""
        self._done += self._of
        self._begun = 0
        self.progress.update(self._task, completed=self._done)
