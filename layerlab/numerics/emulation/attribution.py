"""Attribution of a model's rounding error: its places rounded one component at a time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import isfinite, nan
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from layerlab.numerics.emulation.arithmetic import AnyFormat, exact, make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.emulated_tensor import unwrap
from layerlab.numerics.emulation.op_site import NUMBER, OpSite
from layerlab.numerics.emulation.overflow import WatchedEmulation
from layerlab.records.layer_names import EMBEDDING, layer_name
from layerlab.system.hooks import temporary_hooks

Call = Callable[[], Any]
WEIGHTS = "weights (stored)"
# Off by more than this from 1, the closure asks which components do not add up.
CLOSED = 0.2
PAIRED = 4
# No logit that a model computes is less: what is was written by a mask.
MASKED = -1e30
# What a place's name alone does not tell a reader, by what follows the last dot.
GLOSSES = {
    "self_attn:cast": "attention weights or output, narrowed",
    "attn:cast": "attention weights or output, narrowed",
    "transformer:add": "embedding + position",
    "rotary_emb": "rotary tables",
}


@dataclass(frozen=True)
class Error:
    """Squared error over the squared norm of the reference, of the logits and the last stream."""

    logits: float
    stream: float


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The contribution of some places of a model when nothing else is rounded.

    Attributes:
        name: what they are, as a person says it.
        layer: EMBEDDING, the block, or the number of blocks for what follows; None for all.
        places: the places.
        error: of a run in which only they round.
    """

    name: str
    layer: int | None = None
    places: frozenset[OpSite]
    error: Error


@dataclass(frozen=True, kw_only=True)
class JointError:
    """Two components at once: `excess` is their joint error less the sum of their own."""

    first: str
    second: str
    joint: Error
    excess: Error


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The error of a model by component and by layer, one at a time, the largest first.

    Attributes:
        whole: the error with every place rounded; NaN where numbers overflow.
        cross: each component in each layer, if that was asked for.
        pairs: the largest components two by two, where the closure is off.
        runs: how often the model was run.
        overflow: the first place that overflows, where errors are not those of rounding.
    """

    whole: Error
    components: tuple[Contribution, ...]
    layers: tuple[Contribution, ...]
    cross: tuple[Contribution, ...] = ()
    pairs: tuple[JointError, ...] = ()
    runs: int = 0
    overflow: str | None = None

    @property
    def closure(self) -> float:
        """Return the sum of the components' errors of the logits over that of the whole.

        It is 1 where they add up.
        """
        return closure(self.components, self.whole)

    @property
    def layer_closure(self) -> float:
        return closure(self.layers, self.whole)


def closure(parts: Iterable[Contribution], total_error: Error) -> float:
    """Return the sum of the parts' squared errors of the logits over that of all at once.

    It is 1 where the parts' errors are uncorrelated and small enough to be carried on linearly.

    Unit: none.
    """
    total = sum(part.error.logits for part in parts)
    return total / total_error.logits if total_error.logits > 0 else nan


def outputs(run: Emulation, call: Call, modules: Sequence[nn.Module]) -> list[Tensor]:
    """Return the input of the first of some modules, the output of each, and the logits.

    Args:
        call: runs the model, and gives logits or an output that has them.
        modules: in the order in which they run.
    """
    found: dict[int, Tensor] = {}

    def keep(index: int, value: Tensor) -> None:
        # A copy, so that a later operation in place does not change what was seen.
        found[index] = value.detach().clone()

    read_outputs(run, call, modules, keep)
    return [found[index] for index in sorted(found)]


def read_outputs(
    run: Emulation, call: Call, modules: Sequence[nn.Module], read: Callable[[int, Tensor], None]
) -> None:
    """Read each of the `outputs` as soon as it is there, so that none has to be kept.

    Args:
        read: is given the place among the `outputs`, and the values.
    """

    def give(index: int, value: Any) -> None:
        # What is computed of the values is no part of the run.
        with _disable_current_modes():
            read(index, unwrap(value))

    def enter(module: nn.Module, args: Any, options: Any) -> None:
        given = [*args, *options.values()]
        give(0, next(value for value in given if isinstance(value, Tensor)))

    def leave(index: int) -> Callable[..., None]:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            give(index, output[0] if isinstance(output, (tuple, list)) else output)

        return look

    handles = [
        module.register_forward_hook(leave(index)) for index, module in enumerate(modules, 1)
    ]
    if modules:
        handles.append(modules[0].register_forward_pre_hook(enter, with_kwargs=True))
    with temporary_hooks(handles), run.running(by_layer=True):
        logits = call()
    logits = getattr(logits, "logits", logits)
    logits = logits[0] if isinstance(logits, (tuple, list)) else logits
    read(len(modules) + 1, unwrap(logits))


def error(seen: Tensor, true: Tensor) -> float:
    """Return ||seen - true||^2 / ||true||^2 over all tokens.

    Unit: none.
    """
    # A slice at a time: logits of a large vocabulary in float64 are the largest tensor here.
    missed = total = 0.0
    for rows in zip(seen.flatten(0, -2), true.flatten(0, -2), strict=True):
        part, reference = clear_masked(*rows)
        missed += float((part.double() - reference.double()).square().sum())
        total += float(reference.double().square().sum())
    return missed / total if total > 0 else nan


def clear_masked(seen: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with zeros where the reference is a logit that the model masks.

    Such a constant, the least number of a format or -inf, would outweigh all other logits.
    """
    masked = true < MASKED
    return seen.masked_fill(masked, 0), true.masked_fill(masked, 0)


