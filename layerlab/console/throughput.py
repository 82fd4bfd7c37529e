"""The speed of a run, from its latest events."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

WINDOW = 20  # events that a speed is taken over


class Throughput:
    """The progress and speed of a run by its events.

    Attributes:
        update: that was finished last.
        updates: of the whole run.
        loss: of that update, in nats per token.
        bits: per byte, at the last evaluation.
        begun: whether anything was heard.
    """

    def __init__(self, updates: int, clock: Callable[[], float]) -> None:
        self.update, self.updates = 0, max(1, updates)
        self.loss: float | None = None
        self.bits: float | None = None
        self.begun = False
        self._clock = clock
        self._events: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=WINDOW)

    def take(self, event: Mapping[str, Any]) -> None:
        """Receive an event."""
        if event["update"] < self.update:  # begun anew, after a checkpoint
            self._events.clear()
        self.begun, self.update = True, min(event["update"], self.updates)
        self.loss = event.get("loss", self.loss)
        self.bits = event.get("bits_per_byte", self.bits)
        if event["kind"] in {"train", "evaluation"}:
            self._events.append((self._clock(), event))

    def speed(self, what: str) -> float | None:
        """Return the speed of tokens or FLOPs, per second of training.

        None until two events tell.
        """
        events = [event for _, event in self._events if what in event and "seconds" in event]
        if len(events) < 2:
            return None
        seconds = events[-1]["seconds"] - events[0]["seconds"]
        return (events[-1][what] - events[0][what]) / seconds if seconds > 0 else None

    def rate(self) -> float | None:
        """Return updates per second on the clock, with evaluations and checkpoints."""
        if len(self._events) < 2:
            return None
        (start, first), (end, last) = self._events[0], self._events[-1]
        done = last["update"] - first["update"]
        return done / (end - start) if end > start and done else None

    def seconds_left(self) -> float | None:
        """Return seconds on the clock until the run has ended."""
        rate = self.rate()
        if self.update >= self.updates:
            return 0.0
        return (self.updates - self.update) / rate if rate else None
