"""Mistakes with logits before they were recorded, each tried on some of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.recorded.recorded_gap import Cause
from layerlab.numerics.recorded.rounding_limits import LEAST, STRAYING
from layerlab.numerics.recorded.slight_mistakes import LogitSlopes, estimate

KEPT = 2**26  # bytes of logits that are kept of a record
COLDEST, HOTTEST = 0.05, 20.0
LOWEST, HIGHEST = 2.0, 1000.0  # caps of logits: models have 15 to 50
PRECISE = 1e-6  # of the logarithm of a temperature; nats that are as good as none
NONE = 1e-3  # what is nearer to a temperature of 1 is none
# Temperatures beside which samplers cut off, and tokens that these are tried on.
WARMTHS = tuple(exp(0.08 * step) for step in range(-15, 9))
TRIED = 64
NUCLEI = (*(step / 100 for step in range(5, 100)), 0.995, 0.999)
# What a sampler cuts off is told only where it leaves so much less than what asks for less.
BETTER = 0.5
BASES = (2, 10)
NEVER = 1e9  # what is left, in nats, where tokens would have been cut off themselves


class LogitSample:
    """Logits of the first run at some of the tokens: as many as memory is set aside for.

    Args:
        tokens: how many there are in all.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._seen = 0
        self._rows: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._places: list[Tensor] = []

    def add(self, targets: Tensor, logits: Sequence[Tensor]) -> None:
        """Keep each so many-th token.

        Args:
            targets: the tokens that were predicted.
            logits: of each run, position x vocabulary.
        """
        rows = logits[0]
        step = max(self._tokens * rows.shape[-1] * rows.element_size() // KEPT, 1)
        places = torch.arange(self._seen, self._seen + len(rows), device=rows.device)
        taken = places % step == 0
        self._seen += len(rows)
        for kept, one in zip(
            (self._rows, self._targets, self._places), (rows, targets, places), strict=True
        ):
            kept.append(one[taken])

    def select(self, recorded: Tensor) -> "RecordedLogits":
        """Return those of which something was recorded.

        Args:
            recorded: of all tokens; NaN where nothing was.
        """
        rows, targets, places = map(torch.cat, (self._rows, self._targets, self._places))
        values = recorded[places]
        mask = ~values.isnan()
        return RecordedLogits(rows[mask].double(), targets[mask], values[mask])


@dataclass(frozen=True)
class RecordedLogits:
    """Logits of some tokens, and what was recorded of them.

    Attributes:
        rows: logits, token x vocabulary.
        targets: the tokens.
        values: their log-probabilities, as recorded.
    """

    rows: Tensor
    targets: Tensor
    values: Tensor

    def score(self, warmth: float = 1.0) -> Tensor:
        """Return the tokens' own log-probabilities at a temperature."""
        return _take(self.rows / warmth, self.targets) - (self.rows / warmth).logsumexp(-1)

    def judge(self, name: str, wrong: Tensor) -> Cause:
        """Measure what a mistake leaves that makes other log-probabilities of the tokens."""
        return self.tell(name, rms(self.values - wrong))

    def tell(self, name: str, left: float) -> Cause:
        """Return a mistake that leaves so much."""
        return Cause(name=name, left=left, whole=rms(self.values - self.score()))


def try_logits(sample: RecordedLogits) -> list[Cause]:
    """Try what engines do to logits or log-probabilities.

    Args:
        sample: logits in float32, and what was recorded.
    """
    if not len(sample.values):
        return []
    warm = try_temperature(sample)
    best = sample.rows.amax(-1) - sample.rows.logsumexp(-1)
    found = [warm, try_cap(sample), sample.judge("that of the most probable token each time", best)]
    for base in BASES:
        scaled = sample.score() / log(base)
        found.append(sample.judge(f"logarithms to the base of {base}", scaled))
    for measure, word in ((measure_best, "top-k"), (measure_nuclei, "top-p")):
        cut = try_cut(sample, measure, word)
        found += [cut] if cut.left < BETTER * warm.left else []
    return found


def try_temperature(sample: RecordedLogits) -> Cause:
    """Fit the temperature that logits were divided by.

    T = argmin sum (recorded - log softmax(logits / T))^2

    Source: Own.
    """

    def measure(power: float) -> float:
        return rms(sample.values - sample.score(exp(power)))

    best = _minimize(measure, log(COLDEST), log(HOTTEST))
    warmth = exp(best)
    own = f"{warmth:.4g}"
    if len(sample.values) >= LEAST:
        strays = _find_interval(sample, warmth)
        own += f" ({warmth / (1 + strays):.4g} to {warmth / max(1 - strays, PRECISE):.4g})"
    return sample.tell(f"temperature {own} applied", measure(best))


def try_cap(sample: RecordedLogits) -> Cause:
    """Fit the cap that logits were drawn below, as some models have it.

    c = argmin sum (recorded - log softmax(c tanh(logits / c)))^2

    Source: Own.
    """

    def measure(power: float) -> float:
        rows = exp(power) * (sample.rows / exp(power)).tanh()
        return rms(sample.values - replace(sample, rows=rows).score())

    best = _minimize(measure, log(LOWEST), log(HIGHEST))
    return sample.tell(f"logits capped at {exp(best):.3g}", measure(best))


def find_cap(sample: RecordedLogits, warmth: float) -> Cause | None:
    """Return a cap that surely leaves less than a temperature: both draw large logits together.

    n ln(left_T^2 / left_c^2) > STRAYING^2, as the likelihoods of normal errors have it.

    Source: Own.
    """
    cap = try_cap(sample)
    warm, left = rms(sample.values - sample.score(warmth)), max(cap.left, PRECISE)
    surely = len(sample.values) * 2 * log(max(warm, PRECISE) / left) > STRAYING**2
    return replace(cap, sure=True) if surely else None


def _find_interval(sample: RecordedLogits, warmth: float) -> float:
    """Return how far one over a temperature strays, as a part of it."""
    slopes = LogitSlopes()
    slopes.add(sample.targets, [sample.rows / warmth])
    slope, _ = slopes.select(torch.ones_like(sample.targets, dtype=torch.bool))
    return estimate(sample.values - sample.score(warmth), slope)[1]


# Gives each cut that is tried with what it leaves.
MeasureCuts = Callable[["SortedLogits"], tuple[Sequence[float], Tensor]]


@dataclass(frozen=True)
class SortedLogits:
    """Log-probabilities of some tokens at a temperature, the largest first.

    Attributes:
        summed: logarithm of the sum of the largest so many probabilities, token x vocabulary.
        ranks: places of the tokens, from 0.
        error: of what was recorded, were nothing cut off.
    """

    summed: Tensor
    ranks: Tensor
    error: Tensor


def try_cut(sample: RecordedLogits, measure: MeasureCuts, word: str) -> Cause:
    """Fit what a sampler cuts off before it makes probabilities of the rest, and a temperature.

    Args:
        measure: gives what each cut leaves.
        word: what such a cut is called.
    """
    few = RecordedLogits(sample.rows[:TRIED], sample.targets[:TRIED], sample.values[:TRIED])

    def leave(power: float) -> float:
        return min(float(measure(_sort(few, exp(power)))[1].min()), NEVER)

    powers = [log(one) for one in WARMTHS]
    near = min(powers, key=leave)
    width = powers[1] - powers[0]
    warmth = exp(_minimize(leave, near - width, near + width))
    if abs(log(warmth)) < NONE or leave(0.0) <= leave(log(warmth)):
        warmth = 1.0
    cuts, left = measure(_sort(sample, warmth))
    at = int(left.argmin())
    heat = "" if warmth == 1 else f"temperature {warmth:.4g} and "
    return sample.tell(f"{heat}{word} {cuts[at]:g} applied", float(left[at]))


def measure_best(sorted: SortedLogits) -> tuple[Sequence[float], Tensor]:
    """Return what is left if only the k most probable tokens are kept, for each k.

    recorded_t = l_t - log(p_(1) + ... + p_(k))
    """
    left = (sorted.error[:, None] + sorted.summed).square().mean(0).sqrt()
    left[: int(sorted.ranks.max())] = inf  # these would have been cut off themselves
    return range(1, len(left) + 1), left


def measure_nuclei(sorted: SortedLogits) -> tuple[Sequence[float], Tensor]:
    """Return what is left if the most probable tokens are kept that make up p, for some p."""
    found = []
    for share in NUCLEI:
        last = (sorted.summed < log(share)).sum(-1, keepdim=True)
        last = last.clamp(max=sorted.summed.shape[-1] - 1)
        kept = sorted.summed.gather(-1, last)[:, 0]
        outside = bool((sorted.ranks > last[:, 0]).any())
        found.append(inf if outside else rms(sorted.error + kept))
    return NUCLEI, torch.tensor(found)


def _sort(sample: RecordedLogits, warmth: float) -> SortedLogits:
    scaled = (sample.rows / warmth).log_softmax(-1)
    own = _take(scaled, sample.targets)
    return SortedLogits(
        summed=scaled.sort(-1, descending=True).values.exp().cumsum(-1).log(),
        ranks=(scaled > own[:, None]).sum(-1),
        error=sample.values - own,
    )


def _take(rows: Tensor, targets: Tensor) -> Tensor:
    return rows.gather(-1, targets[:, None])[:, 0]


def _minimize(measure: Callable[[float], float], low: float, high: float) -> float:
    found = minimize_scalar(
        measure, bounds=(low, high), method="bounded", options={"xatol": PRECISE}
    )
    return float(found.x)
