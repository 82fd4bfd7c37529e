"""A warning before a run is lost, and the limits at which one is given."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from layerlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits beyond which a reading raises an alert; `inf`, or 0 of what is too small, for never.

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

    def __post_init__(self) -> None:
        """Check the values: a rule that fails would stop the training that it watches."""
        for one in fields(self):
            value, usual = getattr(self, one.name), one.default
            kinds, least = (int, 1) if isinstance(usual, int) else (int | float, 0)
            # True is an int, too; what is no number is not above 0.
            if not isinstance(value, kinds) or isinstance(value, bool) or not value >= least:
                kind = "whole number" if kinds is int else "number"
                raise UserError(
                    f"{one.name}={value!r} is no {kind} of {least} or more; type "
                    f"Limits({one.name}={usual})"
                )
        for name in ("least", "window"):
            if getattr(self, name) > self.past:
                raise UserError(
                    f"{name}={getattr(self, name)} is more than past={self.past}, which is how "
                    f"many are remembered; type Limits({name}={self.past}, past={self.past})"
                )


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
