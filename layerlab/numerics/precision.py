"""The smallest set of places to keep in float32 for a given cut of the squared output error."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from layerlab import UserError
from layerlab.numerics.attribution import error, outputs
from layerlab.numerics.casting import REAL, apply_precision, kept
from layerlab.numerics.emulate import Emulation
from layerlab.numerics.place import NUMBER
from layerlab.numerics.policy import ATTENTION, RESIDUAL, Policy
from layerlab.numerics.regime import exact, regime

Run = Callable[[nn.Module], Any]
WIDE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing that could stay in float32.

    Attributes:
        keep: as a policy names it.
        alone: share of the squared error that is left when it alone is kept.
        left: share that is left when it and all chosen before it are kept; None: not chosen.
    """

    keep: str
    alone: float
    left: float | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to keep in float32, what it buys, and what it costs.

    Attributes:
        policy: to be saved and applied.
        budget: share of the squared error of the logits that may be left.
        choices: what was tried, the most useful first.
        error: squared error of the logits, relative, with nothing kept.
        left: share of it that is left under the policy, emulated.
        real: the same share in real runs of a copy in the low dtype; None where torch has none.
        real_error: squared error of the real run with nothing kept.
        flops: share of the operations in matrix products that are done in float32.
        bytes: how much larger the parameters are than all in the low format, as a share.
        refused: what could not be kept apart, and why.
        runs: how often the model was run.
    """

    policy: Policy
    budget: float
    choices: tuple[Choice, ...]
    error: float
    left: float
    real: float | None
    real_error: float | None
    flops: float
    bytes: float
    refused: dict[str, str]
    runs: int

    @property
    def reached(self) -> bool:
        """Whether the budget is kept."""
        return self.left <= self.budget


def advise(
    model: nn.Module,
    run: Run,
    format: str = "bf16",
    budget: float = 0.3,
    step: Callable[[str], None] = lambda what: None,
) -> Advice:
    """Find what to keep in float32 so that the squared output error falls to a share of it.

    Everything that could be kept is kept alone once; then the most useful are kept together, one
    more at a time, until the error is within the budget, and those that turn out not to be needed
    are let go. Each set is verified by running it.

    Source: Own.

    Args:
        model: a model of transformers.
        run: runs a model it is given and returns logits or an output that has them.
        format: of everything that is not kept.
        budget: share of the squared error of the logits that may be left.
        step: is told what is tried before each run.

    Raises:
        UserError: a budget that is no share, or a format that keeps nothing from being rounded.
    """
    if not 0 < budget < 1:
        raise UserError(
            f"budget={budget} is no share of the squared error; type a number between 0 and 1, such"
            " as 0.3"
        )
    search = _Search(model, run, format, step)
    tried = [search.alone(name) for name in candidates(model)]
    found = sorted((choice for choice in tried if choice), key=lambda choice: choice.alone)
    chosen, left = _greedy(search, found, budget)
    chosen, left = _pruned(search, chosen, left, budget)
    policy = Policy(format=format, keep=tuple(chosen))
    real, real_error = search.real(policy)
    flops, size = cost(model, run, policy)
    return Advice(
        policy=Policy(
            format=format, keep=policy.keep, measured=_measured(budget, left, real, flops, size)
        ),
        budget=budget,
        choices=tuple(search.told(choice, chosen) for choice in found),
        error=search.whole,
        left=left,
        real=real,
        real_error=real_error,
        flops=flops,
        bytes=size,
        refused=search.refused,
        runs=search.runs,
    )


def candidates(model: nn.Module) -> list[str]:
    """What could be kept: the stream, attention, and every kind of module that computes.

    Source: Own.
    """
    found: dict[str, None] = {}
    if any(isinstance(module, nn.ModuleList) for module in model.modules()):
        found[RESIDUAL] = None
    for name, module in model.named_modules():
        if not name or isinstance(module, (nn.Dropout, nn.Identity)):
            continue
        kind = NUMBER.sub("*", name)
        if next(module.children(), None) is None or module._parameters:
            found[kind] = None
    attending = kept_attentions(model)
    return [*found, *dict.fromkeys(NUMBER.sub("*", name) + ATTENTION for name in attending)]


def kept_attentions(model: nn.Module) -> list[str]:
    """Paths of the modules whose attention could be kept.

    Source: Own.
    """
    try:
        return sorted(kept(model, Policy(format="bf16", keep=("*" + ATTENTION,))).attentions)
    except UserError:
        return []


class _Search:
    """Runs of a model under policies, each measured against its float64 reference."""

    def __init__(
        self, model: nn.Module, run: Run, format: str, step: Callable[[str], None]
    ) -> None:
        self.model, self.run, self.format, self.step = model, run, format, step
        self.refused: dict[str, str] = {}
        self.runs = 0
        self.shares: dict[frozenset[str], float] = {}
        low = regime(format).low
        step("reference")
        self.true = self._logits(Emulation(model, exact(low)))
        self.mixed = 0
        step("nothing kept")
        self.whole = 1.0
        self.whole = self.share(())
        self.shares = {frozenset(): 1.0}
        if not self.whole > 0:
            raise UserError(
                f"the logits have no rounding error in {format}: there is nothing to keep; name a"
                " format with fewer digits, such as bf16"
            )

    def _logits(self, emulation: Emulation) -> Tensor:
        self.runs += 1
        return outputs(emulation, lambda: self.run(self.model), ())[-1]

    def share(self, keep: Iterable[str]) -> float:
        """Squared error of the logits under a policy, over that under none."""
        names = frozenset(keep)
        if names not in self.shares:
            policy = Policy(format=self.format, keep=tuple(names))
            emulation = Emulation(self.model, regime(self.format), policy=policy)
            seen = self._logits(emulation)
            if not names:
                self.mixed = len(emulation.refused)
            elif len(emulation.refused) > self.mixed:
                place = min(map(str, emulation.refused))
                raise UserError(f"torch refuses to mix dtypes at {place}")
            self.shares[names] = error(seen, self.true) / self.whole
        return self.shares[names]

    def alone(self, name: str) -> Choice | None:
        self.step(name)
        try:
            return Choice(keep=name, alone=self.share((name,)))
        except (UserError, RuntimeError) as reason:
            self.refused[name] = str(reason).splitlines()[0]
            return None

    def told(self, choice: Choice, chosen: Sequence[str]) -> Choice:
        """A choice with what was left once it was kept beside the more useful ones."""
        if choice.keep not in chosen:
            return choice
        upto = chosen[: chosen.index(choice.keep) + 1]
        self.step(" + ".join(upto))
        return Choice(keep=choice.keep, alone=choice.alone, left=self.share(upto))

    def real(self, policy: Policy) -> tuple[float | None, float | None]:
        """The same share in torch's own low dtype."""
        if policy.format not in REAL:
            return None, None
        errors = []
        for keep in ((), policy.keep):
            self.step("torch's own " + policy.format)
            low = apply_precision(
                copy.deepcopy(self.model), Policy(format=policy.format, keep=keep)
            )
            with torch.no_grad():
                seen = self.run(low)
            errors.append(error(_logits(seen), self.true))
            self.runs += 1
        return errors[1] / errors[0], errors[0]


