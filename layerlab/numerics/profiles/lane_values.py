"""Values of several runs side by side: found in arguments, taken one run at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from layerlab.numerics.emulation.carried_weights import LayerWeight
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, floating, unwrap
from layerlab.numerics.emulation.inner_roundings import READING, multiply_by_rows, take_apart
from layerlab.numerics.profiles.rules import summations

# What asks a carrier for more than its values.
DTYPED = READING | {"_to_copy", "histc"}
# The name of a product, its arguments, and those by name.
ProductCall = tuple[str, Sequence[Any], Mapping[str, Any]]


class LayerLanes(LayerWeight):
    """A parameter that makes its values in every run when an operation asks for them."""

    @property
    def lanes(self) -> Sequence[Tensor]:  # type: ignore[override]
        """The values of each run, for as long as the layer runs."""
        found: Any = self._known.take(self._layer, id(self), self._make)
        return found

    @property
    def held(self) -> Tensor:  # type: ignore[override]
        """The values of the first run."""
        return self.lanes[0]


def change_each(change: Callable[[Tensor], Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """Change each value once, however many runs share it."""
    distinct = {id(value): value for value in values}
    changed = {key: change(value) for key, value in distinct.items()}
    return [changed[id(value)] for value in values]


def find_carriers(value: Any) -> Iterator[EmulatedTensor]:
    """Yield the carriers among arguments, however nested."""
    if isinstance(value, EmulatedTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from find_carriers(one)
    elif isinstance(value, Mapping):
        yield from find_carriers(list(value.values()))


def take_lane(every: Mapping[int, Sequence[Tensor]], run: int, value: EmulatedTensor) -> Any:
    """Return a carrier as one run has it."""
    if id(value) not in every:
        return value
    own = EmulatedTensor(every[id(value)][run], value.dtype)
    own.weight = value.weight
    return own


def take_value(every: Mapping[int, Sequence[Tensor]], run: int, value: EmulatedTensor) -> Any:
    """Return the values of a carrier as one run has it, where its dtype says nothing."""
    return every[id(value)][run] if id(value) in every else value


def take_entries(at: Tensor, axis: int, values: Tensor) -> Tensor:
    """Return entries by where they stand along an axis, which may have been dropped."""
    if at.dim() == values.dim():
        return values.gather(axis, at)
    return values.gather(axis, at.unsqueeze(axis)).squeeze(axis)


def map_carriers(take: Callable[[EmulatedTensor], Any], value: Any) -> Any:
    """Return arguments with each carrier replaced by what `take` gives for it."""
    if isinstance(value, EmulatedTensor):
        return take(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_carriers(take, one) for one in value)
    if isinstance(value, dict):
        return {name: map_carriers(take, one) for name, one in value.items()}
    return value


def flatten(value: Any) -> list[Any]:
    """Return the leaves of nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [found for one in value for found in flatten(one)]
    return [value]


def find_floats(value: Any) -> list[Tensor]:
    """Return the floating tensors among results, in their order."""
    return [one for one in flatten(value) if floating(one)]


def narrows(func: Any, given: Sequence[Tensor], output: Tensor, low: torch.dtype) -> bool:
    """Return whether an operation brings back to the model's dtype what its code has widened."""
    return (
        func._opname in ("_to_copy", "copy_")
        and output.dtype == low
        and bool(given)
        and given[-1].dtype != low
    )


def carry_over(func: Any, values: Sequence[Tensor]) -> list[Tensor]:
    """Return what was only moved; a cast that moves nothing is a copy all the same."""
    if func._opname != "_to_copy":
        return list(values)
    return change_each(Tensor.clone, values)


def compute_lanes(
    given: tuple[Sequence[Any], Mapping[str, Any]],
    every: Mapping[int, Sequence[Tensor]],
    runs: Mapping[int, Callable[..., Any]],
    name: str = "",
) -> dict[int, Any]:
    """Compute an operation in some runs, once for all that do the same with the same.

    Args:
        given: its arguments.
        every: carriers in every run, by their id; others are the same in all.
        runs: what computes it, by run.
        name: of the operation, as most ask carriers for nothing but their values; none where what
            computes it takes carriers.
    """
    take = take_value if name and name not in DTYPED else take_lane
    computed: dict[tuple[Any, ...], Any] = {}
    found = {}
    for run, compute in runs.items():
        key = (compute, *(id(one[run]) for one in every.values()))
        if key not in computed:
            computed[key] = compute(*map_carriers(partial(take, every, run), given))
        found[run] = computed[key]
    return found


def sum_products(
    call: ProductCall,
    orders: Mapping[int, str],
    values: Callable[[EmulatedTensor], Sequence[Tensor]],
    wide: torch.dtype,
) -> dict[int, Tensor]:
    """Return what is made of sums in some runs, these in float32 and in an order of their own.

    Args:
        call: what makes it.
        orders: by run, as its profile says them.
        values: gives a carrier in each run.
        wide: dtype of what is returned.
    """
    name, args, kwargs = call
    every = {id(one): values(one) for one in find_carriers((args, kwargs))}

    @cache
    def order(sums: str) -> Callable[..., Tensor]:
        multiply = partial(multiply_by_rows, stages=summations(sums))

        def compute(given: Sequence[Any], options: Mapping[str, Any]) -> Tensor:
            plain = [unwrap(one) for one in given]
            plain = [one.float() if floating(one) else one for one in plain]
            return take_apart(name, plain, options, multiply).to(wide)

        return compute

    runs = {run: order(sums) for run, sums in orders.items()}
    return compute_lanes((args, kwargs), every, runs)
