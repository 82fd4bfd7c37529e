"""Predict a model's rounding errors, and bound them, without rounding.

One pass in float64 in which every value carries what is known of its error. `variance` predicts: it
takes roundings as independent and goes through derivatives. `bound` is rigorous: no emulated value
is further from the reference. The rounding of the weights is done before anything runs and is the
same for every token, so that what it does is computed, with a second pass, and not modelled.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from layerlab.errors import UserError
from layerlab.numerics.emulation.arithmetic import EmulatedArithmetic
from layerlab.numerics.emulation.emulate import Emulation, reference
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, floating, writes_in_place
from layerlab.numerics.emulation.inner_roundings import multiply_groups, rounds_square
from layerlab.numerics.emulation.op_site import PRODUCTS
from layerlab.numerics.emulation.unfused_attention import UnfusedAttention
from layerlab.numerics.formats.formats import AnyFormat, Format
from layerlab.numerics.prediction.attention_correlation import Correlation
from layerlab.numerics.prediction.convex_bound import ConvexBound
from layerlab.numerics.prediction.error_state import ROOM, StateKind, algebra
from layerlab.numerics.prediction.linear_rules import accumulate
from layerlab.numerics.prediction.monte_carlo import sample_errors
from layerlab.numerics.prediction.op_call import OpCall, lacking, map_nested, state_of, zeros
from layerlab.numerics.prediction.rules import CHOICES, rule
from layerlab.system.hooks import temporary_hooks

InputsAndOutputs = tuple[list[Tensor], list[Tensor]]


class Prediction(Emulation):
    """Runs a model with rounded weights in float64, and follows the errors of its results.

    A variance knows what scores share and weights take from one another (see `Correlation`), and no
    other correlation: where errors of features add up along one direction it is too low, where a
    block takes back what the stream brought it is too high. It is also too high behind a norm of
    what is mostly rounding (OLMo 2 in fp8): a norm keeps lengths, its derivative does not. Directed
    rounding errs to one side, which adds up faster than a variance says.

    Attributes:
        undecided: places where a choice (a comparison, the best k) lies within the bound of what is
            compared: behind them no bound holds.

    Args:
        model: the model; it is not changed.
        arithmetic: which format what is rounded to.
        kind: "variance" or "bound".
        where: patterns of the places that are rounded; None for all.
    """

    copies = 20
    in_steps = False  # the rule of an operation knows its steps, and what they share

    def __init__(
        self,
        model: nn.Module,
        arithmetic: EmulatedArithmetic,
        kind: StateKind,
        where: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(model, replace(arithmetic, wide=torch.float64), where)
        self.algebra = algebra(kind, arithmetic.wide)
        self._correlation = Correlation()
        self._passed: Sequence[Any] = ()
        self.undecided: set[str] = set()
        self._call: tuple[str, Any, Any, Any, Any, bool] | None = None

    def open_attention(self, backward: bool) -> TorchFunctionMode:
        mark = None if self.arithmetic.cache else self.tracker.mark
        if self.algebra.power == 2:
            return _Softmax(mark=mark, copies=self.copies)
        return ConvexBound(self.arithmetic, self.algebra.unit, mark, self.copies)

    def compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._place = self.tracker.place(func)
        args = self._factors(args) if func._opname in PRODUCTS else self.read_numbers(func, args)
        if func.is_view:
            _ground(args[0])
        if func._opname in CHOICES and self.algebra.power == 1:
            self._decide(func, args)
        spreads = map_nested(tuple(args), state_of)
        inner, options = self.inner(tuple(args)), self.inner(kwargs)
        if writes_in_place(func) and floating(inner[0]):
            # Rules ask for what was there before.
            before = (inner[0].clone(), *inner[1:])
        else:
            before = inner
        self._passed = args
        twins = len(args) > 1 and args[0] is args[1]
        run = _group if func._opname == "_grouped_mm" else func
        self._call = func._opname, run, before, spreads, options, twins
        return run(*inner, **options)

    def settle(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        given = [value for value in inputs if floating(value)]
        self.mark_views(func, given, outputs)
        assert self._call is not None
        values = [output.held for output in outputs]
        entry = rule(func)
        call = OpCall(*self._call[:5], values, self._call[5], self._round_inside(func, inputs))
        found: Any = None
        if func._opname in PRODUCTS:
            found = self._sum(call, self._passed)
        if found is None and self.algebra.power == 2:
            found = self._correlation.spread(call, self._passed)
        if found is None:
            found = entry(call, self.algebra)
        # Beside its result an operation may leave something for the backward pass alone.
        spare = [None] * (len(outputs) - 1)
        spreads = found if isinstance(found, list) else [found, *spare]
        for output, spread in zip(outputs, spreads, strict=True):
            format = None if self._shifts(call) else self._rounding(func, inputs, output)
            if format is not None:
                mode = self.arithmetic.rounding
                gone = self.algebra.overflows(output.held, spread, format, mode)
                spread = self.algebra.round(output.held, spread, format, mode)
                if gone is not None and bool(gone.any()):
                    # As masks do in half precision: what is infinite for sure is infinite here.
                    output.held = torch.where(gone, output.held * torch.inf, output.held)
                    spread = None if spread is None else torch.where(gone, 0.0, spread)
            output.spread = _lay(spread, output.held)
        if self.algebra.power == 2 and len(outputs) == 1:
            self._correlation.follow(call, self._passed, outputs[0])
        if writes_in_place(func):
            _keep(func, inputs, outputs[0])

    def _round_inside(self, func: Any, inputs: Sequence[Any]) -> Any:
        """Return what becomes of the spread of a step that an operation rounds inside, or None."""
        if not rounds_square(func, inputs):
            return None
        format = self.arithmetic.results.get(inputs[0].dtype)
        if not isinstance(format, Format) or not self.is_chosen(self._place):
            return None
        return partial(self.algebra.round, format=format, mode=self.arithmetic.rounding)

    def _rounding(self, func: Any, inputs: Sequence[Any], output: EmulatedTensor) -> Format | None:
        """Return the format that a result is rounded to, as an emulation would."""
        format = self.arithmetic.results.get(output.dtype)
        if format is None or not self.is_chosen(self._place) or self.keeps(func, inputs, output):
            return None
        assert isinstance(format, Format)
        return format

    def _write_plain(self, func: Any, flat: Any, target: Tensor, args: Any, kwargs: Any) -> Tensor:
        uncertain = any(
            isinstance(value, EmulatedTensor) and value.spread is not None for value in flat
        )
        if uncertain and target.dtype.is_floating_point:
            # What was made before has no room for a spread, which would be lost without a word.
            raise lacking(f"{func} into a tensor made before the run")
        return super()._write_plain(func, flat, target, args, kwargs)

    def _shifts(self, call: OpCall) -> bool:
        """Return whether this multiplies by a power of two, which keeps rounded values rounded."""
        if self.algebra.power == 1 or call.name not in ("mul", "div", "mul_", "div_"):
            return False
        number = call.value(1)
        if isinstance(number, Tensor):
            if number.dim() or call.spread(1) is not None:
                return False
            number = float(number)
        kept = isinstance(self._passed[0], EmulatedTensor) and call.spread(0) is not None
        return bool(kept and math.frexp(number)[0] in (0.5, -0.5))

    def _read(self, factor: Tensor, operation: str) -> Tensor:
        return self._factor(factor, super()._read(factor, operation), self.arithmetic.cache)

    def _activation(self, factor: Any, last: bool) -> Any:
        return self._factor(factor, super()._activation(factor, last), self.arithmetic.activations)

    def _factor(self, factor: Any, kept: Any, format: AnyFormat | None) -> Any:
        """Return a factor that an emulation would round: its value stays, its spread grows."""
        if kept is factor or format is None:
            return factor
        value = self.inner(factor)
        carrier = EmulatedTensor(value, factor.dtype)
        mode = self.arithmetic.rounding
        spread = self.algebra.store(value, kept, state_of(factor), format, mode)
        carrier.spread = _lay(spread, value)
        return carrier

    def _sum(self, call: OpCall, given: Sequence[Any]) -> Any:
        """Return the spread of a product whose sums are rounded on the way; None for exact sums."""
        steps, format = self.arithmetic.accumulate, self._result(given)
        if steps is None or format is None or not self.is_chosen(self._place):
            return None
        if call.name not in ("mm", "bmm", "addmm", "baddbmm") or not isinstance(format, Format):
            raise lacking(f"{call.name} with accumulate=")
        return accumulate(call, self.algebra, steps, format, self.arithmetic.rounding)

    def _decide(self, func: Any, args: Sequence[Any]) -> None:
        if CHOICES[func._opname](self.inner(tuple(args)), map_nested(tuple(args), state_of)):
            return
        self.undecided.add(str(self._place))


class _Softmax(UnfusedAttention):
    """Fused attention with its softmax as one step.

    Taken apart, numerator and denominator would count as independent, and a shift of all scores as
    an error of the result.
    """

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        with _Weights():
            return super().attend(*args, **kwargs)


class _Weights(TorchFunctionMode):
    """exp(s) = softmax(s) T, with the sum T and the shift of the scores taken as exact."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: Any = None
        self._total: Any = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is Tensor.amax:
            return _bare(found)
        if func is torch.exp:
            self._total = _bare(found.sum(dim=-1, keepdim=True))
            self._weights = args[0].softmax(dim=-1) * self._total
            return self._weights
        return self._total if func is Tensor.sum and args[0] is self._weights else found


