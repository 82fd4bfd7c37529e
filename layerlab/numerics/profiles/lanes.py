"""A model run under several profiles at once, so that their rounding errors can be exchanged.

Each carrier holds a value for every run, one object for those that do not differ, and each operation
is done once for each value that does. A run either rounds by a profile of its own, or it repeats
the errors that the first run made and takes those of the second at chosen results: what that
changes in the end is the share of these results in the difference of the two.
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
from layerlab.numerics.emulation.arithmetic import carrier, regime
from layerlab.numerics.emulation.carried_weights import LayerValues, LayerWeight
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, floating
from layerlab.numerics.emulation.op_site import EXACT, NUMBER, PRODUCTS, VIEWS, OpSite
from layerlab.numerics.formats.formats import SINGLE, Format, find
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.numerics.profiles.plain_attention import PlainAttention
from layerlab.numerics.profiles.profile import NumericsProfile
from layerlab.numerics.profiles.rules import rounding, rule
from layerlab.records.layer_names import EMBEDDING

LOW = torch.bfloat16  # what the model's code sees, so that its casts are operations
# What torch does in two products, each of which rounds.
CUBE, MULTIPLY = 3, torch.ops.aten.mul.Tensor
# What returns numbers and where they stand, which is decided by the first run.
CHOOSING = frozenset("topk sort max min kthvalue median mode".split())


class Result(NamedTuple):
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
    takes: Callable[[Result], bool] | None = None


class LayerLanes(LayerWeight):
    """A parameter that makes its values in every run when an operation asks for them."""

    @property
    def lanes(self) -> Sequence[Tensor]:  # type: ignore[override]
        """The values of each run, for as long as the layer runs."""
        found: Any = self._known.take(self._layer, id(self), self._make)
        return found  # type: ignore[no-any-return]

    @property
    def held(self) -> Tensor:  # type: ignore[override]
        """The values of the first run."""
        return self.lanes[0]


class SideBySide(Emulation):
    """The context that a model runs in under several profiles at once.

    Attributes:
        forwards: how many forward passes of one run all of them took together, by products.
        chosen: how often the blocks chose among values that differ, as a router does for a token.
        changed: how often the second run alone would have chosen otherwise.

    Args:
        model: the model; it is not changed.
        lanes: the runs; the first two have profiles.
        index: the operations of the model.
    """

    def __init__(self, model: nn.Module, lanes: Sequence[Lane], index: OperationIndex) -> None:
        wide = _carry(one.profile for one in lanes if one.profile is not None)
        super().__init__(model, replace(regime("bf16"), wide=wide))
        self.runs = tuple(lanes)
        self.index = index
        self.layers = count_layers(model)
        self.forwards = 0.0
        self.chosen = self.changed = 0
        self._products = self._computed = 0
        self._others: list[list[Tensor]] | None = None
        self._begun = False
        self._counts: Counter[str] = Counter()

    @contextmanager
    def running(self, backward: bool = False, by_layer: bool = True) -> Iterator["SideBySide"]:
        self._begun = False
        self._counts.clear()
        self._products = self._computed = self.chosen = self.changed = 0
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

    def round_all(self, values: Sequence[Tensor], result: Result) -> list[Tensor]:
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
        return self._settle([wide] * len(self.runs), Result(operation, layer), dtype == LOW, known)

    # Operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.pow.Tensor_Scalar and args[1] == CUBE:
            square = super().__torch_dispatch__(MULTIPLY, types, (args[0], args[0]))
            return super().__torch_dispatch__(MULTIPLY, types, (square, args[0]))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def perform(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._others = None
        if func._opname in PRODUCTS:
            args = self._read(args)
        carriers = [one for one in _carriers((args, kwargs)) if one.lanes is not None]
        product = func._opname in PRODUCTS
        self._products += product
        if not carriers:
            self._computed += product
            return super().perform(func, args, kwargs)
        every = {id(one): self.values(one) for one in carriers}
        known: dict[tuple[int, ...], Any] = {}
        results = []
        for run in range(len(self.runs)):
            key = tuple(id(every[id(one)][run]) for one in carriers)
            if key not in known:
                take = partial(_take, every, run)
                given, options = _map(take, tuple(args)), _map(take, dict(kwargs))
                known[key] = super().perform(func, given, options)
            results.append(known[key])
        self._computed += product * len(known)
        if len(known) > 1:
            self._others = [_floats(one) for one in results]
            if func._opname in CHOOSING and len(_flat(results[0])) == 2:
                self._choose(func, args, kwargs, results)
        return results[0]

    def _choose(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
    ) -> None:
        """Read, in every run, the entries that the first run has chosen."""
        names = [one.name for one in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        axis, at = given.get("dim", -1), results[0][1]
        self._others = [[one.gather(axis, at)] for one in self.values(args[0])]
        if self._place.layer is not None:
            mine, theirs = (one[1].sort(axis).values for one in results[:2])
            differs = (mine != theirs).any(axis)
            self.chosen += differs.numel()
            self.changed += int(differs.sum())

    def settle(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        given = [value for value in inputs if floating(value)]
        if func._opname in VIEWS and given and isinstance(given[0], EmulatedTensor):
            for output in outputs:
                output.weight = given[0].weight
        narrowed = _narrows(func, given, outputs[0])
        moved = func._opname in EXACT and bool(given) and not narrowed
        found = "" if moved else self._find(narrowed)
        self._counts[found] += 1
        for index, output in enumerate(outputs):
            if self._others is None:
                values = [output.held] * len(self.runs)
            else:
                values = [one[index] for one in self._others]
            if moved:
                values = _part(func, given, values)
            elif not (index and func._opname.endswith("_norm")):
                layer = self._find_layer(self._place, not self._begun)
                values = self._settle(values, Result(found, layer), output.dtype == LOW)
            self._lay(output, values)

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

    def _read(self, args: Sequence[Any]) -> list[Any]:
        """Round the factors of a product where a profile does."""
        factors, operation = list(args), self._place.operation
        right = len(factors) - 1
        if self.tracker.weighted:
            for index in range(right + 1):
                if floating(factors[index]) and not getattr(factors[index], "weight", False):
                    if factors[index].dim() > 1:
                        factors[index] = self._along(factors[index], "factors", index == right)
        elif operation == "scores":
            factors[-2] = self._along(factors[-2], "queries", False)
            factors[-1] = self._along(factors[-1], "cache", True)
        elif operation == "context":
            factors[-2] = self._along(factors[-2], "attention_weights", False)
            factors[-1] = self._along(factors[-1], "cache", False)
        return factors

    def _along(self, factor: Any, operation: str, turned: bool) -> Any:  # type: ignore[override]
        if not any(self._rules(operation, False)):
            return factor
        values = self.values(factor)
        if turned:
            values = _each(lambda one: one.transpose(-2, -1).contiguous(), values)
        layer = self._find_layer(self._place, not self._begun)
        values = self._settle(values, Result(operation, layer), False)
        if turned:
            values = _each(lambda one: one.transpose(-2, -1), values)
        read = EmulatedTensor(values[0], factor.dtype)
        self._lay(read, values)
        return read

    # Rounding

    def _rules(self, operation: str, low: bool) -> list[str | None]:
        return [rule(run.profile, operation, low) for run in self.runs if run.profile is not None]

    def _settle(
        self,
        values: Sequence[Tensor],
        result: Result,
        low: bool,
        weights: Mapping[str | None, Tensor] | None = None,
    ) -> list[Tensor]:
        """Round a result in every run: by its profile, or with the errors of the first two.

        Args:
            values: in every run.
            result: what they are.
            low: whether the code leaves them in its own dtype.
            weights: the roundings of a parameter, by rule.
        """
        known: dict[Any, Tensor] = {}
        operation = result.operation

        def round(number: int) -> Tensor:
            profile = self.runs[number].profile
            assert profile is not None
            name, value = rule(profile, operation, low), values[number]
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
            if (id(value), source) not in known:
                known[id(value), source] = value + (rounded - exact)
            settled.append(known[id(value), source])
        return settled

    def _lay(self, output: EmulatedTensor, values: Sequence[Tensor]) -> None:
        same = all(value is values[0] for value in values)
        output.lanes = None if same else tuple(values)
        output.held = values[0]

    # Writing

    def _write(self, func: Any, flat: list[Any], args: Any, kwargs: Any) -> Any:
        target = kwargs.get("out", args[0] if args else None)
        differ = any(one.lanes is not None for one in _carriers((args, kwargs)))
        if not differ:
            return super()._write(func, flat, args, kwargs)
        if not isinstance(target, EmulatedTensor) or (
            target.lanes is None and target.held._is_view()
        ):
            raise UserError(
                f"{self._place or 'the model'} writes by {func} into a part of a tensor, which"
                " runs side by side cannot follow"
            )
        # Each run needs a tensor of its own to write into.
        kept: dict[int, Tensor] = {}
        own = self.values(target)
        target.lanes = tuple(_own(one, kept) for one in own)
        target.held = target.lanes[0]
        self.compute(func, args, kwargs)
        settled = EmulatedTensor(target.held, target.dtype)
        self._others = [[one] for one in target.lanes]
        self._finish(func, flat, [settled])
        for there, value in zip(target.lanes, self.values(settled), strict=True):
            if there is not value:
                there.copy_(value)
        return target


def count_layers(model: nn.Module) -> int:
    """Return the number of blocks, by the numbers in the names of modules."""
    numbers = [NUMBER.search(name) for name, _ in model.named_modules()]
    return 1 + max((int(one.group()) for one in numbers if one), default=-1)


def _own(value: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """Return a value, or a copy of it where another run has it already."""
    if id(value) in kept:
        return value.clone()
    kept[id(value)] = value
    return value


def _carry(profiles: Any) -> torch.dtype:
    """Return the dtype in which results of all formats are rounded once."""
    names = {name for one in profiles for name in (one.format, *one.operations.values())}
    formats = [find(name) for name in names]
    narrow = [one for one in formats if isinstance(one, Format) and one.digits < SINGLE]
    double = any(carrier(one) == torch.float64 for one in narrow)
    return torch.float64 if double else torch.float32


def _narrows(func: Any, given: Sequence[Tensor], output: Tensor) -> bool:
    """Return whether an operation brings back to the model's dtype what its code has widened."""
    return (
        func._opname in ("_to_copy", "copy_")
        and output.dtype == LOW
        and bool(given)
        and given[-1].dtype != LOW
    )


