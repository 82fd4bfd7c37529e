"""A model's parameters as carriers: all at once, or one layer at a time, however large it is."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.numerics.emulation import weight_rows
from layerlab.numerics.emulation.arithmetic import AnyFormat, EmulatedArithmetic
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, EmulationMode
from layerlab.numerics.emulation.op_site import VIEWS, OpSite
from layerlab.numerics.emulation.policies.apply import find_kept
from layerlab.numerics.emulation.policies.loaded_dtypes import find_followers, low_precision_weights
from layerlab.numerics.emulation.policies.policy import Policy
from layerlab.numerics.emulation.quantized_weights import find_unquantized, is_matrix
from layerlab.numerics.emulation.snapshot import Snapshot
from layerlab.numerics.emulation.weight_rows import ChangeRows, WeightRows
from layerlab.numerics.formats.formats import Format
from layerlab.numerics.formats.round import Rounder
from layerlab.numerics.formats.weight_layout import WeightLayout, find_layout
from layerlab.system.offload import (
    execution_device,
    fetch,
    is_offloaded,
    leave_weights_away,
)

Make = Callable[[], Tensor]


class LayerValues:
    """The values of the parameters of the layer that runs; those of the layer before are freed."""

    def __init__(self) -> None:
        self._layer: Any = None
        self._values: dict[int, Tensor] = {}

    def forget(self) -> None:
        """Free all values."""
        self._values.clear()

    def take(self, layer: Any, key: int, make: Make) -> Tensor:
        """Return the values of a parameter, made now if its layer has just begun to run."""
        if layer != self._layer:
            self._values.clear()
            self._layer = layer
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]


class LayerWeight(EmulatedTensor):
    """A parameter that makes its values when an operation asks for them.

    They are made anew in every layer that asks, so `make` has to give the same each time, and what
    is written into them is lost.
    """

    @staticmethod
    def __new__(
        cls, stored: Tensor, nominal: torch.dtype, device: torch.device, *carried: Any
    ) -> "LayerWeight":
        return torch.Tensor._make_wrapper_subclass(
            cls, stored.shape, strides=stored.stride(), dtype=nominal, device=device
        )

    def __init__(
        self,
        stored: Tensor,
        nominal: torch.dtype,
        device: torch.device,
        values: LayerValues,
        layer: Any,
        make: Make,
    ) -> None:
        self._known, self._layer, self._make = values, layer, make
        self.weight = True
        self.spread = None
        self.whole = None

    @property
    def held(self) -> Tensor:  # type: ignore[override]
        """The values, for as long as the layer runs."""
        return self._known.take(self._layer, id(self), self._make)


class CarriedWeights(EmulationMode):
    """The part of an emulation that gives a model carriers for its parameters and buffers.

    Attributes:
        gradients: after a backward pass, the gradient of each parameter by its name.

    Args:
        model: the model; it is not changed.
        arithmetic: which format what is rounded to.
        policy: what stays in float32.
    """

    def __init__(
        self, model: nn.Module, arithmetic: EmulatedArithmetic, policy: Policy | None
    ) -> None:
        super().__init__(arithmetic.wide)
        self.model = model
        self.arithmetic = arithmetic
        self.gradients: dict[str, Tensor] = {}
        self._followers = find_followers(model, arithmetic.low)
        self._unquantized = find_unquantized(model)
        self._policy = policy
        self._kept = find_kept(model, policy) if policy is not None else None

    @abstractmethod
    def rounder(self, format: AnyFormat) -> Rounder:
        """Return what rounds to a format."""

    @abstractmethod
    def note_weight(self, site: OpSite, format: AnyFormat | None) -> bool:
        """Take note of a parameter and the format it has, and return whether it is rounded."""

    @contextmanager
    def carrying(self, backward: bool, by_layer: bool) -> Iterator[None]:
        """Give the model carriers until the block ends."""
        at_once = backward or self.arithmetic.rounding == "stochastic"
        by_layer = not at_once and (by_layer or is_offloaded(self.model))
        values = LayerValues()
        with self._swap(backward, values if by_layer else None):
            with leave_weights_away(self.model):
                yield
        values.forget()

    @contextmanager
    def _swap(self, backward: bool, values: LayerValues | None) -> Iterator[None]:
        """Replace parameters and buffers by carriers; put all back whatever happens."""
        before = Snapshot(self.model)
        carried: dict[int, tuple[str, EmulatedTensor]] = {}
        try:
            stored = low_precision_weights(self.model, self.arithmetic.low, self._followers)
            for owner, name, table, value, dtype in stored:
                if id(value) not in carried:
                    # What is written into a buffer has to last.
                    lasting = values if isinstance(value, nn.Parameter) else None
                    carrier = self._carrier(value, OpSite(owner, name), dtype, lasting)
                    carrier.requires_grad_(backward and value.requires_grad)
                    carried[id(value)] = f"{owner}.{name}".lstrip("."), carrier
                table[name] = carried[id(value)][1]
            yield
            for full, carrier in carried.values():
                if carrier.grad is not None:
                    self.gradients[full] = carrier.grad.held  # type: ignore[attr-defined]
        finally:
            before.restore()

    def _carrier(
        self, value: Tensor, site: OpSite, low: torch.dtype, values: LayerValues | None
    ) -> EmulatedTensor:
        format = self.find_format(value, site)
        kept = self._kept and self._kept.parameter(str(site).replace(":", "."))
        if kept or low != self.arithmetic.low:
            low, format = torch.float32, None
        rounded = self.note_weight(site, format)
        format = format if rounded else None
        make = partial(self._values, value, site, format)
        if values is None or not value.is_contiguous():
            carrier = EmulatedTensor(make(), low)
            carrier.weight = True
            return carrier
        layer = site.module if site.layer is None else site.layer
        device = execution_device(self.model.get_submodule(site.module)) or value.device
        if self._in_rows(value, site, format):
            make = partial(self._rows, value, site, format, device)
        return LayerWeight(value, low, device, values, layer, make)

    def find_format(self, value: Tensor, site: OpSite) -> AnyFormat | None:
        """Return the format of a parameter."""
        given = self.arithmetic
        read = is_matrix(site.operation, value) and self.quantizes(site, given.weights)
        return given.weights if read else given.parameters

    def mark_views(
        self, func: Any, given: Sequence[Any], outputs: Sequence[EmulatedTensor]
    ) -> None:
        """Mark views of a parameter as parameters.

        Args:
            func: the operation.
            given: its floating arguments.
            outputs: its results.
        """
        if func._opname in VIEWS and given and isinstance(given[0], EmulatedTensor):
            for output in outputs:
                output.weight = given[0].weight

    def quantizes(self, site: OpSite, format: AnyFormat | None) -> bool:
        """Return whether the factors of a module's products have a format.

        One with scales is not that of head and router.
        """
        if format is None:
            return False
        return isinstance(format, Format) or site.module not in self._unquantized

    def _in_rows(self, value: Tensor, site: OpSite, format: AnyFormat | None) -> bool:
        """Return whether a parameter is widened some rows at a time: one that has many."""
        if value.dim() != 2 or value.numel() <= weight_rows.COPIED or self.arithmetic.accumulate:
            return False
        layout = find_layout(self.model.get_submodule(site.module), site.operation, value)
        # Formats with scales may have one for all rows.
        return layout == WeightLayout() and (format is None or isinstance(format, Format))

    def _rows(
        self, value: Tensor, site: OpSite, format: AnyFormat | None, device: torch.device
    ) -> Tensor:
        """Return a parameter whose rows are widened and rounded when they are read."""
        changes: list[ChangeRows] = []
        if format is not None:
            changes.append(partial(self._weight, site=site, format=format, in_place=True))
        return WeightRows(self._fetch(value, site), self.wide, device, changes)

    def _fetch(self, value: Tensor, site: OpSite) -> Tensor:
        """Return a parameter as it is stored, from where accelerate keeps it if not in memory."""
        if not value.is_meta:
            return value.detach()
        fetched = fetch(self.model.get_submodule(site.module), site.operation)
        assert fetched is not None, "weights that are nowhere were refused"
        return fetched

    def _values(self, value: Tensor, site: OpSite, format: AnyFormat | None) -> Tensor:
        """Return what a parameter holds."""
        stored = self._fetch(value, site)
        if value.is_meta:
            stored = stored.to(execution_device(self.model.get_submodule(site.module)))
        wide = stored.to(self.wide)
        if format is None:
            return wide
        own = wide.dtype != value.dtype
        return self._weight(wide, site, format, in_place=own).to(self.wide)

    def _weight(
        self, values: Tensor, site: OpSite, format: AnyFormat, in_place: bool = False
    ) -> Tensor:
        """Round a parameter to its format; groups and blocks lie along the summed axis.

        Each matrix of a stack, as of experts, has scales of its own.

        Args:
            in_place: the values are a copy that nobody else reads: a head takes gigabytes.
        """
        module = self.model.get_submodule(site.module)
        layout = find_layout(module, site.operation, values)
        matrices, round = layout.to_matrices(values), self.rounder(format)
        if matrices.dim() > 2:
            rounded = matrices if in_place else matrices.new_empty(matrices.shape)
            for one, place in zip(matrices, rounded, strict=True):
                round(one.contiguous(), place)
        elif in_place and matrices.is_contiguous():
            rounded = round(matrices, matrices)
        else:
            rounded = round(matrices.contiguous())
        return layout.to_stored(rounded, values).contiguous()
