"""Runs of one model under policies, each measured against its float64 reference."""

from collections.abc import Callable, Iterable
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.errors import UserError
from layerlab.numerics.emulation.arithmetic import exact, make_arithmetic, modes
from layerlab.numerics.emulation.attribution import error, outputs
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.policies.apply import REAL, apply_precision
from layerlab.numerics.emulation.policies.policy import Policy
from layerlab.numerics.emulation.snapshot import copy_sharing
from layerlab.numerics.formats.formats import find
from layerlab.numerics.mixed_precision.advice import KeepOption
from layerlab.numerics.mixed_precision.request import check_request
from layerlab.system.hardware import is_out_of_memory
from layerlab.system.offload import is_offloaded

Run = Callable[[nn.Module], Any]
Step = Callable[[str], None]
WIDE = torch.float32
# Highest exponent of float32, which bf16 shares.
REACH = 127
# Of a text, for the standard error of a share.
PIECES = 16


def losses(seen: Tensor, true: Tensor) -> Tensor:
    """Return the squared error of each token.

    Unit: that of the logits, squared.
    """
    # A token at a time: logits of a large vocabulary in float64 are the largest tensor here.
    rows = zip(seen.flatten(0, -2), true.flatten(0, -2), strict=True)
    found = [(row.double() - full.double()).square().sum() for row, full in rows]
    return torch.stack(found).cpu()


def deviation(missed: Tensor, full: Tensor) -> float:
    """Return the standard error of a share of squared errors by the jackknife.

    One piece of the text at a time is left out.

    Neighbouring tokens err alike, so that pieces of neighbours are left out and not single tokens.

    Source: Own; the jackknife of a ratio over groups.
    Unit: that of the share.

    Args:
        missed: squared error of each token, in the order of the text.
        full: the same with nothing kept.
    """
    pieces = [
        (float(part.sum()), float(base.sum()))
        for part, base in zip(
            missed.tensor_split(min(PIECES, len(missed))),
            full.tensor_split(min(PIECES, len(full))),
            strict=True,
        )
    ]
    over, under = (sum(side) for side in zip(*pieces, strict=True))
    rests = [(over - part, under - base) for part, base in pieces]
    if len(pieces) < 2 or any(base <= 0 for _, base in rests):
        return inf
    shares = [part / base for part, base in rests]
    mean = sum(shares) / len(shares)
    spread = sum((share - mean) ** 2 for share in shares)
    found = (spread * (len(shares) - 1) / len(shares)) ** 0.5
    return found if isfinite(found) else inf


