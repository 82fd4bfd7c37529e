"""Progress of work in runs, stages, tasks or layers."""

from collections.abc import Callable, Mapping
from typing import Any

ProgressCallback = Callable[[str, float], None]
"""It is told what is in progress, and the share that is done."""


class Progress:
    """Receives progress; methods that are not overridden do nothing."""

    def begin(self, name: str, steps: int = 0) -> None:
        """Begin a part of the work, of so many steps."""

    def step(self, now: str = "", steps: int = 1) -> None:
        """Advance by so many steps; `now` says what is in progress."""

    def skip(self) -> None:
        """Leave out the step that was taken last, since it took no time."""

    def tell(self, name: str, text: str, share: float) -> None:
        """Report what a part is doing, and the share of it that is done."""

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        """Receive an event of a run's journal."""

    def end(self, name: str, outcome: str = "finished") -> None:
        """End a part: "finished", "diverged", "kept" from before, or why it failed."""

    def note(self, text: str) -> None:
        """Show a note to the user."""


class NullProgress(Progress):
    """Shows nothing."""