def _bare(value: Any) -> Any:
    """Return a value that counts as exact."""
    return EmulatedTensor(value.held, value.dtype) if isinstance(value, EmulatedTensor) else value


def _group(left: Tensor, right: Tensor, *rest: Any, offs: Any = None, **options: Any) -> Tensor:
    """Multiply by group: PyTorch's own operation has no float64."""
    return multiply_groups(left, right, rest[0] if rest else offs)


def _ground(value: Any) -> None:
    """Give a value that will be viewed a spread of zeros.

    A view shares the memory of its spread, so that what is written into one is in the other.
    """
    if isinstance(value, EmulatedTensor) and value.spread is None and not value.weight:
        value.spread = zeros(value.held)


def _lay(spread: Tensor | None, like: Tensor) -> Tensor | None:
    if spread is None or (spread.shape == like.shape and spread.stride() == like.stride()):
        return spread
    laid = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    return laid.copy_(spread)


def _keep(func: Any, inputs: Sequence[Any], output: EmulatedTensor) -> None:
    """Write the spread of a result into the memory of the target's.

    This holds where there are views.
    """
    carriers = [value for value in inputs if isinstance(value, EmulatedTensor)]
    target = carriers[-1] if func._schema.name.endswith("out") else carriers[0]
    if target.spread is None:
        return
    spread = output.spread
    target.spread.copy_(torch.zeros_like(target.spread) if spread is None else spread)
    output.spread = target.spread