class PolicyRuns:
    """The squared error of the logits that is left when this or that is kept in float32.

    Args:
        model: a model of transformers.
        run: runs a model it is given and returns logits or an output that has them.
        format: of everything that is not kept.
        step: is told what is tried before each run.

    Raises:
        UserError: in this format there is nothing to keep, or the logits are not finite.
    """

    def __init__(self, model: nn.Module, run: Run, format: str, step: Step) -> None:
        self.model, self.run, self.format, self.step = model, run, check_request(format), step
        self.arithmetic = make_arithmetic(format)
        self.refused: dict[str, str] = {}
        self.runs = 0
        self.mixed = 0
        step("float64 reference")
        self.true = self.logits(Emulation(model, exact(self.arithmetic.low)))
        step("nothing kept")
        self.whole = self._whole()
        self.shares: dict[frozenset[str], float] = {frozenset(): 1.0}
        self.deviations: dict[frozenset[str], float] = {frozenset(): 0.0}
        self.reals: dict[frozenset[str], float] = {}
        self.real_losses: dict[frozenset[str], Tensor] = {}

    def _whole(self) -> float:
        emulation = Emulation(self.model, self.arithmetic, policy=Policy(format=self.format))
        self._check_true()
        seen = self.logits(emulation)
        found = error(seen, self.true)
        self.losses = losses(seen, self.true)
        self.mixed = len(emulation.refused)
        if not isfinite(found):
            raise UserError(
                f"in {self.format} the logits are not finite, so no share of their error can be"
                f" told; {self._remedy()}"
            )
        if found == 0:
            raise UserError(
                f"the logits have no rounding error in {self.format}: there is nothing to keep;"
                " name a format with fewer digits, such as bf16"
            )
        return found

    def _check_true(self) -> None:
        """Refuse exact logits that no error can be relative to."""
        if not bool(self.true.isfinite().all()):
            raise UserError(
                "the logits are not finite even in float64, so no format can mend them; look for"
                " NaN or infinities in the weights"
            )
        if not bool(self.true.any()):
            raise UserError(
                "the logits are all zero, so that no error is a share of them; give a model whose"
                " weights are not zero"
            )

    def _remedy(self) -> str:
        """Return the advice against logits that overflow."""
        reach = getattr(find(self.format), "highest", None)
        if isinstance(reach, int) and reach < REACH:
            return "name a format with a wider range, such as bf16"
        return "bf16 reaches as far as float32, so look for weights that are too large"

    def logits(self, emulation: Emulation) -> Tensor:
        """Return the logits of one run."""
        self.runs += 1
        return outputs(emulation, lambda: self.run(self.model), ())[-1]

    def remaining_share(self, logits: Tensor) -> float:
        """Return the squared error of logits over that with nothing kept.

        It is infinite where the logits are not finite.
        """
        found = error(logits, self.true) / self.whole
        return found if isfinite(found) else inf

    def deviation(self, logits: Tensor) -> float:
        """Return the standard error of the share of these logits, over the text."""
        return deviation(losses(logits, self.true), self.losses)

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the shares are estimated from."""
        return len(self.losses)

    def share(self, keep: Iterable[str]) -> float:
        """Return the share of the error that is left under a policy, emulated.

        Raises:
            UserError: torch would refuse to run the model so.
        """
        names = frozenset(keep)
        if names not in self.shares:
            policy = Policy(format=self.format, keep=tuple(sorted(names)))
            emulation = Emulation(self.model, self.arithmetic, policy=policy)
            seen = self.logits(emulation)
            if len(emulation.refused) > self.mixed:
                site = min(map(str, emulation.refused))
                raise UserError(f"torch refuses to mix dtypes at {site}; keep what is around it")
            self.shares[names] = self.remaining_share(seen)
            self.deviations[names] = self.deviation(seen)
        return self.shares[names]

    def autocast(self) -> float | None:
        """Return the share that torch.autocast leaves, emulated; None without that format."""
        if "autocast" not in modes(self.format):
            return None
        self.step("under autocast")
        return self.remaining_share(
            self.logits(Emulation(self.model, make_arithmetic(self.format, "autocast")))
        )

    def try_share(self, name: str, keep: Iterable[str]) -> float | None:
        """Return the share that is left, or None and a note where it cannot be computed."""
        self.step(" + ".join(keep))
        try:
            return self.share(keep)
        except (UserError, RuntimeError) as reason:
            if is_out_of_memory(reason):
                raise
            self.refused[name] = str(reason).splitlines()[0]
            return None

    def alone(self, name: str) -> KeepOption | None:
        """Return the share that is left where only one thing is kept."""
        found = self.try_share(name, (name,))
        return None if found is None else KeepOption(keep=name, alone=found)

    def real(self, keep: Iterable[str]) -> float | None:
        """Return the squared error of a copy in torch's own low dtype, or None without one.

        The copy is gone when the next is made. Of offloaded weights there is none.
        """
        names = frozenset(keep)
        if self.format not in REAL or is_offloaded(self.model):
            return None
        if names not in self.reals:
            self.step("torch's own " + self.format)
            policy = Policy(format=self.format, keep=tuple(sorted(names)))
            low = apply_precision(copy_sharing(self.model), policy)
            self.runs += 1
            self.reals[names] = self._error(low, names)
        return self.reals[names]

    def _error(self, low: nn.Module, names: frozenset[str]) -> float:
        """Return the error of a model in a low dtype.

        Infinite where it does not run, or gives no numbers.
        """
        try:
            with torch.no_grad():
                seen: Any = self.run(low)
        except RuntimeError as reason:
            if is_out_of_memory(reason):
                raise
            self.refused["torch's own " + self.format] = str(reason).splitlines()[0]
            return inf
        logits = seen if isinstance(seen, Tensor) else seen.logits
        self.real_losses[names] = losses(logits, self.true)
        found = error(logits, self.true)
        return found if isfinite(found) else inf

    def real_deviation(self, keep: Iterable[str]) -> float:
        """Return the standard error of the share that real runs leave; 0 where there is none."""
        kept, full = (self.real_losses.get(names) for names in (frozenset(keep), frozenset()))
        return 0.0 if kept is None or full is None else deviation(kept, full)

    def real_share(self, keep: Iterable[str]) -> float | None:
        """Return the share that is left under a policy in real runs."""
        full, kept = self.real(()), self.real(keep)
        return None if full is None or kept is None or full == inf else kept / full

    def within(self, keep: Iterable[str], budget: float) -> bool:
        """Return whether a policy keeps within a budget.

        Emulated and, where torch has the dtype, in real runs.
        """
        names = frozenset(keep)
        if self.share(names) > budget:
            return False
        real = self.real_share(names)
        return real is None or real <= budget

    def try_within(self, keep: Iterable[str], budget: float, what: str) -> bool:
        """Return whether a policy runs and keeps within a budget; `what` is told as the step."""
        self.step(what)
        try:
            return self.within(keep, budget)
        except (UserError, RuntimeError) as reason:
            if is_out_of_memory(reason):
                raise
            return False
