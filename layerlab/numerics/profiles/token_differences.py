"""Differences of the log-probabilities of two runs of one model, by token."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Ratios further from 1 than this are clipped.
CLIP = 0.2
QUANTILES = (0.01, 0.5, 0.99)
ROWS = 64  # positions whose distributions are compared at once
NATS, RATIO, SHARE = "nats", "ratio", "share of the {what}"


class NamedValue(NamedTuple):
    """A number as a reader meets it.

    Attributes:
        unit: "nats", "ratio", or of what it is a share.
    """

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        """Return the value with its unit.

        Example:
            >>> str(NamedValue("mean", 0.1234, NATS)), str(NamedValue("ratio", 1, RATIO))
            ('0.12 nats', '1.0000')
            >>> str(NamedValue("clipped", 0.5, "share of the tokens"))
            '50.00% of the tokens'
        """
        if self.unit == NATS:
            return f"{self.value:.2g} {NATS}"
        if self.unit == RATIO:
            return f"{self.value:.4f}"
        return f"{self.value:.2%} {self.unit.removeprefix('share ')}"


@dataclass(frozen=True, kw_only=True)
class TokenDifferences:
    """The difference of the log-probabilities of tokens, that of a less that of b.

    Attributes:
        tokens: how many were read.
        mean: of the absolute difference, in nats.
        bias: mean of the difference itself, in nats.
        rms: root of the mean square, in nats.
        largest: the largest absolute difference, in nats.
        ratio_mean: mean of the importance ratio exp(log p_a - log p_b).
        ratio_quantiles: its quantiles at `QUANTILES`.
        clipped: share of tokens with a ratio outside 1 - `CLIP` to 1 + `CLIP`.
        argmax_changed: share of positions whose most probable token is another; None where only
            the tokens' own log-probabilities are known.
        kl_ab: mean of KL(a || b) over positions, in nats; None as well.
        kl_ba: mean of KL(b || a), in nats; None as well.
    """

    tokens: int
    mean: float
    bias: float
    rms: float
    largest: float
    ratio_mean: float
    ratio_quantiles: tuple[float, ...]
    clipped: float
    argmax_changed: float | None = None
    kl_ab: float | None = None
    kl_ba: float | None = None

    @property
    def values(self) -> list[NamedValue]:
        """Return each number with its name and its unit, as texts and tables give them."""
        low, middle, high = self.ratio_quantiles
        below, above = (f"{one:.0%}" for one in QUANTILES[::2])
        tokens = SHARE.format(what="tokens")
        found = [
            NamedValue("mean of |log p_a - log p_b|", self.mean, NATS),
            NamedValue("root mean square (RMS)", self.rms, NATS),
            NamedValue("largest |log p_a - log p_b|", self.largest, NATS),
            NamedValue("mean with its sign, log p_a - log p_b", self.bias, NATS),
            NamedValue("importance ratio p_a / p_b, mean", self.ratio_mean, RATIO),
            NamedValue(f"importance ratio, {below} quantile", low, RATIO),
            NamedValue("importance ratio, median", middle, RATIO),
            NamedValue(f"importance ratio, {above} quantile", high, RATIO),
            NamedValue(f"clipped: importance ratio outside 1 ± {CLIP}", self.clipped, tokens),
        ]
        distributions = (
            ("most probable token (argmax) changed", self.argmax_changed, tokens),
            ("KL divergence (a || b), mean", self.kl_ab, NATS),
            ("KL divergence (b || a), mean", self.kl_ba, NATS),
        )
        return found + [
            NamedValue(name, value, unit)
            for name, value, unit in distributions
            if value is not None
        ]


def compare_tokens(a: Tensor, b: Tensor, **distributions: Any) -> TokenDifferences:
    """Compare the log-probabilities of the same tokens.

    Args:
        a: of what computes the loss, as a trainer, in nats.
        b: of what drew the tokens, as an engine, in nats.
        distributions: the mean of `DistributionDifferences`.

    Example:
        >>> found = compare_tokens(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -2.5]))
        >>> found.mean, found.clipped
        (0.25, 0.5)
    """
    difference = a.double() - b.double()
    ratio = difference.exp()
    points = torch.tensor(QUANTILES, dtype=torch.float64)
    return TokenDifferences(
        tokens=len(difference),
        mean=float(difference.abs().mean()),
        bias=float(difference.mean()),
        rms=rms(difference),
        largest=float(difference.abs().max()),
        ratio_mean=float(ratio.mean()),
        ratio_quantiles=tuple(torch.quantile(ratio.cpu(), points).tolist()),
        clipped=float(((ratio - 1).abs() > CLIP).double().mean()),
        **distributions,
    )


def rms(values: Tensor) -> float:
    """Return the root of the mean square.

    Unit: that of the values.
    """
    return float(values.double().square().mean().sqrt())


class DistributionDifferences:
    """Differences of whole distributions, added up: changed argmax, KL divergence both ways.

    Example:
        >>> found = DistributionDifferences()
        >>> found.add(torch.tensor([1]), torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]]))
        >>> found.mean["argmax_changed"], round(found.mean["kl_ab"], 4)
        (1.0, 0.4621)
    """

    def __init__(self) -> None:
        self._count = self._changed = self._forth = self._back = 0.0

    def add(self, targets: Tensor, logits: Iterable[Tensor]) -> None:
        """Compare the distributions behind the logits of two runs.

        Args:
            targets: the tokens that were predicted; distributions ask for none of them.
            logits: position x vocabulary, under each arithmetic.
        """
        for p, q in zip(*(one.split(ROWS) for one in logits), strict=True):
            p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
            self._changed += float((p.argmax(-1) != q.argmax(-1)).sum())
            self._forth += _diverge(p, q)
            self._back += _diverge(q, p)
            self._count += len(p)

    @property
    def mean(self) -> dict[str, float]:
        """Return what `compare_tokens` takes, per position."""
        sums = {"argmax_changed": self._changed, "kl_ab": self._forth, "kl_ba": self._back}
        return {name: value / self._count for name, value in sums.items()}


def _diverge(p: Tensor, q: Tensor) -> float:
    """Return the sum of KL(p || q) over positions; what has no probability counts for nothing."""
    return float(torch.where(p == -torch.inf, 0.0, p.exp() * (p - q)).sum())
