"""Layouts in which tools keep the weight of a layer: the tensors, and the numbers in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerlab.loading.packed.integers import BYTE, read_integers

PackedParts = Mapping[str, Tensor]
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # places of a word's columns among its numbers
# Numbers of four bits: a sign, two bits of exponent, one of mantissa.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = torch.cat([E2M1, -E2M1])
SIDE = 128  # of the square blocks that share a scale


@dataclass(frozen=True)
class PackedLayout:
    """Names and meaning of the tensors that a tool keeps for a weight.

    Attributes:
        mark: the name, within its module, that only packed weights have beside them.
        parts: the names of what a weight is made of, which may lack some.
        ranges: scales of what enters a layer or is kept of it, which no weight needs.
        unpack: returns the weight, [out, in], of the parts and the settings of its module.
    """

    mark: str
    parts: frozenset[str]
    ranges: frozenset[str]
    unpack: Callable[[PackedParts, Mapping[str, Any]], Tensor]


def _unpack_gptq(parts: PackedParts, settings: Mapping[str, Any]) -> Tensor:
    """Return the weight of qweight [in x bits / 32, out] and of zeros and scales [groups, out]."""
    scales, words = parts["scales"], parts["qzeros"]
    bits = _bits(words, scales.shape[1])
    numbers = read_integers(parts["qweight"].mT, bits)
    less = _stores_one_less(settings)
    if less and BYTE % bits == 0:  # of a whole word, where one of zero borrows from the next
        words = words + ((1 << BYTE * words.itemsize) - 1) // ((1 << bits) - 1)
    zeros = read_integers(words, bits).to(torch.int16)
    if less and BYTE % bits:
        zeros = (zeros + 1) & ((1 << bits) - 1)
    groups = parts.get("g_idx")
    if groups is None:
        size = _group_size(numbers.shape[1], scales.shape[0], settings)
        groups = torch.arange(numbers.shape[1]) // size
    if groups.is_floating_point() or int(groups.min()) < 0:
        raise ValueError("g_idx names a group that there is not")
    groups = groups.long()
    kind = scales.dtype
    return (numbers.to(kind) - zeros.T.to(kind)[:, groups]) * scales.T[:, groups]


def _stores_one_less(settings: Mapping[str, Any]) -> bool:
    """Return whether zeros are stored as one less than they are: the first version of GPTQ."""
    named = (settings.get(name) for name in ("checkpoint_format", "format", "packing_format"))
    found = str(next((one for one in named if one), "gptq"))
    return found.lower() in ("gptq", "auto_round:auto_gptq")


def _group_size(inputs: int, groups: int, settings: Mapping[str, Any]) -> int:
    """Return how many neighbouring inputs share a scale; the last group may be smaller."""
    given = int(settings.get("group_size") or 0)
    if given > 0 and -(-inputs // given) == groups:
        return given
    size = _divide(inputs, groups)
    if groups > 1 and size & (size - 1):  # no tool has such groups: the last one is smaller
        raise ValueError(f"{inputs} inputs lie in {groups} groups of which the size is not known")
    return size


def _unpack_awq(parts: PackedParts, _: Mapping[str, Any]) -> Tensor:
    """Return the weight of qweight [in, out / 8] and of zeros and scales [groups, out]."""
    scales = parts["scales"]
    numbers, zeros = (
        read_integers(parts[name], 4).unflatten(-1, (-1, 8))[..., AWQ_ORDER].flatten(-2)
        for name in ("qweight", "qzeros")
    )
    kind, repeats = scales.dtype, _divide(numbers.shape[0], scales.shape[0])
    spread = [one.repeat_interleave(repeats, 0) for one in (zeros.to(kind), scales)]
    return ((numbers.to(kind) - spread[0]) * spread[1]).T


def _unpack_mlx(parts: PackedParts, settings: Mapping[str, Any]) -> Tensor:
    """Return the weight of words [..., in x bits / 32] and scales (and biases) [..., groups]."""
    words, scales = parts["weight"], parts["scales"]
    group = int(settings["group_size"])
    numbers = read_integers(words, _bits(words, scales.shape[-1] * group))
    mode = settings.get("mode", "affine")
    if mode == "affine":
        spread = [parts[name].repeat_interleave(group, -1) for name in ("scales", "biases")]
        return numbers.to(scales.dtype) * spread[0] + spread[1]
    kind = torch.float8_e4m3fn if mode == "nvfp4" else torch.float8_e8m0fnu
    values = numbers.view(torch.float8_e4m3fn) if mode == "mxfp8" else E2M1[numbers.int()]
    return values.bfloat16() * scales.view(kind).bfloat16().repeat_interleave(group, -1)


def _unpack_scaled(parts: PackedParts, _: Mapping[str, Any]) -> Tensor:
    """Return the weight of numbers of four or eight bits and the scales of rows or blocks."""
    held, scale = parts["weight"], parts["weight_scale"]
    if held.dtype != torch.uint8:
        numbers = held.float()
    elif scale.itemsize == 1:
        numbers = E2M1[read_integers(held, 4).int()]
    else:  # two rows share one
        numbers = read_integers(held.mT, 4).mT.float()
        numbers = numbers - 16 * (numbers > 7)
    if scale.dtype == torch.uint8:
        scale = scale.view(torch.float8_e8m0fnu)
    scale = scale.float() * parts.get("weight_scale_2", torch.ones(())).float()
    weight = numbers * _spread(scale, numbers.shape)
    return weight * parts.get("pre_quant_scale", torch.ones(())).float()


def _spread(scale: Tensor, shape: torch.Size) -> Tensor:
    """Return the scale of each number: of all, of its row, or of its block."""
    if scale.dim() == 4:  # of squares, the last of a side being smaller
        scale = scale[:, 0, :, 0]
        if scale.shape != tuple(-(-side // SIDE) for side in shape):
            raise ValueError(f"its squares have other sides than {SIDE}")
        wide = scale.repeat_interleave(SIDE, 0).repeat_interleave(SIDE, 1)
        return wide[: shape[0], : shape[1]]
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if scale.shape[0] != shape[0]:
        raise ValueError(f"{shape[0]} rows have {scale.shape[0]} rows of scales")
    scale = scale.reshape(shape[0], -1)
    return scale.repeat_interleave(_group_size(shape[1], scale.shape[1], {}), 1)


def _bits(words: Tensor, count: int) -> int:
    """Return how many bits a number has, of rows that hold `count` of them."""
    return _divide(BYTE * words.itemsize * words.shape[-1], count)


def _divide(total: int, parts: int) -> int:
    if not parts or total % parts:
        raise ValueError(f"{total} cannot be divided into {parts}")
    return total // parts


_ZEROS = frozenset({"qweight", "qzeros", "scales"})
LAYOUTS = {
    "gptq": PackedLayout("qweight", _ZEROS | {"g_idx"}, frozenset(), _unpack_gptq),
    "awq": PackedLayout("qweight", _ZEROS, frozenset(), _unpack_awq),
    "mlx": PackedLayout(
        "scales", frozenset({"weight", "scales", "biases"}), frozenset(), _unpack_mlx
    ),
    "modelopt": PackedLayout(
        "weight_scale",
        frozenset({"weight", "weight_scale", "weight_scale_2", "pre_quant_scale"}),
        frozenset({"input_scale", "output_scale", "k_scale", "v_scale"}),
        _unpack_scaled,
    ),
}
