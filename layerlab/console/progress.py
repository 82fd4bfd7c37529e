"""Who hears of work while it goes on: runs, stages, tasks, layers."""

from collections.abc import Mapping
from typing import Any


class Progress:
    """A display of work; what one does not define does nothing."""

    def begin(self, name: str, steps: int = 0) -> None:
        """Begin a part of the work, of so many steps."""

    def step(self, now: str = "", steps: int = 1) -> None:
        """Take so many steps further; `now` says what goes on."""

    def tell(self, name: str, text: str, share: float) -> None:
        """Tell what a part does now, and the share of it that is done."""

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        """Take a line of a run's journal."""

    def end(self, name: str, outcome: str = "finished") -> None:
        """End a part: "finished", "diverged", "kept" from before, or why it failed."""

    def note(self, text: str) -> None:
        """Say something that a user should know."""


class NullProgress(Progress):
    """Shows nothing."""
