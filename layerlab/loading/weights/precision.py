"""In which precision a saved model is read, and where it fits into memory so."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from layerlab.loading import options
from layerlab.loading.weights.saved import remark
from layerlab.loading.weights.weightless import Outline
from layerlab.system.hardware import free_memory

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in options.DTYPES}
# As safetensors calls those that a model may compute with.
KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
WIDER = (torch.float32, torch.float64)  # than sixteen bits
MEMORY_SHARE = 0.8
PROCESSOR = (None, "cpu", "auto")  # where the processor computes, or may
LARGE = 100_000_000  # parameters: a choice between 0.4 M, slower on a GPU, and 1 B


def precision(
    config: Any, asked: str | None, stored: Mapping[str, Outline], device: str | None
) -> torch.dtype | str:
    """Return the precision as asked, else as config.json says, else as most weights are stored.

    No CPU computes well in float16.

    Args:
        stored: its weights.
        device: that it is read on.
    """
    if asked is not None:
        return DTYPES[asked]
    dtype = config.dtype or stored_precision(stored)
    if dtype is None or (config.dtype and dtype != torch.float16):
        return "auto"
    return torch.float32 if dtype == torch.float16 and device in PROCESSOR else dtype


def as_stored(empty: PreTrainedModel, stored: Mapping[str, Outline]) -> PreTrainedModel:
    """Return a model without weights in the precision of those that stay on the disk."""
    kind: Any = stored_precision(stored)
    return empty if kind is None else empty.to(kind)


def stored_precision(stored: Mapping[str, Outline]) -> torch.dtype | None:
    """Return the precision of most of the stored numbers; None where it is none of a model's."""
    sizes: Counter[str] = Counter()
    for one in stored.values():
        sizes[one.kind] += math.prod(one.shape)
    return KINDS.get(sizes.most_common(1)[0][0]) if sizes else None


def remark_rounded(model: PreTrainedModel, source: str, stored: Mapping[str, Outline]) -> None:
    """Say, once, that wider weights than those of a model were rounded to its precision."""
    kind = stored_precision(stored)
    if kind in WIDER and model.dtype == torch.bfloat16:
        wide = str(kind).removeprefix("torch.")
        remark(
            source,
            f"its dtype is bfloat16, and the weights beside it are stored as {wide}: they are "
            f"rounded to bfloat16; --dtype {wide} keeps them",
        )


def fits(empty: PreTrainedModel, dtype: torch.dtype | str, device: str | None) -> bool:
    """Return whether the weights of a model take less than most of the free memory of a device."""
    kind = dtype if isinstance(dtype, torch.dtype) else empty.dtype
    place = "cpu" if device in PROCESSOR else device
    return _count(empty) * kind.itemsize < MEMORY_SHARE * free_memory(place)


def choose_device(empty: PreTrainedModel, dtype: torch.dtype | str) -> str | None:
    """Return the GPU for a large model whose weights fit there; None for the processor."""
    if _count(empty) < LARGE or not torch.cuda.is_available():
        return None
    try:
        return "cuda" if fits(empty, dtype, "cuda") else None
    except RuntimeError:  # another process has it for itself
        return None


def _count(empty: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in empty.parameters())