def _logits(output: Any) -> Tensor:
    found: Tensor = output if isinstance(output, Tensor) else output.logits
    return found


def _greedy(search: _Search, found: Sequence[Choice], budget: float) -> tuple[list[str], float]:
    chosen: list[str] = []
    left = 1.0
    for choice in found:
        if left <= budget:
            break
        search.step(" + ".join([*chosen, choice.keep]))
        try:
            trial = search.share([*chosen, choice.keep])
        except (UserError, RuntimeError) as reason:
            search.refused[choice.keep] = str(reason).splitlines()[0]
            continue
        # What helps alone may not help any more: then it is not worth its cost.
        if trial < left:
            chosen.append(choice.keep)
            left = trial
    return chosen, left


def _pruned(
    search: _Search, chosen: list[str], left: float, budget: float
) -> tuple[list[str], float]:
    for name in list(chosen):
        rest = [other for other in chosen if other != name]
        if left > budget or not rest:
            break
        search.step("without " + name)
        share = search.share(rest)
        if share <= budget:
            chosen, left = rest, share
    return chosen, left


def cost(model: nn.Module, run: Run, policy: Policy) -> tuple[float, float]:
    """Share of the products' operations done in float32, and growth of the parameters.

    Source: Own.
    Unit: none.
    """
    found = kept(model, policy)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        run(model)
    counts = {
        name.partition(".")[2]: sum(table.values())
        for name, table in counter.get_flop_counts().items()
    }
    total = max(counter.get_total_flops(), 1)
    single_modules = found.modules | found.tied
    single = sum(
        counts.get(name, 0) for name in single_modules if not _inside(name, single_modules)
    )
    for name in found.attentions - found.modules:
        children = (f"{name}.{child}" for child, _ in model.get_submodule(name).named_children())
        single += counts.get(name, 0) - sum(counts.get(child, 0) for child in children)
    sizes = {name: value.numel() for name, value in model.named_parameters()}
    wide = sum(size for name, size in sizes.items() if found.parameter(name))
    low = regime(policy.format).low.itemsize
    return single / total, wide * (WIDE_BYTES / low - 1) / max(sum(sizes.values()), 1)


def _inside(name: str, modules: Iterable[str]) -> bool:
    return any(name.startswith(other + ".") for other in modules)


def _measured(
    budget: float, left: float, real: float | None, flops: float, size: float
) -> dict[str, str | float]:
    shown: dict[str, str | float] = {
        "budget": budget,
        "squared error left, emulated": round(left, 4),
        "products in float32": round(flops, 4),
        "parameters larger by": round(size, 4),
    }
    if real is not None:
        shown["squared error left, real run"] = round(real, 4)
    return shown
