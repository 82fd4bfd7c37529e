"""A small set of places to keep in float32 for a given cut of the squared output error."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.op_site import NUMBER, OpSite
from layerlab.numerics.emulation.policies.apply import find_kept
from layerlab.numerics.emulation.policies.policy import ATTENTION, RESIDUAL, Policy
from layerlab.numerics.emulation.unfused_attention import UnfusedAttention
from layerlab.numerics.formats.formats import AnyFormat, Block, Integer, Scaled
from layerlab.numerics.mixed_precision.advice import Advice, KeepOption, Price
from layerlab.numerics.mixed_precision.literature_advice import attentions, literature_advice
from layerlab.numerics.mixed_precision.policy_runs import WIDE, PolicyRuns, Run, Step, check_request

# How many are tried beside what is chosen before the best of them is.
SHORTLIST = 4
# What gains this share of the largest gain is near enough for its price to decide.
NEAR = 0.5
# Price of one more entry beside the shares of operations and parameters that it takes.
ENTRY = 0.02
# Of the scale of a block.
SCALE_BITS = 8


def silent(what: str) -> None:
    """Report no trials."""


def announce_nothing(trials: int) -> None:
    """Announce no trials."""


def advise(
    model: nn.Module,
    run: Run,
    format: str = "bf16",
    budget: float = 0.3,
    step: Step = silent,
    announce: Callable[[int], None] = announce_nothing,
) -> Advice:
    """Find what to keep in float32 so that the squared output error falls to a wanted share.

    Everything that could be kept is kept alone once; then the most useful are kept together, one
    more at a time, of those that gain nearly the most the one that gains most for the operations
    and parameters it takes, until the error is within the budget, in emulation and in a real run of
    a copy. Those that turn out not to be needed are let go, the costly first. Where this ends above
    the budget, as it may where errors cancel, the search goes backwards from everything kept. How
    many tokens are run decides how sharp the shares are: those of a few hundred may be off by a
    fifth.

    Args:
        model: a model of transformers, best with float32 weights.
        run: runs a model it is given and returns logits or an output that has them.
        format: of everything that is not kept.
        budget: share of the squared error of the logits that may be left.
        step: is told what is tried before each run.
        announce: is told how many more runs a search backwards takes, before it begins.

    Raises:
        UserError: a budget that is no share, or a format that keeps nothing from being rounded.
    """
    format = check_request(format, budget)
    search = PolicyRuns(model, run, format, step)
    names = candidates(model)
    tried = [search.alone(name) for name in names]
    found = sorted((choice for choice in tried if choice), key=lambda choice: choice.alone)
    bill = PolicyCost(model, run, format)
    chosen = _search_forwards(search, found, budget, bill)
    if not search.within(chosen, budget):
        announce(2 * len(names))
        useful = [choice.keep for choice in found]
        chosen = _search_backwards(search, useful, names, budget, bill) or chosen
        found += [KeepOption(keep=name, alone=math.inf) for name in chosen if name not in useful]
    left, real = search.share(chosen), search.real_share(chosen)
    spent = bill.of(chosen)
    measured: dict[str, str | int | float] = {
        "budget": budget,
        "squared error left, emulated": round(left, 4),
        **({} if real is None else {"squared error left, real run": round(real, 4)}),
        "products in float32": round(spent.work, 4),
        "parameters larger by": round(spent.growth, 4),
    }
    return Advice(
        policy=Policy(format=format, keep=tuple(chosen), measured=measured),
        budget=budget,
        choices=tuple(_describe(search, choice, chosen) for choice in found),
        error=search.whole,
        left=left,
        autocast=search.autocast(),
        real=real,
        real_error=None if real is None else search.real(()),
        cost=spent,
        counsels=literature_advice(search, budget),
        refused={name: why for name, why in search.refused.items() if name not in chosen},
        runs=search.runs,
        tokens=search.tokens,
        deviation=search.deviations[frozenset(chosen)],
    )


def candidates(model: nn.Module) -> list[str]:
    """Return what could be kept: the stream, attention, and every kind of module that computes."""
    found: dict[str, None] = {}
    if any(isinstance(module, nn.ModuleList) for module in model.modules()):
        found[RESIDUAL] = None
    for name, module in model.named_modules():
        if not name or isinstance(module, (nn.Dropout, nn.Identity)):
            continue
        kind = NUMBER.sub("*", name)
        if next(module.children(), None) is None or module._parameters:
            found[kind] = None
    attending = (NUMBER.sub("*", name) + ATTENTION for name in attentions(model))
    return [*found, *dict.fromkeys(attending)]


def _describe(search: PolicyRuns, choice: KeepOption, chosen: Sequence[str]) -> KeepOption:
    """Describe a choice with what was left once it was kept beside the more useful ones."""
    if choice.keep not in chosen:
        return choice
    upto = chosen[: chosen.index(choice.keep) + 1]
    left = search.try_share(choice.keep, upto)
    return replace(choice, left=math.inf if left is None else left)


def _search_forwards(
    search: PolicyRuns, found: Sequence[KeepOption], budget: float, bill: "PolicyCost"
) -> list[str]:
    """Choose what to keep.

    If that is most of the model, a second order is tried, the cheaper taken.
    """
    first = _prune(search, _greedy(search, found, budget, bill, NEAR), budget, bill)
    spent = bill.of(first)
    if not spent.most or not search.within(first, budget):
        return first
    second = _prune(search, _greedy(search, found, budget, bill, 0.0), budget, bill)
    saves = bill.price(second) < bill.price(first)
    return second if saves and search.within(second, budget) else first


def _search_backwards(
    search: PolicyRuns,
    useful: Sequence[str],
    names: Sequence[str],
    budget: float,
    bill: "PolicyCost",
) -> list[str]:
    """Take out of everything, the costly first, what the budget does not need.

    Each is tried once, so that the emulated runs are at most two more than the places, and the real
    ones as many; the few that are left are pruned. Empty: not even everything is enough.
    """
    # What torch refuses to keep alone may run beside its neighbours.
    starts = [*dict.fromkeys([*useful, *names])], [*useful]
    ways = (one for one in starts if search.try_within(one, budget, "everything kept"))
    kept = next(ways, [])
    for name in sorted(kept, key=lambda name: -bill.price([name])):
        rest = [other for other in kept if other != name]
        if search.try_within(rest, budget, f"everything kept, without {name}"):
            kept = rest
    return _prune(search, kept, budget, bill)


def _greedy(
    search: PolicyRuns, found: Sequence[KeepOption], budget: float, bill: "PolicyCost", near: float
) -> list[str]:
    """Add one choice at a time: the best for its price of those that leave nearly the least."""
    chosen: list[str] = []
    left = 1.0
    worth = {choice.keep: (1 - choice.alone) / bill.price([choice.keep]) for choice in found}
    names = [choice.keep for choice in found]
    while names and not search.within(chosen, budget):
        cheap = sorted(names, key=lambda name: -worth[name])
        listed = list(dict.fromkeys([*names[: SHORTLIST // 2], *cheap]))[:SHORTLIST]
        trials = {name: search.try_share(name, [*chosen, name]) for name in listed}
        # What helps alone may not help any more: then it is not worth its cost.
        useful = {name: share for name, share in trials.items() if share and share < left}
        if useful:
            best = _best(useful, left, budget, lambda name: bill.price([*chosen, name]), near)
            chosen.append(best)
            left = useful.pop(best)
        names = [name for name in names if name in useful or name not in trials]
    return chosen


def _best(
    useful: dict[str, float],
    left: float,
    budget: float,
    price: Callable[[str], float],
    near: float,
) -> str:
    """Return the choice with the most gain per price among those with nearly the largest gain."""
    # Below the budget nothing more is gained, unless the real run needs it.
    gains = {name: left - max(share, min(budget, left)) for name, share in useful.items()}
    if not any(gains.values()):
        gains = {name: left - share for name, share in useful.items()}
    bar = near * max(gains.values())
    return max(
        (name for name in gains if gains[name] >= bar), key=lambda name: gains[name] / price(name)
    )


def _prune(search: PolicyRuns, chosen: list[str], budget: float, bill: "PolicyCost") -> list[str]:
    """Drop the choices that the budget does not need; a budget that is not reached needs all."""
    if not search.within(chosen, budget):
        return chosen
    for name in sorted(chosen, key=lambda name: -bill.price([name])):
        rest = [other for other in chosen if other != name]
        if search.try_within(rest, budget, f"without {name}"):
            return _prune(search, rest, budget, bill)
    return chosen


class PolicyCost:
    """The cost of policies of one model; the model is run once, to count.

    Args:
        model: a model of transformers.
        run: runs a model it is given.
        format: of everything that is not kept.
    """

    def __init__(self, model: nn.Module, run: Run, format: str) -> None:
        self.model, self.format = model, format
        grouped = {torch.ops.aten._grouped_mm: _grouped_flops}
        # Fused attention is taken apart, since not every device's kernel is counted.
        with FlopCounterMode(display=False, custom_mapping=grouped) as counter, UnfusedAttention():
            with torch.no_grad():
                run(model)
        self.all = counter.get_total_flops()
        self.counts = {
            name.partition(".")[2]: sum(table.values())
            for name, table in counter.get_flop_counts().items()
        }
        self.sizes = {name: value.numel() for name, value in model.named_parameters()}
        self._bytes = self._count_bytes()

    def _count_bytes(self) -> dict[str, float]:
        """Return the bytes of the parameters, each in its format."""
        emulation = Emulation(self.model, make_arithmetic(self.format))
        other = 8 * emulation.arithmetic.low.itemsize
        found = {}
        for name, value in self.model.named_parameters():
            module, _, last = name.rpartition(".")
            format = emulation.find_format(value, OpSite(module, last))
            found[name] = ((format and bits(format)) or other) * value.numel() / 8
        return found

    def of(self, keep: Sequence[str]) -> Price:
        """Return the operations in products and bytes of parameters that are in float32."""
        found = find_kept(self.model, Policy(format=self.format, keep=tuple(keep)))
        wide = found.modules | found.tied
        single = sum(self.counts.get(name, 0) for name in wide if not _inside(name, wide))
        for name in found.attentions - found.modules:
            module = self.model.get_submodule(name)
            inner = (f"{name}.{child}" for child, _ in module.named_children())
            single += self.counts.get(name, 0) - sum(self.counts.get(child, 0) for child in inner)
        kept = [name for name in self.sizes if found.parameter(name)]
        numbers = sum(self.sizes[name] for name in kept)
        low = sum(self._bytes[name] for name in kept)
        return Price(
            flops=single,
            all_flops=self.all,
            bytes=round(WIDE.itemsize * numbers - low),
            all_bytes=round(sum(self._bytes.values())),
            numbers=numbers,
            all_numbers=sum(self.sizes.values()),
        )

    def price(self, keep: Sequence[str]) -> float:
        """Return the shares of operations and parameters in float32, plus a little per entry."""
        spent = self.of(keep)
        return spent.work + spent.share + ENTRY * len(keep)


def bits(format: AnyFormat) -> int | float | None:
    """Return the bits of a stored number and its part of a block's scale; None without a limit.

    Sign, significand and exponent: 1 + (t - 1) + ceil(log2(highest - lowest + 2)), where one code
    of the exponent is that of the subnormals. Other scales are not counted.

    Unit: bits.

    Example:
        >>> from layerlab.numerics.formats.formats import find
        >>> [bits(find(name)) for name in ("bf16", "fp8_e4m3", "int4", "mxfp4")]
        [16, 8, 4, 4.25]
    """
    if isinstance(format, Integer):
        return format.bits
    if isinstance(format, Scaled):
        return bits(format.element)
    if isinstance(format, Block):
        element = bits(format.element)
        return None if element is None else element + SCALE_BITS / format.size
    if format.lowest is None or format.highest is None:
        return None
    return format.digits + math.ceil(math.log2(format.highest - format.lowest + 2))


def _grouped_flops(left: Any, right: Any, *rest: Any, **options: Any) -> int:
    """Return the operations of products by group: each row meets one matrix."""
    groups = left[0] if len(left) == len(right) == 3 else 1
    return int(2 * groups * left[-2] * left[-1] * right[-1])


def _inside(name: str, modules: Iterable[str]) -> bool:
    return any(name.startswith(other + ".") for other in modules)
