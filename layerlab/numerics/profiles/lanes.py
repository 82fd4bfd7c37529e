"""A model run under several profiles at once, so that their rounding errors can be exchanged.

Each carrier holds a value for every run, one object for those that do not differ, and each
operation is done once for each value that does. A run either rounds by a profile of its own, or it
repeats the errors that the first run made and takes those of the second at chosen results: what
that changes in the end is the share of these results in the difference of the two.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from layerlab.errors import UserError
from layerlab.numerics.emulation.accumulation import ADDING
from layerlab.numerics.emulation.arithmetic import regime
from layerlab.numerics.emulation.carried_weights import LayerValues, LayerWeight
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, floating, writes_in_place
from layerlab.numerics.emulation.op_site import EXACT, NUMBER, PRODUCTS, VIEWS, OpSite
from layerlab.numerics.formats.formats import find
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.numerics.profiles.expert_choices import ExpertChoices, compare_choices
from layerlab.numerics.profiles.lane_values import (
    LayerLanes,
    ProductCall,
    carry_over,
    change_each,
    compute_lanes,
    find_carriers,
    find_floats,
    flatten,
    narrows,
    sum_products,
)
from layerlab.numerics.profiles.lane_writes import keep_apart, note_views
from layerlab.numerics.profiles.plain_attention import PlainAttention
from layerlab.numerics.profiles.profile import NumericsProfile
from layerlab.numerics.profiles.rules import find_carrier, rounding, rule
from layerlab.records.layer_names import EMBEDDING

# What torch does in two products, each of which rounds.
CUBE, MULTIPLY = 3, torch.ops.aten.mul.Tensor
LOW = torch.bfloat16  # what the model's code sees, so that its casts are operations
# What returns numbers and where they stand, which is decided by the first run.
CHOOSING = frozenset("topk sort max min kthvalue median mode".split())


class OperationResult(NamedTuple):
    """What a profile rounds: the operation, and the layer that it lies in."""

    operation: str
    layer: int


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One of the runs.

    Attributes:
        profile: what it rounds by; None for a run that repeats errors of the first two.
        takes: where such a run takes the errors of the second in place of the first.
    """

    profile: NumericsProfile | None = None
    takes: Callable[[OperationResult], bool] | None = None


