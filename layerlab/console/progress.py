"""Who is told of a run while it goes on."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Watch(Protocol):
    """A display of one or many runs."""

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        """A line of a run's journal."""

    def ended(self, name: str, outcome: str) -> None:
        """A run has come to its end: "finished", "diverged", or why it crashed."""

    def note(self, text: str) -> None:
        """Something a user should know."""


class Silent:
    """A watch that tells nobody."""

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        """Do nothing."""

    def ended(self, name: str, outcome: str) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""
