"""Advice on precision, its evidence, and its page of text."""

import html
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.numerics.emulation.policies.apply import REAL
from layerlab.numerics.emulation.policies.policy import Policy
from layerlab.records.json_values import json_values

if TYPE_CHECKING:
    import pandas as pd

HALF = 0.5
TOO_MUCH = "keeps more than half of the model in float32: use float32, or a larger --budget"
HOLDS, FAILS, OPEN = "holds", "fails", "not decided"


@dataclass(frozen=True, kw_only=True)
class KeepOption:
    """One thing that could stay in float32.

    Attributes:
        keep: as a policy names it.
        alone: share of the squared error that is left when it alone is kept; infinite: no numbers.
        left: share that is left when it and all chosen before it are kept; None: not chosen;
            infinite: no numbers.
    """

    keep: str
    alone: float
    left: float | None = None


@dataclass(frozen=True, kw_only=True)
class Price:
    """The cost of a policy beside the low format alone.

    Attributes:
        flops: of the matrix products of the runs that are done in float32.
        all_flops: of all of them.
        bytes: that the parameters are larger by.
        all_bytes: of the parameters with nothing kept.
        numbers: of the parameters that stay in float32.
        all_numbers: of all parameters.
    """

    flops: int
    all_flops: int
    bytes: int
    all_bytes: int
    numbers: int
    all_numbers: int

    @property
    def work(self) -> float:
        """Return the share of the operations in matrix products that are done in float32."""
        return self.flops / max(self.all_flops, 1)

    @property
    def share(self) -> float:
        """Return the share of the parameters that stay in float32."""
        return self.numbers / max(self.all_numbers, 1)

    @property
    def most(self) -> bool:
        """Return whether more than half of the operations or of the parameters are in float32."""
        return max(self.work, self.share) > HALF

    @property
    def growth(self) -> float:
        """Return by what share the bytes of the parameters grow."""
        return self.bytes / max(self.all_bytes, 1)


