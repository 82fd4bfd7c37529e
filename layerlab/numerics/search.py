"""Runs of one model under policies, each measured against its float64 reference."""

import copy
from collections.abc import Callable, Iterable
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from layerlab import UserError
from layerlab.numerics.advice import Choice
from layerlab.numerics.attribution import error, outputs
from layerlab.numerics.casting import REAL, apply_precision
from layerlab.numerics.emulate import Emulation
from layerlab.numerics.format import find
from layerlab.numerics.policy import Policy
from layerlab.numerics.regime import exact, regime

Run = Callable[[nn.Module], Any]
Step = Callable[[str], None]
WIDE = torch.float32
# Highest exponent of float32, which bf16 shares.
REACH = 127


def asked(format: str, budget: float | None = None) -> str:
    """The name of a format, once it and a budget are such that something can be searched for.

    Source: Own.

    Raises:
        UserError: no such format, one in which there is nothing to keep, or a budget that is no
            share.
    """
    if budget is not None and not 0 < budget < 1:
        raise UserError(
            f"budget={budget} is no share of the squared error; type a number between 0 and 1, such"
            " as 0.3"
        )
    if regime(format).low.itemsize >= WIDE.itemsize:
        raise UserError(
            f"a model in {format} is in float32 already: there is nothing to keep; name a"
            " format with fewer digits, such as bf16"
        )
    return find(format).name


class Search:
    """What is left of the squared error of the logits when this or that is kept in float32.

    Args:
        model: a model of transformers.
        run: runs a model it is given and returns logits or an output that has them.
        format: of everything that is not kept.
        step: is told what is tried before each run.

    Raises:
        UserError: in this format there is nothing to keep, or the logits are not finite.
    """

    def __init__(self, model: nn.Module, run: Run, format: str, step: Step) -> None:
        self.model, self.run, self.format, self.step = model, run, asked(format), step
        self.regime = regime(format)
        self.refused: dict[str, str] = {}
        self.runs = 0
        self.mixed = 0
        step("float64 reference")
        self.true = self.logits(Emulation(model, exact(self.regime.low)))
        step("nothing kept")
        self.whole = self._whole()
        self.shares: dict[frozenset[str], float] = {frozenset(): 1.0}
        self.reals: dict[frozenset[str], float] = {}

    def _whole(self) -> float:
        emulation = Emulation(self.model, self.regime, policy=Policy(format=self.format))
        self._check_true()
        found = error(self.logits(emulation), self.true)
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
        """Refuse exact logits to which no error is relative."""
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
        """What helps against logits that overflow."""
        reach = getattr(find(self.format), "highest", None)
        if isinstance(reach, int) and reach < REACH:
            return "name a format with a wider range, such as bf16"
        return "bf16 reaches as far as float32, so look for weights that are too large"

    def logits(self, emulation: Emulation) -> Tensor:
        """One run."""
        self.runs += 1
        return outputs(emulation, lambda: self.run(self.model), ())[-1]

    def left(self, logits: Tensor) -> float:
        """Their squared error over that with nothing kept; infinite where there are no numbers."""
        found = error(logits, self.true) / self.whole
        return found if isfinite(found) else inf

    def share(self, keep: Iterable[str]) -> float:
        """What is left under a policy, emulated.

        Raises:
            UserError: torch would refuse to run the model so.
        """
        names = frozenset(keep)
        if names not in self.shares:
            policy = Policy(format=self.format, keep=tuple(sorted(names)))
            emulation = Emulation(self.model, self.regime, policy=policy)
            seen = self.logits(emulation)
            if len(emulation.refused) > self.mixed:
                place = min(map(str, emulation.refused))
                raise UserError(f"torch refuses to mix dtypes at {place}; keep what is around it")
            self.shares[names] = self.left(seen)
        return self.shares[names]

    def tried(self, name: str, keep: Iterable[str]) -> float | None:
        """The same, or None and a note where it cannot be."""
        self.step(" + ".join(keep))
        try:
            return self.share(keep)
        except (UserError, RuntimeError) as reason:
            self.refused[name] = str(reason).splitlines()[0]
            return None

    def alone(self, name: str) -> Choice | None:
        """What it leaves to keep one thing only."""
        found = self.tried(name, (name,))
        return None if found is None else Choice(keep=name, alone=found)

    def real(self, keep: Iterable[str]) -> float | None:
        """Squared error of a copy in torch's own low dtype; None where torch has none.

        The copy is gone when the next is made.
        """
        names = frozenset(keep)
        if self.format not in REAL:
            return None
        if names not in self.reals:
            self.step("torch's own " + self.format)
            policy = Policy(format=self.format, keep=tuple(sorted(names)))
            low = apply_precision(copy.deepcopy(self.model), policy)
            self.runs += 1
            self.reals[names] = self._error(low)
        return self.reals[names]

    def _error(self, low: nn.Module) -> float:
        """Of a model in a low dtype; infinite where it does not run, or gives no numbers."""
        try:
            with torch.no_grad():
                seen: Any = self.run(low)
        except RuntimeError as reason:
            self.refused["torch's own " + self.format] = str(reason).splitlines()[0]
            return inf
        found = error(seen if isinstance(seen, Tensor) else seen.logits, self.true)
        return found if isfinite(found) else inf

    def real_share(self, keep: Iterable[str]) -> float | None:
        """What is left under a policy in real runs."""
        whole, kept = self.real(()), self.real(keep)
        return None if whole is None or kept is None or whole == inf else kept / whole

    def within(self, keep: Iterable[str], budget: float) -> bool:
        """Whether a budget is kept, emulated and, where torch has the dtype, in real runs."""
        names = frozenset(keep)
        if self.share(names) > budget:
            return False
        real = self.real_share(names)
        return real is None or real <= budget
