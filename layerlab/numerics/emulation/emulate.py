"""Run any model in any format: every operation's result is rounded, no model code is touched."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from layerlab.numerics.emulation.arithmetic import (
    AnyFormat,
    EmulatedArithmetic,
    exact,
    make_arithmetic,
)
from layerlab.numerics.emulation.autocast import autocasting
from layerlab.numerics.emulation.carried_weights import CarriedWeights
from layerlab.numerics.emulation.emulated_tensor import (
    EmulatedTensor,
    check_runnable,
    floating,
    plain,
    relabels,
    shares_memory,
    stepwise,
    writes_in_place,
)
from layerlab.numerics.emulation.inner_roundings import (
    READING,
    accumulate,
    is_number,
    multiply_groups,
    narrow,
    raise_by_square,
    rounds_square,
)
from layerlab.numerics.emulation.op_site import PRODUCTS, OpSite, Tracker, moves
from layerlab.numerics.emulation.policies.apply import cast
from layerlab.numerics.emulation.policies.policy import Policy, check_policy
from layerlab.numerics.emulation.selection import Selection
from layerlab.numerics.emulation.unfused_attention import UnfusedAttention
from layerlab.numerics.emulation.weight_rows import WeightRows
from layerlab.numerics.formats.round import GivenFormat, Rounder, sparing


class Emulation(CarriedWeights):
    """The context that an emulated model runs in; `emulate` and `reference` make it.

    Attributes:
        roundings: number of rounded results by place.
        refused: places where torch itself would refuse to mix the dtypes.
        gradients: after a backward pass, the gradient of each parameter by its name.
        in_steps: whether an operation that rounds inside is taken apart into its steps.
        copies: tensors of the size of attention's scores that are held at once, in float64.

    Args:
        model: the model; it is not changed.
        arithmetic: which format what is rounded to.
        where: patterns of the places that are rounded; None for all.
        policy: what stays in float32.
    """

    in_steps = True
    copies = 4

    def __init__(
        self,
        model: nn.Module,
        arithmetic: EmulatedArithmetic,
        where: Any = None,
        policy: Any = None,
    ) -> None:
        check_policy(policy, arithmetic.autocast is not None)
        super().__init__(model, arithmetic, policy)
        self.tracker = Tracker(model)
        self.roundings: Counter[OpSite] = Counter()
        self.refused: set[OpSite] = set()
        self._generator = torch.Generator().manual_seed(arithmetic.seed)
        self._rounds: dict[AnyFormat, Rounder] = {}
        self.select(where)

    def select(self, where: Any) -> None:
        """Round only these places from now on.

        Raises:
            UserError: a pattern names no module, or there is none.
        """
        self._selection = Selection(self.model, where)
        self._place = OpSite("")

    def only(self, places: Iterable[OpSite]) -> None:
        """Round exactly these places from now on; with no places, nothing is rounded."""
        self._selection = Selection(self.model, only=frozenset(places))

    def is_chosen(self, site: OpSite) -> bool:
        """Return whether results at a place are rounded."""
        return site in self._selection

    @contextmanager
    def running(self, backward: bool = False, by_layer: bool = False) -> Iterator["Emulation"]:
        """Run the model's code in the emulated arithmetic until the block ends.

        Args:
            backward: whether a backward pass follows.
            by_layer: widen and round the weights of a layer when it runs, and forget them behind
                it: every forward pass does so again, and one layer at a time is in memory. Only a
                backward pass and stochastic rounding, which may not draw twice, want all at once.
        """
        check_runnable(self.model)
        self._selection.ran = False
        with ExitStack() as stack:
            if self._policy is not None:
                stack.enter_context(cast(self.model, self._policy, self.arithmetic.low))
            if (dtype := self.arithmetic.autocast) is not None:
                stack.enter_context(autocasting(self.model, dtype, self.arithmetic.device))
            stack.enter_context(self.tracker.follow())
            stack.enter_context(self.carrying(backward, by_layer))
            handles = (
                self.model.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True),
                self.model.register_forward_hook(lambda *call: self.release(call[-1])),
            )
            for handle in handles:
                stack.callback(handle.remove)
            stack.enter_context(torch.set_grad_enabled(backward))
            stack.enter_context(self.open_attention(backward))
            stack.enter_context(stepwise(self.model))
            stack.enter_context(self)
            yield self
        self._selection.check()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        # The last two arguments of a product are its factors.
        self.tracker.weighted = any(getattr(value, "weight", False) for value in args[-2:])
        # Its casts have come as operations of their own; on the values held it has no say.
        with torch._C._DisableAutocast():
            if not (self.in_steps and rounds_square(func, args)):
                return self.dispatch(func, args, kwargs or {})
            with self.tracker.inside(func):
                return raise_by_square(func, args, kwargs or {}, self._take_step)

    def _take_step(self, func: Any, *args: Any, **options: Any) -> Any:
        return self.dispatch(func, args, options)

    def open_attention(self, backward: bool) -> TorchFunctionMode:
        """Return the mode that takes fused attention apart.

        Args:
            backward: whether a backward pass follows, which asks for scores and weights.
        """
        mark = None if backward or self.arithmetic.cache else self.tracker.mark
        return UnfusedAttention(not backward and self._widens(), mark, self.copies)

    def release(self, output: Any) -> Any:
        """Return what the model returns to its caller, without carriers."""
        return plain(output)

    def compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._place = self.tracker.place(func)
        return self.perform(func, args, kwargs)

    def perform(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute the operation that was placed last."""
        name, args = func._opname, self.read_numbers(func, args)
        if name == "_to_copy" and relabels(args, kwargs):
            return args[0].held  # `settle` copies it, rounded or not
        if name == "histc" and (integers := getattr(args[0], "whole", None)) is not None:
            # What is counted, such as the tokens of each expert, is no rounded number.
            args = (integers.to(self.wide), *args[1:])
        if name not in PRODUCTS:
            return func(*self.inner(args), **self.inner(kwargs))
        factors = self.inner(self._factors(args))
        if name == "_grouped_mm":
            offsets = kwargs.get("offs", (*factors, None)[2])
            return multiply_groups(factors[0], factors[1], offsets)
        steps, format = self.arithmetic.accumulate, self._result(args)
        if steps is None or format is None or not self.is_chosen(self._place):
            return func(*factors, **self.inner(kwargs))
        return accumulate(name, factors, self.inner(kwargs), steps, self.rounder(format))

    def read_numbers(self, func: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Return arguments with numbers as the operation reads them."""
        dtypes = [one.dtype for one in args if floating(one)] if func._opname in READING else []
        format = self.arithmetic.results.get(dtypes[0]) if dtypes else None
        if format is None or not self.is_chosen(self._place):
            return args
        return [narrow(float(one), format) if is_number(one) else one for one in args]

    def note(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        """Remember which places ran, to check the patterns when the block ends."""
        selection, site = self._selection, self._place
        selection.ran = True
        if selection.patterns is None or not self.is_chosen(site):
            return
        for output in outputs:
            if self.keeps(func, inputs, output):
                continue
            rounded = output.dtype in self.arithmetic.results
            (selection.rounded if rounded else selection.islands).add(site)

    def keeps(self, func: Any, inputs: Sequence[Any], output: EmulatedTensor) -> bool:
        """Return whether an operation only moves the values that it was given, in their format."""
        given = [value for value in inputs if floating(value)] if moves(func, inputs) else []
        results = self.arithmetic.results
        format = results.get(output.dtype)
        return bool(given) and all(results.get(value.dtype) == format for value in given)

    def settle(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        results, name, site = self.arithmetic.results, func._opname, self._place
        given = [value for value in inputs if floating(value)]
        self.mark_views(func, given, outputs)
        for output in outputs:
            format = results.get(output.dtype)
            if format is None or not self.is_chosen(site) or self.keeps(func, inputs, output):
                if name == "_to_copy" and shares_memory(output.held, given):
                    output.held = output.held.clone()
                continue
            self.roundings[site] += 1
            if isinstance(output.held, WeightRows):
                output.held = output.held.change(self.rounder(format))
                continue
            own = writes_in_place(func) or not shares_memory(output.held, given)
            out = output.held if own and output.held.is_contiguous() else None
            output.held = self.rounder(format)(output.held, out)

    def note_weight(self, site: OpSite, format: AnyFormat | None) -> bool:
        (self._selection.islands if format is None else self._selection.rounded).add(site)
        if format is None or not self.is_chosen(site):
            return False
        self._count(site)
        return True

    def _count(self, site: OpSite) -> None:
        self.roundings[site] += 1
        self._selection.rounded.add(site)

    def refuse(self, func: Any) -> None:
        self.refused.add(self._place)

    def _result(self, args: Sequence[Any]) -> AnyFormat | None:
        dtypes = [value.dtype for value in args if floating(value)]
        return self.arithmetic.results.get(dtypes[-1])

    def _factors(self, args: Sequence[Any]) -> list[Any]:
        """Round the factors of a product where their format is set."""
        factors = list(args)
        if self._place.operation in ("scores", "context"):
            if self.arithmetic.cache is not None:
                factors[-1] = self._read(factors[-1], self._place.operation)
        elif self.quantizes(self._place, self.arithmetic.activations):
            for index in range(len(factors)):
                factors[index] = self._activation(factors[index], index == len(factors) - 1)
        return factors

    def _read(self, factor: Tensor, operation: str) -> Tensor:
        """Return keys or values as the cache returns them, rounded along the width of a head."""
        site = OpSite(self._place.module, "cache")
        if not self.is_chosen(site):
            return factor
        self._count(site)
        return self._along(factor, self.arithmetic.cache, turned=operation == "scores")

    def _activation(self, factor: Any, last: bool) -> Any:
        """Round the factor that meets a parameter in a product, along the summed axis."""
        site = OpSite(self._place.module, "factor")
        matrix = floating(factor) and factor.dim() >= 2
        if not matrix or getattr(factor, "weight", False) or not self.is_chosen(site):
            return factor
        # What the code, or a policy, has widened meets its parameter as it is.
        if factor.dtype != self.arithmetic.low and factor.dtype not in self.arithmetic.results:
            return factor
        self._count(site)
        return self._along(factor, self.arithmetic.activations, turned=last)

    def _along(self, factor: Tensor, format: Any, turned: bool) -> Tensor:
        """Return a factor rounded along its last axis, or along the one before."""
        values, round = self.inner(factor), self.rounder(format)
        if turned:
            return round(values.transpose(-2, -1).contiguous()).transpose(-2, -1)
        return round(values.contiguous())

    def rounder(self, format: AnyFormat) -> Rounder:
        if format not in self._rounds:
            mode = self.arithmetic.rounding
            generator = self._generator if mode == "stochastic" else None
            self._rounds[format] = sparing(format, mode, generator)
        return self._rounds[format]

    def _widens(self) -> bool:
        """Return whether what is widened to float32 is not rounded by that."""
        results = self.arithmetic.results
        return results.get(torch.float32) in (None, results.get(self.arithmetic.low))

    def _enter(self, module: nn.Module, args: Any, options: Any) -> Any:
        """Bring the features that a model is given directly into its dtype."""
        return tree_map(self._give, args), tree_map(self._give, options)

    def _give(self, value: Any) -> Any:
        if isinstance(value, EmulatedTensor):  # made inside the block
            return value if value.dtype == self.arithmetic.low else value.to(self.arithmetic.low)
        if not floating(value):
            return value
        format = self.arithmetic.results.get(self.arithmetic.low)
        site = OpSite("", "input")
        values = value.detach().to(self.wide)
        if format is None or not self.is_chosen(site):
            return EmulatedTensor(values, self.arithmetic.low)
        self._count(site)
        return EmulatedTensor(self.rounder(format)(values), self.arithmetic.low)


@contextmanager
def emulate(
    model: nn.Module,
    format: GivenFormat,
    mode: str = "as-run",
    where: str | Iterable[str] | None = None,
    backward: bool = False,
    policy: Policy | None = None,
    *,
    weights: GivenFormat | None = None,
    activations: GivenFormat | None = None,
    cache: GivenFormat | None = None,
    rounding: str = "nearest",
    seed: int = 0,
    accumulate: int | None = None,
    device: str | None = None,
) -> Iterator[Emulation]:
    """Run a model as if it were in another format, for as long as the block lasts.

    Every result is rounded as it is made, in the model's own code, forward and, with `backward`,
    backward. What the model returns are plain tensors that hold the rounded values. Afterwards the
    model is as it was.

    Args:
        model: any module made of PyTorch's operations.
        format: name or value of a format, such as "bf16", "fp8_e4m3", "mxfp4", "int8", "t11".
        mode: "as-run", all of it in the format but for what the code widens to float32, as a model
            that was loaded in bf16; "flat", which rounds everything; or "autocast", which leaves
            parameters and residual stream in float32 and rounds what torch.autocast does in bf16 or
            fp16, as in mixed-precision training.
        where: patterns of the places that are rounded, `module` or `module:operation` with `*` and
            `?`, as in "model.layers.*.mlp" or "*.self_attn:softmax"; None for all.
        backward: whether gradients are wanted; they are in `run.gradients` afterwards.
        policy: what stays in float32, as `apply_precision` would keep it.
        weights: format of the parameters that products read, if it is one of their own.
        activations: format of what is multiplied with parameters.
        cache: format of keys and values as attention reads them.
        rounding: "nearest", "away", "zero", "up", "down" or "stochastic".
        seed: of stochastic rounding.
        accumulate: round the sums inside matrix products after every so many terms.
        device: whose rules autocast follows, "cpu" or "cuda"; the model's own if left out.

    Raises:
        UserError: unknown format, mode or pattern, a format or policy that autocast does not know,
            or a kernel that cannot be looked into.

    Example:
        >>> import layerlab
        >>> model = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
        >>> ids = torch.arange(8)[None]
        >>> with reference(model):
        ...     exact = model(ids).logits
        >>> with layerlab.emulate(model, "bf16", where="lm_head") as run:
        ...     rounded = model(ids).logits
        >>> bool((rounded - exact).abs().max() < 2**-8 * exact.abs().max())
        True
        >>> sorted(map(str, run.roundings))
        ['lm_head', 'lm_head:weight']
    """
    found = make_arithmetic(
        format,
        mode,
        weights=weights,
        activations=activations,
        cache=cache,
        rounding=rounding,
        seed=seed,
        accumulate=accumulate,
        device=device,
    )
    run = Emulation(model, found, where, policy)
    with run.running(backward):
        yield run


@contextmanager
def reference(
    model: nn.Module, backward: bool = False, by_layer: bool = False
) -> Iterator[Emulation]:
    """Run a model in float64, also where its code asks for float32."""
    dtypes = [value.dtype for value in model.parameters() if value.is_floating_point()]
    run = Emulation(model, exact(dtypes[0] if dtypes else torch.get_default_dtype()))
    with run.running(backward, by_layer):
        yield run