@dataclass
class _Trials:
    """Runs of one model against its reference, a choice of places at a time."""

    run: WatchedEmulation
    call: Call
    last: tuple[nn.Module, ...]
    true: list[Tensor]
    step: Callable[[str], None]
    runs: int = 0
    known: dict[frozenset[OpSite], Error] = field(default_factory=dict)

    def __call__(self, what: str, places: frozenset[OpSite] | None) -> Error:
        if places is not None and places in self.known:
            return self.known[places]
        self.step(what)
        self.runs += 1
        self.run.select(None)
        if places is not None:
            self.run.only(places)
        seen = outputs(self.run, self.call, self.last)
        stream = error(seen[-2], self.true[-2]) if self.last else nan
        found = Error(error(seen[-1], self.true[-1]), stream)
        if places is not None:
            self.known[places] = found
        return found

    def find_overflow(self, total: Error) -> str | None:
        """Return the first place that overflows, where that makes the error of all places.

        What is computed in float32 beside the places may overflow as well.
        """
        place, self.run.watching = self.run.overflow, False
        if not isfinite(total.logits):
            return str(place or "model")
        if place is None or self("no place", frozenset()).logits <= CLOSED * total.logits:
            return None
        return str(place)


def attribution(
    model: nn.Module,
    call: Call,
    format: str | AnyFormat,
    mode: str = "as-run",
    *,
    last: nn.Module | None = None,
    cross: bool = False,
    step: Callable[[str], None] = lambda what: None,
    **options: Any,
) -> Attribution:
    """Round one component at a time, then one layer at a time, and read the errors of the logits.

    E_c = ||f_c(x) - f(x)||^2 / ||f(x)||^2,   closure = sum_c E_c / E

    f_c rounds in component c only and f nowhere. Where the closure is off by more than `CLOSED`,
    the largest components are also rounded two by two.

    Args:
        call: runs the model once, as in `lambda: model(input_ids=ids)`.
        last: the block whose output is the last stream; its error is NaN without.
        cross: also each component in each layer: as many runs as their product.
        step: is told what is rounded before each run.
        options: as `emulate` takes them.

    Raises:
        UserError: unknown format or mode.
    """
    modules = () if last is None else (last,)
    run = WatchedEmulation(model, make_arithmetic(format, mode, **options))
    step("reference")
    true = outputs(Emulation(model, exact(run.arithmetic.low)), call, modules)
    trial = _Trials(run, call, modules, true, step)
    total = trial("all places", None)
    if overflow := trial.find_overflow(total):
        total = Error(nan, nan)
    places = SiteIndex(model, run.roundings)
    kinds, floors = places.group(places.kind), places.group(places.floor)
    components = _rank(
        Contribution(name=name, places=group, error=trial(name, group))
        for name, group in kinds.items()
    )
    layers = _rank(
        Contribution(
            name=places.floor_name(number),
            layer=number,
            places=group,
            error=trial(places.floor_name(number), group),
        )
        for number, group in sorted(floors.items())
    )
    found = Attribution(whole=total, components=components, layers=layers, overflow=overflow)
    table = tuple(_cross(trial, components, floors)) if cross else ()
    pairs = tuple(_pair(trial, components)) if _open(found.closure) else ()
    return replace(found, cross=table, pairs=pairs, runs=trial.runs)