@dataclass(frozen=True, kw_only=True)
class AdviceCheck:
    """A piece of advice from a source, and what became of it on this model.

    Attributes:
        advice: what the source says.
        source: where it says so.
        verdict: "holds", "fails" or "not decided".
        reason: the numbers that say so.
        left: share of the squared error that is left when it is followed; None: it cannot be.
    """

    advice: str
    source: str
    verdict: str
    reason: str
    left: float | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Advice:
    """Advice on what to keep in float32, with its gain and its cost; `str` of it is a page of text.

    Attributes:
        policy: to be saved and applied.
        budget: share of the squared error of the logits that may be left.
        choices: what was tried, the most useful first.
        error: squared error of the logits, relative, with nothing kept.
        left: share of it that is left under the policy, emulated.
        autocast: share that torch.autocast leaves, which is no policy: parameters and residual
            stream are float32; None where it does not know the format.
        real: the same share in real runs of a copy in the low dtype; None where there is none.
        real_error: squared error of the real run with nothing kept.
        cost: in operations and bytes.
        counsels: what the source advises, tried.
        refused: what could not be kept apart, and why.
        runs: how often the model was run.
        tokens: how many the shares are found from.
        deviation: standard error of `left` over the text.
    """

    policy: Policy
    budget: float
    choices: tuple[KeepOption, ...]
    error: float
    left: float
    autocast: float | None
    real: float | None
    real_error: float | None
    cost: Price
    counsels: tuple[AdviceCheck, ...]
    refused: dict[str, str]
    runs: int
    tokens: int
    deviation: float

    @property
    def reached(self) -> bool:
        """Return whether the budget is kept, in the real run as well if there is one."""
        return max(self.left, self.real or 0.0) <= self.budget

    @property
    def shortfall(self) -> str:
        """Return a sentence on what is left beyond the budget; empty if the budget is reached."""
        if self.reached:
            return ""
        return (
            f"the budget of {self.budget:g} is not reached: the policy that was found leaves"
            f" {max(self.left, self.real or 0.0):.3f} of the squared error, and one that keeps"
            " everything does not reach it either; give a larger budget, or run in float32"
        )

    def frame(self) -> "pd.DataFrame":
        """Return the trials: one row each, NaN in `left` for what was not chosen."""
        import pandas as pd

        rows = [
            {"keep": one.keep, "alone": one.alone, "left": one.left, "chosen": one.left is not None}
            for one in self.choices
        ]
        return pd.DataFrame(rows, columns=["keep", "alone", "left", "chosen"]).astype(
            {"alone": float, "left": float, "chosen": bool}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as strict JSON values, with None for infinite numbers."""
        found = asdict(self)
        shares = {"work": self.cost.work, "share": self.cost.share, "growth": self.cost.growth}
        found |= {"cost": {**found["cost"], **shares}, "reached": self.reached}
        return dict(json_values(found, infinities=False))

    def summary(self, path: Path | None = None) -> str:
        """Return a page of text: the trials, the outcome, and the advice of the source.

        Args:
            path: where the policy was written.
        """
        blocks = (self._table(), self._verify(path), self._advise())
        return "\n\n".join("\n".join(block) for block in blocks)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        kept = ", ".join(self.policy.keep) or "nothing"
        return f"Advice({self.policy.format}: keep {kept}; {self.left:.3f} of the error is left)"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _table(self) -> list[str]:
        width = max([len("place, in float32"), *(len(one.keep) for one in self.choices)])
        lines = [f"{'place, in float32':<{width}}  alone leaves  together leave"]
        order = {name: index for index, name in enumerate(self.policy.keep)}
        # In the order of the policy, in which what is left together was found.
        for one in sorted(self.choices, key=lambda one: order.get(one.keep, len(order))):
            left = "" if one.left is None else f"{one.left:14.3f}"
            lines.append(f"{one.keep:<{width}}  {one.alone:12.3f}  {left}".rstrip())
        return lines + [f"{name:<{width}}  refused: {why}" for name, why in self.refused.items()]

    def _verify(self, path: Path | None) -> list[str]:
        keep, cost = self.policy.keep, self.cost
        names = ", ".join(keep) if keep else "nothing helps"
        seen = "" if self.real is None else f", {self.real:.3f} in a real run"
        policy = "advice.policy" if path is None else f"layerlab.load_policy({str(path)!r})"
        use = f"layerlab.apply_precision(model, {policy})"
        if self.policy.format not in REAL:
            use = f'with layerlab.emulate(model, "{self.policy.format}", policy={policy}): ...'
        verdict = "within" if self.reached else "beyond"
        left = f"{self.left:.3f} ± {self.deviation:.3f}"
        rows = [
            ("keep", names),
            ("format", f"{self.policy.format}, squared error {self.error:.2e} with nothing kept"),
            ("left", f"{left} of it{seen}: {verdict} the budget of {self.budget:g}"),
            *self._beside(),
            ("tokens", f"{self.tokens:,}, which the shares are found from"),
            ("FLOPs", f"{cost.work:.1%} of {cost.all_flops:.3g} in products are in float32"),
            ("bytes", f"parameters grow by {cost.bytes:,}, {cost.growth:.1%}"),
            ("apply", use),
        ]
        if cost.most:
            rows.append(("beware", TOO_MUCH))
        if self.shortfall:
            rows.append(("beyond", self.shortfall))
        return [f"{name:<6}  {text}" for name, text in rows]

    def _beside(self) -> list[tuple[str, str]]:
        if self.autocast is None:
            return []
        which = "torch.autocast, whose parameters and residual stream are float32"
        return [("beside", f"{which}, leaves {self.autocast:.3f} of it")]

    def _advise(self) -> list[str]:
        return [
            f"{one.source} advises {one.advice}: {one.verdict}; {one.reason}"
            for one in self.counsels
        ]