def _part(func: Any, given: Sequence[Any], values: Sequence[Tensor]) -> list[Tensor]:
    """Return what was only moved; a cast that moves nothing is a copy all the same."""
    if func._opname != "_to_copy":
        return list(values)
    return _each(Tensor.clone, values)


def _each(change: Callable[[Tensor], Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """Change each value once, however many runs share it."""
    known = {id(value): value for value in values}
    changed = {key: change(value) for key, value in known.items()}
    return [changed[id(value)] for value in values]


def _carriers(value: Any) -> Iterator[EmulatedTensor]:
    if isinstance(value, EmulatedTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _carriers(one)
    elif isinstance(value, Mapping):
        yield from _carriers(list(value.values()))


def _take(every: Mapping[int, Sequence[Tensor]], run: int, value: EmulatedTensor) -> Any:
    """Return a carrier as one run has it."""
    if id(value) not in every:
        return value
    own = EmulatedTensor(every[id(value)][run], value.dtype)
    own.weight = value.weight
    return own


def _map(take: Callable[[EmulatedTensor], Any], value: Any) -> Any:
    if isinstance(value, EmulatedTensor):
        return take(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(take, one) for one in value)
    if isinstance(value, dict):
        return {name: _map(take, one) for name, one in value.items()}
    return value


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [found for one in value for found in _flat(one)]
    return [value]


def _floats(value: Any) -> list[Tensor]:
    return [one for one in _flat(value) if floating(one)]
