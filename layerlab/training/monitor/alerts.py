"""A warning before a run is lost, and the limits at which one is given."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits beyond which a reading raises an alert.

    Attributes:
        spike: of the loss above its running median, in median absolute deviations.
        gradient: of the logarithm of the gradient's norm above its running median, in standard
            deviations.
        past: losses and norms that a running median is taken over.
        least: of them, before anything is judged by it.
        score: the largest attention score. At 100, numbers of bfloat16 lie 0.5 apart: rounding a
            score moves its probability by up to 28 %.
        notable: a score from which its doubling counts.
        window: readings within which a score doubles or something jumps.
        jump: growth over the median of the window, of W_k^T W_q and of the stream, while the loss
            does not fall.
        sink: attention to the first token, in every head of a layer.
        entropy: relative to uniform attention, in every head of a layer.
        residual: share of the stream that differs between tokens.
    """

    spike: float = 10.0
    gradient: float = 6.0
    past: int = 64
    least: int = 16
    score: float = 100.0
    notable: float = 30.0
    window: int = 5
    jump: float = 4.0
    sink: float = 0.99
    entropy: float = 0.01
    residual: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One warning.

    Attributes:
        update: updates finished when it was read.
        text: what was found and what to try, in one sentence.
        layer: number of the block, -1 for the embedding, None where it is about the whole model.
        limit: what the value passed.
    """

    update: int
    text: str
    measure: str
    value: float
    limit: float
    layer: int | None = None
    head: int | None = None

    def __str__(self) -> str:
        return f"update {self.update}: {self.text}"

    def event(self) -> dict[str, Any]:
        """Return the event for a journal, which knows the update."""
        content = asdict(self)
        del content["update"]
        return content


class TrainingAlert(RuntimeError):
    """Training was stopped by an alert, which `alarm` holds."""

    def __init__(self, alarm: Alert) -> None:
        super().__init__(str(alarm))
        self.alarm = alarm
