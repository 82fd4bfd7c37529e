"""Live progress of a run of tasks, on standard error: which, how many questions, the time left."""

import sys
from types import TracebackType
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from layerlab.console.tables import printable

NAME = 44


@runtime_checkable
class Watch(Protocol):
    """Is told how far a run is."""

    def start(self, name: str, questions: int) -> None:
        """A task begins."""

    def asked(self, questions: int) -> None:
        """So many more prompts of the task have been run."""

    def ended(self) -> None:
        """The task is done."""


class Silent:
    """A watch that tells nobody."""

    def start(self, name: str, questions: int) -> None:
        """Do nothing."""

    def asked(self, questions: int) -> None:
        """Do nothing."""

    def ended(self) -> None:
        """Do nothing."""


class Bar:
    """One bar over all questions; a `Watch`.

    Args:
        questions: of all tasks together.
        console: on standard error, where it is left out. It is bound to that file at once, because
            the engine's own talk is caught on its way there.
    """

    def __init__(self, questions: int, console: Console | None = None) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console or Console(file=sys.stderr),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self.progress.add_task("", total=questions)
        self._done = 0
        self._of = 0
        self._begun = 0

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

    def start(self, name: str, questions: int) -> None:
        """A task begins."""
        self._of, self._begun = questions, 0
        self.progress.update(self._task, description=printable(name, NAME).ljust(NAME))

    def asked(self, questions: int) -> None:
        """So many more prompts have been run; a question may take several."""
        self._begun = min(self._of, self._begun + questions)
        self.progress.update(self._task, completed=self._done + self._begun)

    def ended(self) -> None:
        """The task is done."""
        self._done += self._of
        self._begun = 0
        self.progress.update(self._task, completed=self._done)
