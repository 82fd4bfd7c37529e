"""Readings of all measures on one model, and notes beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from layerlab.loading.batching import describe_ahead
from layerlab.loading.model import LoadedModel, describe_lacking
from layerlab.measures.measure import Measure, Row, short_text


@dataclass(kw_only=True)
class Readings:
    """The readings of all measures on one model.

    Attributes:
        rows: of each measure.
        refused: measures without a reading on this model, and why.
        notes: remarks of measures that do have readings.
        pictures: what a measure gave to be drawn besides its rows.
        loss_nats: mean next-token loss per sequence; none where the text was not read.
        faults: layers whose output was not finite, and what was found.
    """

    rows: dict[str, list[Row]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    pictures: dict[str, dict[str, Any]] = field(default_factory=dict)
    loss_nats: list[float] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)


def note_short(found: Readings, measures: Sequence[Measure]) -> None:
    """Say of measures that pool tokens that the text has no more."""
    for measure in measures:
        if measure.pool is not None and measure.name in found.rows:
            found.notes.setdefault(measure.name, []).append(short_text())


def note_ahead(found: Readings, measures: Sequence[Measure], subject: LoadedModel) -> bool:
    """Give no loss of a model that has seen the next token, and say so of measures that use it.

    Returns:
        Whether it is such a model; not looked at where nothing was read that hangs on it.
    """
    using = [
        measure.name
        for measure in measures
        if measure.needs & {"model", "gradient"} and found.rows.get(measure.name)
    ]
    ahead = bool(found.loss_nats or using) and subject.reads_ahead
    if ahead:
        found.loss_nats = []
        for name in using:
            found.notes.setdefault(name, []).append(describe_ahead(subject.name))
    return ahead


def note_lacking(found: Readings, subject: LoadedModel) -> None:
    """Say of all readings that they are those of the model without its precision policy."""
    if subject.lacks_policy:
        for name in (name for name, rows in found.rows.items() if rows):
            found.notes.setdefault(name, []).append(describe_lacking(subject.name))


def mean_loss(losses: Sequence[float], pieces: Sequence[Tensor]) -> float | None:
    """Return the loss in nats for each predicted token, of sequences that may differ in length."""
    if not losses:
        return None
    each = [(len(ids) - 1, loss) for loss, ids in zip(losses, pieces, strict=True) if len(ids) > 1]
    tokens = sum(count for count, _ in each)
    return sum(count * loss for count, loss in each) / tokens if tokens else None
