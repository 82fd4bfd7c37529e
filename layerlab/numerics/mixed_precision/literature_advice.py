"""The source's two pieces of advice on precision, tried on a model instead of repeated.

The first, scores and softmax in higher precision, is followed and measured: all attention is kept
in float32. A fused kernel has followed it already, so the opposite is measured too.

The second, control of W_k^T W_q, is a constraint of training and cannot be followed afterwards; but
what it could buy has a limit. Control makes scores less sensitive to errors of what they are
computed from. At best they have none: so a run is made in which every score is computed from the
queries and keys of exact arithmetic, in float32, and everything else is rounded. What is left there
did not arise in scores and did not pass through them. To first order no control leaves less, unless
errors through scores cancel others. Scaling the queries instead would make it another function.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isinf
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from layerlab.errors import UserError
from layerlab.numerics.emulation.arithmetic import exact
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, unwrap
from layerlab.numerics.emulation.policies.apply import find_kept
from layerlab.numerics.emulation.policies.attention_dtype import EXCHANGE
from layerlab.numerics.emulation.policies.policy import ATTENTION, Policy
from layerlab.numerics.mixed_precision.advice import FAILS, HOLDS, OPEN, AdviceCheck
from layerlab.numerics.mixed_precision.policy_runs import WIDE, PolicyRuns

ALL = "*" + ATTENTION
SOURCE = "budzinskiy25"
HIGHER = "scores and softmax in higher precision"
CONTROL = "control of W_k^T W_q"


def attentions(model: nn.Module) -> list[str]:
    """Return the paths of the modules whose attention could be kept apart."""
    try:
        return sorted(find_kept(model, Policy(format="bf16", keep=(ALL,))).attentions)
    except UserError:
        return []


def literature_advice(search: PolicyRuns, budget: float) -> tuple[AdviceCheck, AdviceCheck]:
    """Return both pieces of advice, each judged by whether it alone stays within a budget.

    Nothing is decided where the budget lies within two standard errors of what is left.

    Source: budzinskiy25, section 5; how they are judged is Own.
    """
    if not attentions(search.model):
        why = "no module asks transformers' AttentionInterface, so attention cannot be told apart"
        higher, control = (
            AdviceCheck(advice=advice, source=SOURCE, verdict=OPEN, reason=why)
            for advice in (HIGHER, CONTROL)
        )
        return higher, control
    return _higher(search, budget), _control(search, budget)


def _higher(search: PolicyRuns, budget: float) -> AdviceCheck:
    left = search.try_share(HIGHER, (ALL,))
    if left is None:
        return AdviceCheck(
            advice=HIGHER, source=SOURCE, verdict=OPEN, reason=search.refused.pop(HIGHER)
        )
    real = search.real_share((ALL,))
    search.step("scores and softmax rounded")
    lower = search.remaining_share(search.logits(RoundedScores(search.model, search.arithmetic)))
    shares = [left] if real is None else [left, real]
    errors = [search.deviations.get(frozenset((ALL,)), 0.0), search.real_deviation((ALL,))]
    verdicts = {judge_share(*one, budget) for one in zip(shares, errors, strict=False)}
    verdict = verdicts.pop() if len(verdicts) == 1 else OPEN
    seen = "" if real is None else f" ({_about(real, errors[1])} in a real run)"
    reason = (
        f"with all attention in float32 {_about(left, errors[0])}{seen} of the squared error is"
        f" left on {search.tokens} tokens; with scores and softmax rounded to {search.format} it"
        f" would be {lower:.3f}"
    )
    return AdviceCheck(advice=HIGHER, source=SOURCE, verdict=verdict, reason=reason, left=left)


def judge_share(left: float, error: float, budget: float) -> str:
    """Judge whether a share is within a budget, if that is more than two standard errors away."""
    if left + 2 * error <= budget:
        return HOLDS
    # A share without numbers is beyond every budget.
    return FAILS if isinf(left) or left - 2 * error > budget else OPEN


def _about(left: float, error: float) -> str:
    return f"{left:.3f} ± {error:.3f}"


def _control(search: PolicyRuns, budget: float) -> AdviceCheck:
    search.step("scores from exact queries and keys")
    logits = exact_scores(search)
    left, error = search.remaining_share(logits), search.deviation(logits)
    verdict = judge_share(left, error, budget)
    reason = (
        f"with the queries and keys of exact arithmetic {_about(left, error)} is left on"
        f" {search.tokens} tokens"
    )
    if verdict == FAILS:
        bought = max(1 - left, 0.0)
        return AdviceCheck(
            advice=CONTROL,
            source=SOURCE,
            verdict=FAILS,
            reason=f"{reason}, so that it can buy {bought:.3f} at most",
            left=left,
        )
    reason += (
        f", within two standard errors of the budget of {budget:g}; give a longer text"
        if verdict == OPEN
        else ", so that it could be enough; whether training gets there no run can tell"
    )
    return AdviceCheck(advice=CONTROL, source=SOURCE, verdict=OPEN, reason=reason, left=left)


class RoundedScores(Emulation):
    """As run, but scores and the steps of the softmax are rounded also where float32 keeps them."""

    def settle(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        super().settle(func, inputs, outputs)
        format = self.arithmetic.results.get(self.arithmetic.low)
        if self._place.operation in ("scores", "softmax") and format is not None:
            for output in outputs:
                output.held = self.rounder(format)(output.held)


def exact_scores(search: PolicyRuns) -> Tensor:
    """Return the logits of a rounded run with scores from exact queries and keys in float32."""
    policy = Policy(format=search.format, keep=(ALL,))
    seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
    with _exchanging(search.model, lambda module: _Recorder(seen.setdefault(module, []))):
        search.logits(Emulation(search.model, exact(search.arithmetic.low), policy=policy))
    with _exchanging(search.model, lambda module: _Replayer(seen[module])):
        return search.logits(Emulation(search.model, search.arithmetic, policy=policy))


class _Recorder:
    """Keeps the queries and keys of every call of one module; what is not exact is not kept."""

    def __init__(self, found: list[tuple[Tensor, Tensor]]) -> None:
        self.found = found

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        self.found.append((_single(query), _single(key)))
        return query, key


class _Replayer:
    """Gives the recorded queries and keys in the same order."""

    def __init__(self, found: list[tuple[Tensor, Tensor]]) -> None:
        self.calls = iter(found)

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        first, second = next(self.calls)
        return _carry(first, query), _carry(second, key)


def _single(value: Tensor) -> Tensor:
    """Return a copy in float32.

    Its unit roundoff is far below that of any format that is searched in.
    """
    with _disable_current_modes():
        return unwrap(value).detach().to(WIDE, copy=True)


def _carry(value: Tensor, instead: Tensor) -> Tensor:
    with _disable_current_modes():
        return EmulatedTensor(value.to(unwrap(instead).dtype), WIDE)


@contextmanager
def _exchanging(model: nn.Module, exchange: Any) -> Iterator[None]:
    modules = [model.get_submodule(name) for name in attentions(model)]
    for module in modules:
        setattr(module, EXCHANGE, exchange(module))
    try:
        yield
    finally:
        for module in modules:
            delattr(module, EXCHANGE)
