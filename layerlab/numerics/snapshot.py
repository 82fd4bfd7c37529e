"""What a model's modules hold, to be put back whatever its code did meanwhile."""

from typing import Any

from torch import Tensor, nn


class Snapshot:
    """The attributes, parameters and buffers of every module, as they were when it was taken.

    Tensors are kept by reference: what is written into one in place stays.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[nn.Module, dict[str, Any], list[dict[str, Tensor | None]]]] = [
            (module, dict(module.__dict__), [dict(table) for table in _tables(module)])
            for module in model.modules()
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


def _tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._parameters, module._buffers
