"""Snapshots of a model's modules, put back whatever its code did meanwhile."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

# Of floating buffers, those with no more entries are put back by value: a norm's running moments
# are, tables that no code writes into need not be copied.
SMALL = 1 << 16


class Snapshot:
    """The attributes, parameters and buffers of every module, as they were when it was taken.

    Parameters and large floating buffers are kept by reference: what is written into one in place
    stays. Of other buffers the values are kept too, since norms and counters write into theirs.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[nn.Module, dict[str, Any], list[dict[str, Tensor | None]]]] = [
            (module, dict(module.__dict__), [dict(table) for table in _tables(module)])
            for module in model.modules()
        ]
        self._values = [
            (value, value.detach().clone())
            for *_, (_, buffers) in self._kept
            for value in buffers.values()
            if value is not None and _is_written(value)
        ]

    def restore(self) -> None:
        """Put everything back, but for the choice between training and evaluation."""
        for module, own, tables in self._kept:
            training = module.training
            module.__dict__.clear()
            module.__dict__.update(own)
            for table, kept in zip(_tables(module), tables, strict=True):
                table.clear()
                table.update(kept)
            module.training = training
        with torch.no_grad():
            for value, before in self._values:
                if not torch.equal(value, before):
                    value.copy_(before)


def copy_sharing(model: nn.Module) -> nn.Module:
    """Return a copy whose parameters share their numbers with the model until they are cast."""
    shared = {
        id(one): nn.Parameter(one.detach(), requires_grad=False) for one in model.parameters()
    }
    return copy.deepcopy(model, dict[int, Any](shared))


def _is_written(value: Tensor) -> bool:
    """Return whether a buffer's values are worth a copy."""
    if value.is_meta:
        return False
    return not value.dtype.is_floating_point or value.numel() <= SMALL


def _tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._parameters, module._buffers