def spreads(
    model: nn.Module,
    call: Callable[[], Any],
    arithmetic: EmulatedArithmetic,
    modules: Sequence[nn.Module],
    kind: str,
    where: str | Iterable[str] | None = None,
    true: Sequence[Tensor] | None = None,
) -> InputsAndOutputs:
    """Return what is predicted, or guaranteed, of the error of modules' outputs and of the logits.

    "variance" gives a standard deviation for each element: the root of the squared effect of
    rounding the weights, which is computed, and of the first-order variance of all other roundings.
    "sampled" gives the root mean square over a few runs with drawn errors, which keeps all
    correlations. "bound" gives a number that no error exceeds; it is infinite where nothing can be
    said.

    Args:
        model: the model; it is not changed.
        call: runs the model once; it is called twice, or once more than there are draws.
        arithmetic: which format what is rounded to.
        modules: those whose outputs are read, in order.
        kind: "variance", "sampled" or "bound".
        where: patterns of the places that are rounded; None for all.
        true: the values, where a reference run has given them already; else one is made.

    Returns:
        The values in float64 of the modules' outputs and then the logits, and their spreads.

    Raises:
        UserError: an operation without a rule, a module that `call` does not run, or no such kind.
    """
    if kind == "sampled":
        return sample_errors(model, call, arithmetic, modules, where, true=true)
    if kind not in get_args(StateKind):
        raise UserError(
            f"kind={kind!r} is none of 'variance', 'sampled', 'bound'; type one of them"
        )
    with ExitStack() as stack:
        taken = stack.enter_context(_taking(model, modules))
        if true is None:
            with reference(model, by_layer=True):
                call()
            true = [one.held for one in _read(taken, modules, model)]
        values = list(true)
        run = Prediction(model, arithmetic, cast(StateKind, kind), where)
        lost = stack.enter_context(_losing(run, [*modules, model]))
        with run.running(by_layer=True):
            call()
        moved = _read(taken, modules, model)
    found = []
    for module, before in zip([*modules, model], values, strict=True):
        after = moved.pop(0)
        shift = after.held - before
        spread = run.algebra.spread(after.spread, after.held)
        if module in lost:
            spread = torch.full_like(spread, torch.inf)
        found.append(
            torch.hypot(shift, spread) if kind == "variance" else (shift.abs() + spread) * ROOM
        )
    return values, [one.nan_to_num(torch.inf, torch.inf) for one in found]


@contextmanager
def _losing(run: Prediction, modules: Iterable[nn.Module]) -> Iterator[set[nn.Module]]:
    """Collect the modules behind a choice that lies within its bound."""
    lost: set[nn.Module] = set()

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if run.undecided:
            lost.add(module)

    handles = [module.register_forward_hook(note) for module in dict.fromkeys(modules)]
    with temporary_hooks(handles):
        yield lost


@contextmanager
def _taking(
    model: nn.Module, modules: Sequence[nn.Module]
) -> Iterator[dict[nn.Module, EmulatedTensor]]:
    """Collect the last outputs of modules while they are still carriers."""
    taken: dict[nn.Module, EmulatedTensor] = {}

    def take(module: nn.Module, args: Any, output: Any) -> None:
        found = _first(output)
        if found is not None:
            taken[module] = found

    handles = [module.register_forward_hook(take) for module in dict.fromkeys([*modules, model])]
    with temporary_hooks(handles):
        yield taken


def _first(output: Any) -> EmulatedTensor | None:
    """Return the logits of an output that has any, or its first floating tensor."""
    output = getattr(output, "logits", output)
    if isinstance(output, EmulatedTensor):
        return output
    items = output.values() if isinstance(output, Mapping) else output
    if not isinstance(output, (list, tuple, Mapping)):
        return None
    return next((found for found in map(_first, items) if found is not None), None)


def _read(
    taken: dict[nn.Module, EmulatedTensor], modules: Sequence[nn.Module], model: nn.Module
) -> list[EmulatedTensor]:
    names = {module: name for name, module in model.named_modules()}
    for module in (*modules, model):
        if module not in taken:
            raise UserError(
                f"the module {names.get(module, '?') or 'itself'!r} gave no tensor: its output"
                " cannot be read; name modules that the call runs"
            )
    found = [taken[module] for module in (*modules, model)]
    taken.clear()
    return found
