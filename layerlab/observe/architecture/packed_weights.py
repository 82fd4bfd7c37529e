"""The numbers that weights stand for where a quantizer keeps them packed."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.system.offload import find_quantized, is_bitsandbytes, is_wrapped, parameter

# Endings of what quantizers keep beside a weight, or beside what enters a module.
SCALES = ("_scale", "_scale_inv", "_zero_point")


def unpack(module: nn.Module, name: str) -> Tensor | None:
    """Return the numbers that a parameter of `module` itself stands for; a plain one as it is."""
    own = module._parameters.get(name)
    with torch.no_grad():
        if own is not None and is_bitsandbytes(own):
            return _read_map(module)
        held = parameter(module, name)
        return held.dequantize() if held is not None and is_wrapped(held) else held


def read_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the numbers of every parameter in memory by its name."""
    for name, held in model.named_parameters():
        path, _, last = name.rpartition(".")
        if not held.is_meta and (numbers := unpack(model.get_submodule(path), last)) is not None:
            yield name, numbers


def is_packed(weight: Tensor) -> bool:
    """Return whether a weight of eight bits or fewer stands for numbers that are not found here."""
    return weight.dtype.itemsize == 1 and not is_bitsandbytes(weight)


def is_scale(module: nn.Module, name: str) -> bool:
    """Return whether a parameter is what a quantizer keeps beside the weight of a linear module."""
    return isinstance(module, nn.Linear) and name.endswith(SCALES)


def decompress(model: Any) -> None:
    """Unpack the weights that compressed-tensors packed, as the first call of a model would.

    That call would also put tables of its own in the place of all modules' parameters. Where only
    weights were quantized the modules are plain ones again; what is rounded of activations stays.
    """
    if not hasattr(model, "ct_decompress_hook"):
        return
    from compressed_tensors.compressors import decompress_module

    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            activations = scheme.input_activations or scheme.output_activations
            decompress_module(module, leave_decompressed=activations is not None)
    model.ct_decompress_hook.remove()
    del model.ct_decompress_hook
    if find_quantized(model) is None:
        model.hf_quantizer.remove_quantization_config(model)


def _read_map(module: Any) -> Tensor:
    """Return the weight of a linear module, from what it makes of unit vectors.

    On a processor bitsandbytes packs its weights otherwise from the first call on.
    """
    plain = copy.copy(module)
    plain._parameters = {**module._parameters, "bias": None}
    units = torch.eye(module.in_features, device=module.weight.device)
    numbers: Tensor = type(module).forward(plain, units)
    return numbers.T
