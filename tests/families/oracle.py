"""Attention matrices that never passed through the probe: from a plain eager forward.

Either those that the model returns when asked, or what its softmax gave. One family returns its
attention before a sink takes its share afterwards: the share is then taken here, as it is written.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from layerlab.observe.tracing.attention.record import AttentionRecord

REPORTED, SOFTMAX, SHARED = "returned", "softmax", "softmax and sink"


class _Softmaxes(TorchFunctionMode):
    """Every softmax of a forward with what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("softmax", "_softmax") and result.dim() in (3, 4):
            self.calls.append((args[0], result))
        return result


def oracle(
    model: PreTrainedModel, tokens: Tensor, records: Sequence[AttentionRecord]
) -> tuple[list[Tensor], str]:
    """One head x token x key matrix per record, and where they came from.

    Raises:
        LookupError: neither has as many matrices of the right shape as there are records.
    """
    with torch.no_grad(), _Softmaxes() as softmaxes:
        output = model(input_ids=tokens[None], use_cache=False, output_attentions=True)
    returned = [one[0] for one in getattr(output, "attentions", None) or () if one is not None]
    calls = [(_sequence(given), _sequence(gave)) for given, gave in softmaxes.calls]
    shapes = [(one.heads, one.tokens, one.keys) for one in records]
    if [tuple(one.shape) for one in returned] == shapes:
        if not any(_late(record, one) for record, one in zip(records, returned, strict=True)):
            return returned, REPORTED
    fitting = [(given, gave) for given, gave in calls if tuple(gave.shape) in set(shapes)]
    if [tuple(gave.shape) for _, gave in fitting] != shapes:
        raise LookupError(f"{len(returned)} returned, {len(fitting)} softmaxes for {len(shapes)}")
    pairs = list(zip(records, fitting, strict=True))
    if any(_late(record, gave) for record, (_, gave) in pairs):
        return [_shared(record, given, gave) for record, (given, gave) in pairs], SHARED
    return [gave for _, gave in fitting], SOFTMAX


def _sequence(matrices: Tensor) -> Tensor:
    """The only sequence of the batch; some families fold the batch into the heads."""
    return matrices[0] if matrices.dim() == 4 else matrices


def _late(record: AttentionRecord, matrix: Tensor) -> bool:
    """Whether there is a sink, and yet it has taken nothing."""
    return record.sinks is not None and bool((matrix.sum(-1) - 1).abs().max() < 1e-5)


def _shared(record: AttentionRecord, given: Tensor, gave: Tensor) -> Tensor:
    if record.sinks is None:
        return gave
    rest = given.double().logsumexp(-1) - record.sinks.double()[:, None]
    return gave * rest.sigmoid()[..., None]
