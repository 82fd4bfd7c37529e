"""The norm in front of an attention layer, found in its block and measured by feeding it vectors.

What a norm does to its input is read from what it gives back, not from its class: gain, shift, and
whether it subtracts the mean. So Gemma's 1 + w, a norm without weights and a remote class all come
out right, and a module that is not a norm comes out as none.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from layerlab.system.offload import parameter

AMPLITUDE = 128.0
"""Of the vectors fed to a norm: exact in every format, and so large that its epsilon is lost."""

FRONTS = (
    "input_layernorm",
    "ln_1",
    "self_attn_layer_norm",
    "ln_attn",
    "attn_norm",
    "attention_norm",
    "attention_layernorm",
    "norm_1",
    "norm1",
    "operator_norm",
    "temporal_pre_norm",
    "pre_attention_layernorm",
    "layernorm1",
    "layernorm_before_attention",
    "layer_norm1",
    "input_norm",
    "LayerNorm",
    "ln",
    "norm",
)
"""What families call the norm in front of attention, the least ambiguous first."""


@dataclass(frozen=True, kw_only=True)
class Norm:
    """n(x) = gain * x / rms(x) + shift, x centred first where `kind` is "layer".

    `gain` has the shape that the norm was probed with; `shift` is None where it is zero.
    """

    kind: str
    gain: Tensor
    shift: Tensor | None


def norm(module: nn.Module, *shape: int) -> Norm | None:
    """Return the gain, shift and kind of a norm over the last axis, from three of its answers.

    None where the module is not such a norm: its answers do not fit gain * x / rms(x) + shift.
    """
    wave = _wave(shape)
    level = torch.full(shape, AMPLITUDE, dtype=torch.float64)
    with torch.no_grad():
        shift, answer, lifted = (_answer(module, x) for x in (0 * wave, wave, wave + level))
        other = _answer(module, 2 * wave.flip(-1) - level)
    if shift is None or answer is None or lifted is None or other is None:
        return None
    # Norms compute in float32 at best, whatever their weights are in.
    roundoff = 8 * max(torch.finfo(_dtype(module)).eps, torch.finfo(torch.float32).eps)
    gain = (answer - shift) / _normalize(wave, "rms")
    scale = gain.abs() + shift.abs()
    for kind in ("layer", "rms"):
        pairs = ((wave + level, lifted), (2 * wave.flip(-1) - level, other))
        if all(
            _near(gain * _normalize(x, kind) + shift, y, 3 * roundoff * scale) for x, y in pairs
        ):
            return Norm(
                kind=kind,
                gain=_snap(module, gain, roundoff * scale),
                shift=shift.float() if (shift != 0).any() else None,
            )
    return None


def front_norm(block: nn.Module, attention: nn.Module) -> nn.Module | None:
    """Return the norm in a block that attention reads from; None in a post-norm block."""
    placement = getattr(block, "placement", None)  # said where the code calls children by rule
    if getattr(block, "do_layer_norm_before", None) is False or placement in ("post", "after"):
        return None
    for parent, child in _ancestors(block, attention):
        children = dict(parent.named_children())
        for name in FRONTS:
            declares = parent is block and placement in ("pre", "both")
            if name in children and (declares or _is_called_before(parent, name, child)):
                return children[name]
    return None


def _ancestors(block: nn.Module, attention: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules of `block` that hold `attention`, nearest first, and the child inside."""
    path = next((name for name, module in block.named_modules() if module is attention), "")
    steps = path.split(".") if path else []
    for depth in reversed(range(len(steps))):
        yield block.get_submodule(".".join(steps[:depth])), steps[depth]


def _is_called_before(parent: nn.Module, norm_name: str, attention_name: str) -> bool:
    """Return whether `forward` calls the norm first in its source: GPT-1's ln_1 comes later."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(parent).forward)))
    except (OSError, TypeError, SyntaxError):
        return False
    ends: dict[str, tuple[int, int]] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            end = (call.end_lineno or 0, call.end_col_offset or 0)
            ends[call.func.attr] = min(end, ends.get(call.func.attr, end))
    return norm_name in ends and attention_name in ends and ends[norm_name] < ends[attention_name]


def _wave(shape: tuple[int, ...]) -> Tensor:
    """Return a vector of mean zero without a zero: centring leaves it, and gains can be read."""
    wave = torch.full(shape, AMPLITUDE, dtype=torch.float64)
    wave[..., 1::2] *= -1
    if shape[-1] % 2 and shape[-1] > 1:
        wave[..., -3:] = AMPLITUDE * torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64)
    return wave


def _normalize(x: Tensor, kind: str) -> Tensor:
    x = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    return x / x.square().mean(-1, keepdim=True).sqrt()


def _answer(module: nn.Module, x: Tensor) -> Tensor | None:
    device = next((p.device for p in module.parameters() if p.device.type != "meta"), None)
    try:
        answer = module.forward(x.to(_dtype(module)).to(device or "cpu")[None])  # no hook sees it
    except Exception:  # a module that is not a norm may fail in any way; then it is not a norm
        return None
    if not isinstance(answer, Tensor) or answer.numel() != x.numel():
        return None
    return answer.cpu().double().reshape(x.shape)


def _dtype(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def _near(a: Tensor, b: Tensor, tolerance: Tensor) -> bool:
    """Check that finite entries agree: broken weights say nothing of the kind of a norm."""
    gap = (a - b).abs()
    return bool(((gap <= tolerance) | ~gap.isfinite()).all())


def _snap(module: nn.Module, gain: Tensor, tolerance: Tensor) -> Tensor:
    """Return the nearer of the stored weight and 1 + weight where it is the gain up to rounding."""
    weight = parameter(module, "weight")
    if weight is not None and weight.numel() == gain.numel():
        exact = weight.cpu().double().reshape(gain.shape)
        near = min(exact, 1 + exact, key=lambda one: float((gain - one).nan_to_num().norm()))
        if _near(gain, near, tolerance):
            return near.to(torch.promote_types(weight.dtype, torch.float32))
    return gain.float()
