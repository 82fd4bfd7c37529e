"""Details of a finding from a second, short pass: a head's attention map, large channels.

The first pass keeps no matrix; only when a finding names a head or a layer is that one formed, and
of a long sequence only the part around its largest score.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.loading.model import LoadedModel
from layerlab.loading.token_text import token_strings
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.records import Layer
from layerlab.observe.tracing.trace import trace
from layerlab.shapes import Hidden

TOKENS = 64
CHANNELS = 12
ROWS = 256
Wanted = tuple[str, str, int, int] | tuple[str, str, int, int, int]


def details(
    subject: LoadedModel, sequences: Sequence[Tensor], wanted: Iterable[Wanted]
) -> dict[Wanted, dict[str, Any]]:
    """Return the picture of every wanted place of this model."""
    places = [request for request in wanted if request[1] == subject.name]
    found: dict[Wanted, dict[str, Any]] = {}
    if not places or not sequences or subject.stored or isinstance(subject.stack, str):
        return found
    numbers = sorted({request[2] for request in places})

    def read(layer: Layer) -> None:
        for request in places:
            if request[2] == numbers[layer.sequence] and (view := _view(subject, layer, request)):
                model, sequence, number = request[1:4]
                where = {"model": model, "sequence": sequence, "layer": number}
                found[request] = {"kind": request[0], **where, **view}

    try:
        trace(subject.model, subject.stack, [sequences[number] for number in numbers], read)
    except NotApplicable:
        return {}
    return found


def _view(subject: LoadedModel, layer: Layer, request: Wanted) -> dict[str, Any] | None:
    if request[0] == "attention" and len(request) == 5:
        if layer.attention is None or layer.attention.layer != request[3]:
            return None
        tokens = token_strings(subject, layer.tokens)
        head = request[4] - layer.attention.first
        # Positions may be patches, or a learned prefix with the tokens behind it.
        if head not in range(layer.attention.heads) or layer.attention.tokens != len(tokens):
            return None
        return {"head": request[4], **_attention(layer.attention, head, tokens)}
    if request[0] == "channels" and layer.layer == request[3]:
        return {"channels": channels(layer.stream, token_strings(subject, layer.tokens))}
    return None


def _attention(attended: AttentionRecord, head: int, tokens: list[str]) -> dict[str, Any]:
    rows = positions_to_show(attended, head)
    one = slice(head, head + 1)
    picked = torch.stack([attended.weights(one, slice(row, row + 1))[0, 0, rows] for row in rows])
    weights = (picked * 255).round().to(torch.uint8).tolist()
    return {
        "tokens": [tokens[row] for row in rows],
        "queries": rows,
        "weights": [line[: index + 1] for index, line in enumerate(weights)],
    }


def positions_to_show(attended: AttentionRecord, head: int) -> list[int]:
    """Return the positions to show: all of a short sequence, else those near the largest score."""
    if attended.tokens <= TOKENS:
        return list(range(attended.tokens))
    row, column = _peak(attended, head)
    first, near, recent = TOKENS // 8, 3 * TOKENS // 16, TOKENS // 2
    around = [range(first), range(column - near, column + near), range(row - recent + 1, row + 1)]
    return sorted({index for part in around for index in part if 0 <= index < attended.tokens})


def _peak(attended: AttentionRecord, head: int) -> tuple[int, int]:
    """Return the row and column of the largest allowed score."""
    one, best, position = slice(head, head + 1), -torch.inf, (0, 0)
    for start in range(0, attended.tokens, ROWS):
        rows = slice(start, min(start + ROWS, attended.tokens))
        scores = attended.logits(one, rows).abs()
        scores = scores.masked_fill(~attended.allowed_keys(one, rows), -1)[0]
        value, index = scores.flatten().max(0)
        if float(value) > best:
            best, position = float(value), (start + int(index) // scores.shape[1], int(index))
    return position[0], position[1] % attended.keys


def channels(stream: Hidden, tokens: list[str]) -> list[dict[str, Any]]:
    """Return the largest features of one layer: channel, token and value, each channel once.

    Source: sun24.
    Unit: that of the stream.
    """
    largest, rows = stream.abs().max(0)
    order = largest.float().argsort(descending=True)[:CHANNELS].tolist()
    return [
        {
            "channel": channel,
            "token_index": int(rows[channel]),
            "token": tokens[int(rows[channel])],
            "value": float(stream[int(rows[channel]), channel]),
        }
        for channel in order
    ]
