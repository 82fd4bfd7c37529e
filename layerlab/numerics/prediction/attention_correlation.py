"""Errors that attention's scores share, and that its weights take from one another.

The error of a query moves all scores of its row together as far as the keys are alike, and softmax
does not see that. What one weight gains, others lose, so that only the differences between values
and their mean count. Variances of single elements know neither; these two records do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor
from layerlab.numerics.prediction.error_state import ErrorState
from layerlab.numerics.prediction.op_call import OpCall

ScaleFactor = float | Tensor


@dataclass(frozen=True)
class ScoreErrors:
    """Products of rows and columns, for the part of their error that the rows bring in.

    Attributes:
        rows: variances of the left factor.
        columns: the right factor.
        scale: squared factor that scores have been multiplied with since.
    """

    rows: Tensor
    columns: Tensor
    scale: ScaleFactor = 1.0


@dataclass(frozen=True)
class WeightErrors:
    """The outcome of softmax on scores.

    Attributes:
        apart: p^2 var(s), the variances before the sum to one ties them together.
        tied: the variances of the weights as single elements.
        scale: squared factor that weights have been multiplied with since.
    """

    apart: Tensor
    tied: Tensor
    scale: ScaleFactor = 1.0


KEEPING = frozenset(
    """_to_copy _unsafe_view alias clone contiguous detach expand masked_fill view where
    add sub""".split()
)


class Correlation:
    """Follows the two records through the steps between products and softmax."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def spread(self, call: OpCall, given: Sequence[Any]) -> ErrorState:
        """Return the spread of a result that is known better than by its rule, else None.

        Args:
            call: the step.
            given: its arguments as they were passed.
        """
        record = self._record(given[0]) if given else None
        if call.name in ("_softmax", "_safe_softmax") and isinstance(record, ScoreErrors):
            if call.value(1) in (-1, call.value(0).dim() - 1) and call.spread(0) is not None:
                return self._softmax(call, record)
        if call.name == "bmm" and isinstance(record, WeightErrors):
            return _mix(call, record)
        return None

    def follow(self, call: OpCall, given: Sequence[Any], output: EmulatedTensor) -> None:
        """Record what is known of a result."""
        if call.name == "bmm" and call.spread(0) is not None:
            if self._record(given[0]) is None and not given[1].weight:
                self._known[output] = ScoreErrors(call.spread(0), call.value(1))  # type: ignore[arg-type]
            return
        if call.name in ("_softmax", "_safe_softmax") and self._made is not None:
            self._known[output], self._made = self._made, None
            return
        found = next((self._record(value) for value in given if self._record(value)), None)
        scale = None if found is None else _scale(call)
        if found is not None and scale is not None and _fits(found, output):
            self._known[output] = replace(found, scale=found.scale * scale)

    _made: WeightErrors | None = None

    def _record(self, value: Any) -> ScoreErrors | WeightErrors | None:
        return self._known.get(value) if isinstance(value, EmulatedTensor) else None

    def _softmax(self, call: OpCall, record: ScoreErrors) -> Tensor:
        """Return the variance of the weights, p_j^2 times that of ds_j - sum p ds.

        ds_j = e.k_j + f_j, so that dp_j = p_j (e.(k_j - sum p k) + centred f).
        """
        p = call.results[0]
        spread = call.spread(0)
        assert spread is not None
        columns, shape = record.columns, (-1, *p.shape[-2:])
        flat = p.reshape(shape)
        rows = record.rows * _flat(record.scale)
        shared = rows @ columns.square()
        mean = flat @ columns.transpose(-2, -1)
        centred = shared - 2 * (rows * mean) @ columns
        centred = centred + (rows * mean.square()).sum(-1, keepdim=True)
        centred = centred.clamp_min(0).reshape(p.shape)
        rest = (torch.where(p == 0, 0.0, spread) - shared.reshape(p.shape)).clamp_min(0)
        square = p.square()
        total = _finite(square * rest).sum(-1, keepdim=True)
        through = _finite(square * (rest * (1 - 2 * p) + total + centred))
        tied = torch.minimum(through, p * (1 - p)).clamp_min(0)
        # Where a weight cannot move as far as its slope says, neither can the sum.
        held = torch.where(through > 0, tied / through, 0.0).nan_to_num(nan=0.0)
        apart = (_finite(square * (rest + centred)) * held).nan_to_num(math.inf, math.inf)
        self._made = WeightErrors(apart, tied)
        return tied


def _mix(call: OpCall, record: WeightErrors) -> Tensor:
    """Return the variance of values mixed by weights.

    sum_j var(s_j) p_j^2 (v_j - mean)^2, and what was rounded since.
    """
    weights, values, own = call.value(0), call.value(1), call.spread(0)
    assert own is not None
    scale = _flat(record.scale)
    apart = record.apart.reshape(weights.shape) * scale
    since = (own - record.tied.reshape(weights.shape) * scale).clamp_min(0)
    total = weights.sum(-1, keepdim=True)
    mean = call.results[0] / torch.where(total == 0, 1.0, total)
    spread = (apart + since) @ values.square() - 2 * mean * (apart @ values)
    spread = spread + mean.square() * apart.sum(-1, keepdim=True)
    other = call.spread(1)
    if other is not None:
        spread = spread + (weights.square() + own) @ other
    return spread.clamp_min(0).nan_to_num(math.inf, math.inf)


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(math.inf, math.inf)


def _flat(scale: ScaleFactor) -> ScaleFactor:
    if isinstance(scale, Tensor) and scale.dim() > 3:
        return scale.reshape(-1, *scale.shape[-2:])
    return scale


def _scale(call: OpCall) -> ScaleFactor | None:
    """Return the squared factor by which a step multiplies a whole row; None if it does more."""
    if call.name in KEEPING:
        exact = call.name not in ("add", "sub") or call.spread(1) is None or _none(call.spread(1))
        return 1.0 if exact else None
    if call.name not in ("mul", "div"):
        return None
    other = call.value(1)
    if isinstance(other, Tensor):
        if not (call.spread(1) is None or _none(call.spread(1))):
            return None
        if other.dim() > 0 and other.shape[-1] != 1:
            return None
        other = other.square()
    else:
        other = float(other) ** 2
    return other if call.name == "mul" else 1 / other


def _none(spread: ErrorState) -> bool:
    return spread is None or not bool(spread.any())


def _fits(record: ScoreErrors | WeightErrors, output: Tensor) -> bool:
    """Return whether a result still has the rows and columns of a record."""
    if output.dim() < 2:
        return False
    if isinstance(record, WeightErrors):
        return (
            record.apart.numel() == output.numel() and record.apart.shape[-2:] == output.shape[-2:]
        )
    rows, columns = record.rows.shape[-2], record.columns.shape[-1]
    count = record.rows.shape[0] * rows * columns
    return output.numel() == count and tuple(output.shape[-2:]) == (rows, columns)