class SideBySide(Emulation):
    """The context that a model runs in under several profiles at once.

    Attributes:
        forwards: how many forward passes of one run all of them took together, by products.
        choices: of the blocks among values that differ, as a router makes for each token.

    Args:
        model: the model; it is not changed.
        lanes: the runs; the first two have profiles.
        index: the operations of the model.
    """

    def __init__(self, model: nn.Module, lanes: Sequence[Lane], index: OperationIndex) -> None:
        self._profiles = {n: one.profile for n, one in enumerate(lanes) if one.profile is not None}
        self._unrounded = [n for n, one in self._profiles.items() if "norm_input" in one.operations]
        wide = find_carrier(self._profiles.values())
        super().__init__(model, replace(regime("bf16"), wide=wide))
        self.runs = tuple(lanes)
        self.index = index
        self.layers = count_layers(model)
        self.forwards = 0.0
        self.choices = ExpertChoices()
        self._products = self._computed = 0
        self._others: list[list[Tensor]] | None = None
        self._call: ProductCall | None = None
        self._begun = False
        self._counts: Counter[str] = Counter()

    @contextmanager
    def running(self, backward: bool = False, by_layer: bool = True) -> Iterator["SideBySide"]:
        self._begun = False
        self._counts.clear()
        self._products = self._computed = 0
        self.choices = ExpertChoices()
        with self.index.following(self.model), super().running(backward, by_layer):
            yield self
        self.forwards += self._computed / max(self._products, 1)

    def open_attention(self, in_place: bool) -> TorchFunctionMode:
        return PlainAttention()

    def release(self, output: Any) -> Any:
        return output

    def values(self, value: Any) -> list[Tensor]:
        """Return a value in each run."""
        lanes = value.lanes
        return [value.held] * len(self.runs) if lanes is None else list(lanes)

    def round_all(self, values: Sequence[Tensor], result: OperationResult) -> list[Tensor]:
        """Round what is computed of a model's outputs, in every run, where a profile names it."""
        return self._settle(values, result, False)

    # Parameters

    def _carrier(
        self, value: Tensor, place: OpSite, low: torch.dtype, values: LayerValues | None
    ) -> EmulatedTensor:
        plain = super()._carrier(value, place, low, values)
        make = partial(self._make_lanes, value, place, plain.dtype)
        if not isinstance(plain, LayerWeight):
            self._lay(plain, make())
            return plain
        kept: Any = plain
        lanes = LayerLanes(value, plain.dtype, plain.device, kept._known, kept._layer, make)  # type: ignore[arg-type]
        return lanes

    def _values(self, value: Tensor, place: OpSite, format: Any) -> Tensor:
        # Each run rounds for itself.
        return super()._values(value, place, None)

    def _make_lanes(self, value: Tensor, place: OpSite, dtype: torch.dtype) -> list[Tensor]:
        wide = self._values(value, place, None)
        operation = self.index.find_weight(place)
        layer = self._find_layer(place, operation == "embedding_weights")
        known: dict[str | None, Tensor] = {None: wide}
        for name in self._rules(operation, dtype == LOW):
            if name not in known:
                assert name is not None
                known[name] = self._weight(wide, place, find(name))
        return self._settle(
            [wide] * len(self.runs), OperationResult(operation, layer), dtype == LOW, known
        )

    # Operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.pow.Tensor_Scalar and args[1] == CUBE:
            square = super().__torch_dispatch__(MULTIPLY, types, (args[0], args[0]))
            return super().__torch_dispatch__(MULTIPLY, types, (square, args[0]))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def perform(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._others = self._call = None
        if func._opname in PRODUCTS:
            args = self._read_factors(args)
        elif self.index.is_norm(self._place):
            args = [self._read_sum(one) for one in args]
        if func._opname in PRODUCTS | ADDING:
            self._call = func._opname, args, kwargs
        carriers = [one for one in find_carriers((args, kwargs)) if one.lanes is not None]
        product = func._opname in PRODUCTS
        self._products += product
        if not carriers:
            self._computed += product
            return super().perform(func, args, kwargs)
        every = {id(one): self.values(one) for one in carriers}
        given, perform = (tuple(args), dict(kwargs)), partial(super().perform, func)
        runs = dict.fromkeys(range(len(self.runs)), perform)
        results = list(compute_lanes(given, every, runs).values())
        different = len(set(map(id, results)))
        self._computed += product * different
        if different > 1:
            self._others = [find_floats(one) for one in results]
            if func._opname in CHOOSING and len(flatten(results[0])) == 2:
                self._choose(func, args, kwargs, results)
        return results[0]

    def _choose(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
    ) -> None:
        """Read, in every run, the entries that the first run has chosen."""
        names = [one.name for one in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        axis, at = given.get("dim", -1), results[0][1]
        dropped = at.dim() < args[0].dim()
        places = at.unsqueeze(axis) if dropped else at
        read = [one.gather(axis, places) for one in self.values(args[0])]
        self._others = [[one.squeeze(axis) if dropped else one] for one in read]
        if self._place.layer is not None and not dropped:
            pair = [one.movedim(axis, -1) for one in self.values(args[0])[:2]]
            chosen = [one[1].movedim(axis, -1) for one in results[:2]]
            self.choices.add(compare_choices((pair[0], pair[1]), (chosen[0], chosen[1])))

    def settle(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        given = [value for value in inputs if floating(value)]
        if func._opname in VIEWS and given and isinstance(given[0], EmulatedTensor):
            for output in outputs:
                output.weight = given[0].weight
        if func.is_view and given and isinstance(given[0], EmulatedTensor):
            note_views(given[0], outputs)
        narrowed = narrows(func, given, outputs[0], LOW)
        moved = func._opname in EXACT and bool(given) and not narrowed
        found = "" if moved else self._find(narrowed)
        self._counts[found] += 1
        # What is looked up is read again with every sum that is not rounded.
        self._counts["residual"] += func._opname == "embedding"
        every = self._others or [[one.held for one in outputs]] * len(self.runs)
        for index, output in enumerate(outputs):
            values = [one[index] for one in every]
            if moved:
                values = carry_over(func, given, values)
            elif not (index and func._opname.endswith("_norm")):
                result = OperationResult(found, self._find_layer(self._place, not self._begun))
                if found == "residual":
                    kept = change_each(Tensor.clone, values) if writes_in_place(func) else values
                    output.unrounded = {number: kept[number] for number in self._unrounded}
                if found == "norm" and (own := self._sum("norm_inside")):
                    # A whole norm in one operation, which has its sums inside.
                    inside = OperationResult("norm_inside", result.layer)
                    values = self._settle(values, inside, False, own=own)
                values = self._settle(values, result, output.dtype == LOW, own=self._sum(found))
            self._lay(output, values)

    def _sum(self, operation: str) -> dict[int, Tensor]:
        """Return a result in the runs whose profile says how it is summed."""
        orders = {n: p.sums[operation] for n, p in self._profiles.items() if operation in p.sums}
        summed = sum_products(self._call, orders, self.values, self.wide) if self._call else {}
        self._computed += len(set(map(id, summed.values())))
        return summed

    def _find(self, narrowed: bool) -> str:
        if self._place.layer is not None:
            self._begun = True
        if narrowed:
            return self.index.find_cast(self._place)
        return self.index.find(self._place, self.tracker.weighted)

    def _find_layer(self, place: OpSite, before: bool) -> int:
        if place.layer is not None:
            return place.layer
        return EMBEDDING if before else self.layers

    def _read_factors(self, args: Sequence[Any]) -> list[Any]:
        """Round the factors of a product where a profile does."""
        factors, operation = list(args), self._place.operation
        right = len(factors) - 1
        if self.tracker.weighted:
            for index in range(right + 1):
                if not floating(factors[index]) or factors[index].dim() < 2:
                    continue
                if not getattr(factors[index], "weight", False):
                    factors[index] = self._along(factors[index], "factors", index == right)
                elif self.index.reads_table(self._place) and self._reads_otherwise():
                    factors[index] = self._along(factors[index], "weights", index == right, True)
        elif operation == "scores":
            factors[-2] = self._along(factors[-2], "queries", False)
            factors[-1] = self._along(factors[-1], "cache", True)
        elif operation == "context":
            factors[-2] = self._along(factors[-2], "attention_weights", False)
            factors[-1] = self._along(factors[-1], "cache", False)
        return factors

    def _reads_otherwise(self) -> bool:
        """Return whether the table of embeddings is not stored as products read it."""
        return self._rules("weights", True) != self._rules("embedding_weights", True)

    def _along(self, factor: Any, operation: str, turned: bool, low: bool = False) -> Any:
        if not any(self._rules(operation, low)):
            return factor
        values = self.values(factor)
        if turned:
            values = change_each(lambda one: one.transpose(-2, -1).contiguous(), values)
        layer = self._find_layer(self._place, not self._begun)
        values = self._settle(values, OperationResult(operation, layer), low)
        if turned:
            values = change_each(lambda one: one.transpose(-2, -1), values)
        return self._carry(values, factor.dtype)

    def _read_sum(self, value: Any) -> Any:
        """Return what a norm reads of the residual stream: a sum before it is rounded, or after."""
        if not getattr(value, "unrounded", None):
            return value
        result = OperationResult("norm_input", self._find_layer(self._place, False))
        values = self._settle(self.values(value), result, False, own=value.unrounded)
        return self._carry(values, value.dtype)

    def _carry(self, values: Sequence[Tensor], dtype: torch.dtype) -> EmulatedTensor:
        carrier = EmulatedTensor(values[0], dtype)
        self._lay(carrier, values)
        return carrier

    # Rounding

    def _rules(self, operation: str, low: bool) -> list[str | None]:
        return [rule(one, operation, low) for one in self._profiles.values()]

    def _settle(
        self,
        values: Sequence[Tensor],
        result: OperationResult,
        low: bool,
        weights: Mapping[str | None, Tensor] | None = None,
        own: Mapping[int, Tensor] | None = None,
    ) -> list[Tensor]:
        """Round a result in every run: by its profile, or with the errors of the first two.

        Args:
            values: in every run.
            result: what they are.
            low: whether the code leaves them in its own dtype.
            weights: the roundings of a parameter, by rule.
            own: what runs with a profile of their own round in place of the values.
        """
        known: dict[Any, Tensor] = {}
        operation = result.operation

        def round(number: int) -> Tensor:
            profile, value = self._profiles[number], (own or {}).get(number, values[number])
            name = rule(profile, operation, low)
            if weights is not None:
                return weights[name]
            if name is None or self._counts[operation] % profile.every.get(operation, 1):
                return value
            if (id(value), name) not in known:
                known[id(value), name] = rounding(name)(value)
            return known[id(value), name]

        first = [round(0), round(1)]
        settled = list(first)
        for number, run in enumerate(self.runs[2:], 2):
            if run.takes is None:
                settled.append(round(number))
                continue
            source, value = int(run.takes(result)), values[number]
            exact, rounded = values[source], first[source]
            if value is exact or rounded is exact:
                settled.append(rounded if value is exact else value)
                continue
            if source not in known:
                # What is infinite, as a mask, has no error.
                endless = {"posinf": torch.inf, "neginf": -torch.inf}
                known[source] = (rounded - exact).nan_to_num_(nan=0.0, **endless)
            if (id(value), source) not in known:
                known[id(value), source] = value + known[source]
            settled.append(known[id(value), source])
        return settled

    def _lay(self, output: EmulatedTensor, values: Sequence[Tensor]) -> None:
        same = all(value is values[0] for value in values)
        output.lanes = None if same else tuple(values)
        output.held = values[0]

    # Writing

    def _write(self, func: Any, flat: list[Any], args: Any, kwargs: Any) -> Any:
        target = kwargs.get("out", args[0] if args else None)
        differ = any(one.lanes is not None for one in find_carriers((args, kwargs)))
        if not differ:
            return super()._write(func, flat, args, kwargs)
        own = None
        if isinstance(target, EmulatedTensor) and not isinstance(target, LayerWeight):
            own = keep_apart(target, find_carriers((args, kwargs)), self.values)
        if own is None:
            raise UserError(
                f"{type(self.model).__name__} writes by {func._opname} into a parameter or a"
                " part of a tensor, which runs side by side cannot follow; take a model without"
            )
        self.compute(func, args, kwargs)
        settled = EmulatedTensor(target.held, target.dtype)
        self._others = [[one] for one in own]
        self._finish(func, flat, [settled])
        for there, value in zip(own, self.values(settled), strict=True):
            if there is not value:
                there.copy_(value)
        target.unrounded = settled.unrounded
        return target


def count_layers(model: nn.Module) -> int:
    """Return the number of blocks, by the numbers in the names of modules."""
    numbers = [NUMBER.search(name) for name, _ in model.named_modules()]
    return 1 + max((int(one.group()) for one in numbers if one), default=-1)
