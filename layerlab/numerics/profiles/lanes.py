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
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from layerlab.errors import UserError
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.carried_weights import LayerValues, LayerWeight
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, floating, writes_in_place
from layerlab.numerics.emulation.inner_roundings import ADDING
from layerlab.numerics.emulation.op_site import PRODUCTS, OpSite, moves
from layerlab.numerics.formats.formats import find
from layerlab.numerics.profiles.classify import OperationIndex, OperationResult, count_layers
from layerlab.numerics.profiles.expert_choices import ChangedChoices, compare_choices
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
    take_entries,
)
from layerlab.numerics.profiles.lane_writes import keep_apart, note_stream, note_views
from layerlab.numerics.profiles.plain_attention import PlainAttention
from layerlab.numerics.profiles.profile import NumericsProfile
from layerlab.numerics.profiles.rules import find_carrier, rounding, rule
from layerlab.records.layer_names import EMBEDDING

LOW = torch.bfloat16  # what the model's code sees, so that its casts are operations
# What returns numbers and where they stand, which is decided by the first run.
CHOOSING = frozenset("topk sort max min kthvalue median mode".split())


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
        products: how many the model's code has done, in all passes.
        computed: how many were computed for them, each once for runs that share its factors.
        rounded: results that one of the first two runs rounds.
        choices: among experts, of each module that makes them, where the values differ.

    Args:
        model: the model; it is not changed.
        lanes: the runs; the first two have profiles.
        index: the operations of the model.
        wide: dtype that values are held in; left out, what the profiles ask for.
        behind: whether all that is run lies behind the blocks.
    """

    def __init__(
        self,
        model: nn.Module,
        lanes: Sequence[Lane],
        index: OperationIndex,
        wide: torch.dtype | None = None,
        behind: bool = False,
    ) -> None:
        self._profiles = {n: one.profile for n, one in enumerate(lanes) if one.profile is not None}
        self._unrounded = [n for n, one in self._profiles.items() if "norm_input" in one.operations]
        wide = wide or find_carrier(self._profiles.values())
        super().__init__(model, replace(make_arithmetic("bf16"), wide=wide))
        self.runs = tuple(lanes)
        self.index = index
        self.layers = count_layers(model)
        self.products = self.computed = 0
        self.rounded: set[OperationResult] = set()
        self.choices: dict[str, ChangedChoices] = {}
        self._others: list[list[Tensor]] | None = None
        self._call: ProductCall | None = None
        self._begun = self._behind = behind
        self._counts: Counter[str] = Counter()

    @contextmanager
    def running(self, backward: bool = False, by_layer: bool = True) -> Iterator["SideBySide"]:
        self.restart()
        self.choices = {}
        with self.index.following(self.model), super().running(backward, by_layer):
            yield self

    def restart(self) -> None:
        """Count results from the beginning, as where the same part of a model runs again."""
        self._begun = self._behind
        self._counts.clear()

    def open_attention(self, backward: bool) -> TorchFunctionMode:
        return PlainAttention(self._mark, self._profiles.values(), len(self.runs))

    def _mark(self) -> Callable[[], None]:
        """Return what goes back to where the run is now, so that a result counts once."""
        before, go_back = (self._counts.copy(), self.products, self.computed), self.tracker.mark()

        def restart() -> None:
            self._counts, self.products, self.computed = before[0].copy(), *before[1:]
            go_back()

        return restart

    def release(self, output: Any) -> Any:
        return output

    def values(self, value: Any) -> list[Tensor]:
        """Return a value in each run."""
        lanes = value.lanes
        return [value.held] * len(self.runs) if lanes is None else list(lanes)

    def carry(self, values: Sequence[Tensor], dtype: torch.dtype) -> EmulatedTensor:
        """Return a carrier of the values of each run."""
        found = EmulatedTensor(values[0], dtype)
        self._lay(found, values)
        return found

    def round_all(self, values: Sequence[Tensor], operation: str) -> list[Tensor]:
        """Round what is computed of a model's outputs where a profile names it."""
        return self._settle(values, self._locate(operation, OpSite(""), False), False)

    # Parameters

    def _carrier(
        self, value: Tensor, site: OpSite, low: torch.dtype, values: LayerValues | None
    ) -> EmulatedTensor:
        plain = super()._carrier(value, site, low, values)
        make = partial(self._make_lanes, value, site, plain.dtype)
        if not isinstance(plain, LayerWeight):
            self._lay(plain, make())
            return plain
        kept: Any = plain
        return LayerLanes(value, plain.dtype, plain.device, kept._known, kept._layer, make)  # type: ignore[arg-type]

    def _values(self, value: Tensor, site: OpSite, format: Any) -> Tensor:
        # Each run rounds for itself.
        return super()._values(value, site, None)

    def _make_lanes(self, value: Tensor, site: OpSite, dtype: torch.dtype) -> list[Tensor]:
        wide = self._values(value, site, None)
        operation = self.index.find_weight(site, value)
        result = self._locate(operation, site, operation == "embedding_weights")
        names = dict.fromkeys(filter(None, self._rules(operation, dtype == LOW)))
        cache: dict[Any, Tensor] = {one: self._weight(wide, site, find(one)) for one in names}
        return self._settle([wide] * len(self.runs), result, dtype == LOW, {**cache, None: wide})

    # Operations

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
        self.products += product
        if not carriers:
            self.computed += product
            return super().perform(func, args, kwargs)
        every = {id(one): self.values(one) for one in carriers}
        given, perform = (tuple(args), dict(kwargs)), partial(super().perform, func)
        runs = dict.fromkeys(range(len(self.runs)), perform)
        results = list(compute_lanes(given, every, runs, func._opname).values())
        different = len(set(map(id, results)))
        self.computed += product * different
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
        axis = {**dict(zip(names, args, strict=False)), **kwargs}.get("dim", -1)
        take = partial(take_entries, results[0][1], axis)
        self._others = [[one] for one in change_each(take, self.values(args[0]))]
        if self.index.routes(self._place) and results[0][1].dim() == args[0].dim():
            pair = [one.movedim(axis, -1) for one in self.values(args[0])[:2]]
            chosen = [one[1].movedim(axis, -1) for one in results[:2]]
            found = compare_choices((pair[0], pair[1]), (chosen[0], chosen[1]))
            if found is not None:  # groups of experts are chosen first, in the same module
                self.choices[self._place.module] = found

    def settle(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        given = [value for value in inputs if floating(value)]
        self.mark_views(func, given, outputs)
        if func.is_view and given and isinstance(given[0], EmulatedTensor):
            note_views(given[0], outputs)
        narrowed = narrows(func, given, outputs[0], LOW)
        moved = moves(func, inputs) and bool(given) and not narrowed
        found = "" if moved else self._find(narrowed)
        self._counts[found] += 1
        # What is looked up is read again with every sum that is not rounded.
        self._counts["residual"] += (looked_up := func._opname == "embedding")
        note_stream("embedding" if looked_up else found, given, outputs, kept=moved or func.is_view)
        every = self._others or [[one.held for one in outputs]] * len(self.runs)
        for index, output in enumerate(outputs):
            values = [one[index] for one in every]
            if moved:
                values = carry_over(func, values)
            elif not (index and func._opname.endswith("_norm")):
                result = self._locate(found, self._place, not self._begun)
                if found == "residual":
                    kept = change_each(Tensor.clone, values) if writes_in_place(func) else values
                    output.unrounded = {number: kept[number] for number in self._unrounded}
                if found in ("norm", "branch_norm") and (own := self._sum("norm_inside")):
                    # A whole norm in one operation, which has its sums inside.
                    inside = self._locate("norm_inside", self._place, not self._begun)
                    values = self._settle(values, inside, False, own=own)
                values = self._settle(values, result, output.dtype == LOW, own=self._sum(found))
            self._lay(output, values)

    def _sum(self, operation: str) -> dict[int, Tensor]:
        """Return a result in the runs whose profile says how it is summed."""
        orders = {n: p.sums[operation] for n, p in self._profiles.items() if operation in p.sums}
        summed = sum_products(self._call, orders, self.values, self.wide) if self._call else {}
        self.computed += len(set(map(id, summed.values())))
        return summed

    def _find(self, narrowed: bool) -> str:
        if self._place.layer is not None:
            self._begun = True
        if narrowed:
            return self.index.find_cast(self._place)
        found = self.index.find(self._place, self.tracker.weighted)
        # What scales or bounds logits looks as what scales embeddings does.
        return "head" if found == "embedding" and self._begun else found

    def _locate(self, operation: str, site: OpSite, before: bool) -> OperationResult:
        """Return what the results of an operation at a place are; outside blocks, if `before`."""
        layer = site.layer
        if layer is None:
            layer = EMBEDDING if before else self.layers
        return OperationResult(operation, layer, self.index.find_component(operation, site))

    def _read_factors(self, args: Sequence[Any]) -> list[Any]:
        """Round the factors of a product where a profile does."""
        factors, operation = list(args), self._place.operation
        right = len(factors) - 1
        if self.tracker.weighted:
            named = self.index.find_factors(self._place)
            for index in range(right + 1):
                if not floating(factors[index]) or factors[index].dim() < 2:
                    continue
                if not getattr(factors[index], "weight", False):
                    factors[index] = self._along(factors[index], named, index == right)
                elif self.index.reads_table(self._place) and self._reads_otherwise():
                    turned = index == right
                    factors[index] = self._along(factors[index], "head_weights", turned, True)
        elif operation == "scores":
            factors[-2] = self._along(factors[-2], "queries", False)
            factors[-1] = self._along(factors[-1], "cache", True)
        elif operation == "context":
            factors[-2] = self._along(factors[-2], "attention_weights", False)
            factors[-1] = self._along(factors[-1], "cache", False)
        return factors

    def _reads_otherwise(self) -> bool:
        """Return whether the table of embeddings is not stored as products read it."""
        return self._rules("head_weights", True) != self._rules("embedding_weights", True)

    def _along(self, factor: Any, operation: str, turned: bool, low: bool = False) -> Any:
        if not any(self._rules(operation, low)):
            return factor
        values = self.values(factor)
        if turned:
            values = change_each(lambda one: one.transpose(-2, -1).contiguous(), values)
        values = self._settle(values, self._locate(operation, self._place, not self._begun), low)
        if turned:
            values = change_each(lambda one: one.transpose(-2, -1), values)
        return self.carry(values, factor.dtype)

    def _read_sum(self, value: Any) -> Any:
        """Return what a norm reads of the residual stream: a sum before it is rounded, or after."""
        if not getattr(value, "unrounded", None):
            return value
        result = self._locate("norm_input", self._place, False)
        values = self._settle(self.values(value), result, False, own=value.unrounded)
        return self.carry(values, value.dtype)

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
        cache: dict[Any, Tensor] = {}
        operation = result.operation

        def round(number: int) -> Tensor:
            profile, value = self._profiles[number], (own or {}).get(number, values[number])
            name = rule(profile, operation, low)
            if weights is not None:
                return weights[name]
            if name is None or self._counts[operation] % profile.every.get(operation, 1):
                return value
            if (id(value), name) not in cache:
                cache[id(value), name] = rounding(name)(value)
            return cache[id(value), name]

        if own or any(self._rules(operation, low)[:2]):
            self.rounded.add(result)
        settled = list(first := [round(0), round(1)])
        for number, run in enumerate(self.runs[2:], 2):
            if run.takes is None:
                settled.append(round(number))
                continue
            source, value = int(run.takes(result)), values[number]
            exact, rounded = values[source], first[source]
            if value is exact or rounded is exact:
                settled.append(rounded if value is exact else value)
                continue
            if source not in cache:
                # What is infinite, as a mask, has no error.
                cache[source] = (rounded - exact).nan_to_num_(0.0, torch.inf, -torch.inf)
            if (id(value), source) not in cache:
                cache[id(value), source] = value + cache[source]
            settled.append(cache[id(value), source])
        return settled

    def _lay(self, output: EmulatedTensor, values: Sequence[Tensor]) -> None:
        same = all(value is values[0] for value in values)
        output.lanes = None if same else tuple(values)
        output.held = values[0]

    # Writing

    def _write(self, func: Any, flat: list[Any], args: Any, kwargs: Any) -> Any:
        target = kwargs.get("out", args[0] if args else None)
        if all(one.lanes is None for one in find_carriers((args, kwargs))):
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
