"""Error rule of each operation of PyTorch: one table for variances and for bounds."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from layerlab.numerics.prediction.elementwise_rules import (
    FUNCTIONS,
    clamp,
    function,
    power,
    two_slopes,
)
from layerlab.numerics.prediction.linear_rules import (
    average,
    create,
    highest,
    larger,
    move,
    product,
    quotient,
    reciprocal,
    sum_terms,
    summand,
)
from layerlab.numerics.prediction.op_call import ErrorRule, OpCall, lacking
from layerlab.numerics.prediction.softmax_norm_rules import (
    layer_norm,
    log_softmax,
    logsumexp,
    rms_norm,
    softmax,
    variance,
    vector_norm,
)

MOVING = """_reshape_alias _to_copy _unsafe_view alias as_strided as_strided_copy cat clone
constant_pad_nd contiguous copy detach diagonal embedding expand fill flip gather index index_add
index_copy index_fill index_put index_select lift lift_fresh masked_fill masked_scatter
masked_select movedim narrow permute pixel_shuffle repeat repeat_interleave reshape roll scatter
scatter_add select select_scatter slice slice_scatter split split_with_sizes squeeze stack t take
transpose tril triu unbind unfold unsqueeze unsafe_split view where zero _unsafe_index
_index_put_impl chunk""".split()
MAKING = """arange bernoulli empty empty_like empty_strided eye full full_like linspace new_empty
new_empty_strided new_full new_ones new_zeros ones ones_like rand rand_like randn randn_like
scalar_tensor zeros zeros_like one_hot histc""".split()
TABLE: dict[str, ErrorRule] = {
    **dict.fromkeys(MOVING, move),
    **dict.fromkeys(MAKING, create),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "mul", "addmm", "baddbmm", "addmv"), product),
    **dict.fromkeys(("addcmul", "convolution", "linear", "_grouped_mm"), product),
    **dict.fromkeys(("add", "sub", "rsub"), summand),
    **dict.fromkeys(("sum", "cumsum"), sum_terms),
    "mean": average,
    "div": quotient,
    "reciprocal": reciprocal,
    "maximum": larger,
    "minimum": larger,
    **dict.fromkeys(("amax", "amin", "max", "min", "topk", "sort"), highest),
    **dict.fromkeys(FUNCTIONS, function),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh"), clamp),
    **dict.fromkeys(("leaky_relu", "elu"), two_slopes),
    "pow": power,
    "_softmax": softmax,
    "_safe_softmax": softmax,
    "_log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "native_layer_norm": layer_norm,
    "_fused_rms_norm": rms_norm,
    "linalg_vector_norm": vector_norm,
    "var": variance,
    "var_mean": variance,
}


def rule(func: Any) -> ErrorRule:
    """Return the rule of an operation; of one in place, that of the form that makes new tensors.

    Raises:
        UserError: there is none.
    """
    name = func._opname
    found = TABLE.get(name) or TABLE.get(name.rstrip("_"))
    if found is None:
        raise lacking(func)
    return found


def _is_compared(values: Any, spreads: Any) -> bool:
    """Return whether no two compared values come nearer to each other than their bounds."""
    apart = torch.as_tensor(values[0], dtype=torch.float64) - values[1]
    reach = _bound(spreads[0]) + _bound(spreads[1])
    return not bool(((apart.abs() <= reach) & (torch.as_tensor(reach) > 0)).any())


def _bound(spread: Any) -> Any:
    floating = isinstance(spread, Tensor) and spread.dtype.is_floating_point
    return spread if floating else 0.0


def _is_ranked(values: Any, spreads: Any) -> bool:
    """Return whether the k best stay the k best, in this order."""
    if not isinstance(_bound(spreads[0]), Tensor):
        return True
    dim = next((value for value in values[2:3] if isinstance(value, int)), -1)
    order = values[0].sort(dim, descending=True)
    reach = spreads[0].gather(dim, order.indices)
    count = order.values.shape[dim]
    gaps = -order.values.diff(dim=dim)
    joint = reach.narrow(dim, 0, count - 1) + reach.narrow(dim, 1, count - 1)
    return not bool(((gaps <= joint) & (joint > 0)).any())


def _is_settled(values: Any, spreads: Any) -> bool:
    spread = _bound(spreads[0])
    return not isinstance(spread, Tensor) or not bool((spread > 0).any())


# Operations whose result jumps: whether what they decide is beyond doubt.
CHOICES: Mapping[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _is_compared),
    **dict.fromkeys(("topk", "sort", "argsort", "argmax", "argmin"), _is_ranked),
    **dict.fromkeys(("_local_scalar_dense", "nonzero", "bincount", "histc"), _is_settled),
}

__all__ = ["CHOICES", "TABLE", "OpCall", "rule"]