def _rank(parts: Iterable[Contribution]) -> tuple[Contribution, ...]:
    def order(part: Contribution) -> tuple[bool, float, str]:
        size = part.error.logits
        return isfinite(size), -size if isfinite(size) else 0.0, part.name

    return tuple(sorted(parts, key=order))


def _open(share: float) -> bool:
    return isfinite(share) and abs(share - 1) > CLOSED


def _cross(
    trial: _Trials, components: Sequence[Contribution], floors: Mapping[int, frozenset[OpSite]]
) -> Iterable[Contribution]:
    for part in components:
        for number, group in sorted(floors.items()):
            if both := part.places & group:
                found = trial(f"{part.name}, layer {number}", both)
                yield Contribution(name=part.name, layer=number, places=both, error=found)


def _pair(trial: _Trials, components: Sequence[Contribution]) -> Iterable[JointError]:
    for first, second in combinations(components[:PAIRED], 2):
        joint = trial(f"{first.name} with {second.name}", first.places | second.places)
        excess = Error(
            joint.logits - first.error.logits - second.error.logits,
            joint.stream - first.error.stream - second.error.stream,
        )
        yield JointError(first=first.name, second=second.name, joint=joint, excess=excess)


class SiteIndex:
    """The component and the layer of each place of a model.

    Args:
        model: the model.
        places: where it rounds, in the order in which it first did.
    """

    def __init__(self, model: nn.Module, places: Iterable[OpSite]) -> None:
        self.places = tuple(places)
        self.stored = {
            (owner, name)
            for owner, module in model.named_modules()
            for name in (*module._parameters, *module._buffers)
        }
        stack = [site for site in self.places if site.layer is not None]
        self.blocks = max((site.layer for site in stack if site.layer is not None), default=-1) + 1
        self.prefix = _prefix(stack)
        self.front = self._before()

    def _before(self) -> frozenset[str]:
        """Return the modules outside the stack that round before its first block does."""
        running = [site for site in self.places if tuple(site) not in self.stored]
        first = next((i for i, site in enumerate(running) if site.layer is not None), 0)
        behind = {site.module for site in running[first:] if site.layer is None}
        ahead = {site.module for site in self.places if site.layer is None}
        return frozenset(ahead - behind)

    def group(self, key: Callable[[OpSite], Any]) -> dict[Any, frozenset[OpSite]]:
        """Return the places, grouped by what `key` returns for each."""
        found: dict[Any, set[OpSite]] = {}
        for site in self.places:
            found.setdefault(key(site), set()).add(site)
        return {name: frozenset(group) for name, group in found.items()}

    def kind(self, site: OpSite) -> str:
        """Describe the component in a few words: its path in the block, and its operation.

        What a block adds is the residual stream; parameters of all kinds are one component.
        """
        if tuple(site) in self.stored:
            return WEIGHTS
        if site.layer is None:
            return _describe(str(site)) if site.module else f"model:{site.operation}"
        inside = NUMBER.sub("*", str(site)).removeprefix(self.prefix)
        if inside == ":add":
            return "residual stream"
        return _describe(inside.lstrip(".:")) if not inside.startswith(":") else f"block{inside}"

    def floor(self, site: OpSite) -> int:
        """Return the layer: EMBEDDING before the blocks, the block, or their count behind them."""
        if site.layer is not None:
            return site.layer
        return EMBEDDING if site.module in self.front else self.blocks

    def floor_name(self, number: int) -> str:
        if number == self.blocks:
            return "behind the blocks"
        return layer_name(number)


def _describe(name: str) -> str:
    """Return a name, and what the name stands for where it does not say so itself."""
    gloss = GLOSSES.get(name.rpartition(".")[2])
    return f"{name} ({gloss})" if gloss else name


def _prefix(stack: Sequence[OpSite]) -> str:
    """Return the path of the blocks with `*` for their number."""
    if not stack:
        return ""
    found = NUMBER.search(stack[0].module)
    assert found is not None, "places of the stack have a number"
    return f"{stack[0].module[: found.start()]}*"
