"""Explanation of recorded log-probabilities: the arithmetic that they fit, or a mistake."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil, inf
from typing import Any

from layerlab.numerics.profiles.profile import NumericsProfile
from layerlab.numerics.profiles.token_differences import TokenDifferences
from layerlab.numerics.recorded.rounding_limits import LEAST
from layerlab.records.json_values import json_values

# Smaller shares of a difference are chance.
SEEN = 0.05
# A mistake explains a record if it leaves half of the difference or less, and no more than rounding
# makes; or a tenth, and no more than twice as much, as where a model reads other positions, its
# rounding is larger as well.
HALF, CLEAR = 0.5, 0.1
NEAR = 2.0
# What lies further from a record than this, as a share, is told by no number.
BEYOND = -10.0
SHOWN = 5  # candidates and causes in a text


@dataclass(frozen=True, kw_only=True)
class ProfileFit:
    """A profile beside the record.

    Attributes:
        name: of the profile.
        emulated: share of the recorded difference from a float32 run that the emulation explains;
            below 0 where the record lies further from it than from the float32 run.
        rms: of the emulation's own difference from the float32 run, in nats: its error's size.
        real: share that a run by torch itself explains; None where there was none.
        missing: why there was none.
    """

    name: str
    emulated: float
    rms: float
    real: float | None = None
    missing: str = ""

    @property
    def share(self) -> float:
        """Return the larger share of the two."""
        return self.emulated if self.real is None else max(self.emulated, self.real)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A mistake that was tried.

    Attributes:
        name: what was done otherwise.
        left: RMS of what it leaves of the recorded difference, in nats.
        whole: RMS of that difference on the same tokens, as some mistakes leave a few out; from
            the profile that comes nearest where it is sure.
        sure: whether it is told by the digits of all tokens, however small or large it is.
        is_quantized: whether it is a format of fewer digits, which an engine may be asked for.
    """

    name: str
    left: float
    whole: float
    sure: bool = False
    is_quantized: bool = False

    @property
    def part(self) -> float:
        """Return the part of the difference that it leaves."""
        return self.left / self.whole if self.whole else inf


@dataclass(frozen=True, kw_only=True)
class TemperatureFit:
    """The temperature near 1 that fits a record best, beside the profile that comes nearest.

    Attributes:
        value: of the logits; 1 is none.
        low: lower end of its interval.
        high: upper end.
        left: RMS of what it leaves, in nats.
        bias: mean of what it leaves.
        whole: RMS without it.
    """

    value: float
    low: float
    high: float
    left: float
    bias: float
    whole: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    @property
    def is_applied(self) -> bool:
        """Return whether the interval is apart from 1."""
        return self.high < 1 or self.low > 1

    @property
    def is_typed(self) -> bool:
        """Return whether a number of two decimals lies in the interval, as a user types one."""
        return ceil(100 * self.low) <= 100 * self.high


@dataclass(frozen=True, kw_only=True)
class RecordedToken:
    """A token whose log-probability no rounding makes, where that of nearly all others is.

    Attributes:
        text: its number, from 1.
        place: of the token in it, from 0.
        token: its id.
        error: what was recorded less what float32 makes, in nats.
    """

    text: int
    place: int
    token: int
    error: float

    def __str__(self) -> str:
        return f"token {self.place} of text {self.text} differs by {self.error:+.2g} nats"


@dataclass(frozen=True, kw_only=True)
class RecordedGap:
    """A record beside runs of the same model.

    Attributes:
        a: the profile of what computes the loss.
        difference: by token, log-probabilities of a less those recorded.
        rms: of the recorded difference from a float32 run, in nats, outliers left out.
        bias: its mean, in nats.
        candidates: profiles, the one that explains most first.
        floor: RMS of what float32 makes, and the digits of the record: none smaller is seen.
        most_rms: the largest RMS that is put down to rounding.
        most_bias: the largest mean that is.
        is_beyond: whether the record lies beyond both what rounding allows and what fits.
        excess: share of the squared recorded difference that no rounding explains, by its digits
            or its size; 0 without a bug.
        fits: whether the first of the candidates can have made the record.
        causes: mistakes and quantized formats that were tried, the one that leaves least first;
            none where rounding explains all.
        temperature: near 1, that fits best; None where it leaves more than rounding makes, where
            a run here is what was recorded, and of a few tokens.
        outliers: tokens that are far out, if without these few the others are as they should be.
        left_out: texts behind those that were read.
        forwards: forward passes, by products.
    """

    a: NumericsProfile
    difference: TokenDifferences
    rms: float
    bias: float
    candidates: tuple[ProfileFit, ...]
    floor: float
    most_rms: float
    most_bias: float
    is_beyond: bool
    excess: float = 0.0
    fits: bool = True
    causes: tuple[Cause, ...] = ()
    temperature: TemperatureFit | None = None
    outliers: tuple[RecordedToken, ...] = ()
    left_out: int = 0
    forwards: float = 0.0

    @property
    def best(self) -> tuple[ProfileFit, ...]:
        """Return the profiles that explain most: one, or several that round alike."""
        most = self.candidates[0].share
        return tuple(one for one in self.candidates if one.share == most)

    @property
    def rest(self) -> float:
        """Return the share of the recorded difference that the best profile leaves."""
        return 1 - self.candidates[0].share

    @property
    def is_bug(self) -> bool:
        """Return whether something else than rounding or quantization is in the record."""
        if self.cause is not None and self.cause.is_quantized:
            return bool(self.outliers)
        return self.is_beyond or self.cause is not None or bool(self.outliers)

    @property
    def cause(self) -> Cause | None:
        """Return the mistake that explains the record, if one does."""
        for one in self.causes[:1]:
            if one.sure:
                return one
            near = NEAR if one.part <= CLEAR else 1.0
            if one.part <= HALF and one.left <= near * self.most_rms:
                return one
        return None

    def __str__(self) -> str:
        return summary(self)

    def to_dict(self) -> dict[str, Any]:
        """Return what was found, for a JSON file."""
        found = {
            **asdict(self),
            "is_bug": self.is_bug,
            "best": [one.name for one in self.best],
            "unexplained": self.rest,
            "cause": None if self.cause is None else self.cause.name,
        }
        return dict(json_values(found))


def summary(found: RecordedGap) -> str:
    """Return a page of text: the verdict, the difference, and what was held against it."""
    blocks = [[_judge(found)], _tell(found), _list_candidates(found)]
    if found.causes:
        blocks.append(_list_causes(found.causes))
    return "\n\n".join("\n".join(block) for block in blocks)


def _judge(found: RecordedGap) -> str:
    if not found.outliers:
        return _judge_others(found)
    count, first = len(found.outliers), found.outliers[0]
    rest = "without it" if count == 1 else "without these"
    return (
        f"a bug, not rounding, at {count} of {found.difference.tokens:,} tokens: {first}; {rest} "
        f"{_judge_others(found)}"
    )


def _judge_others(found: RecordedGap) -> str:
    cause = found.cause
    if cause is not None and cause.sure:
        kind = "quantization, no bug" if cause.is_quantized else "a bug, not rounding"
        return f"{kind}: {cause.name}, which leaves {cause.left:.3g} of {cause.whole:.3g} nats"
    if not found.is_beyond:
        best, share = found.best, found.candidates[0].share
        names = " or ".join(one.name for one in best)
        if not found.fits:
            made = max(best[0].rms, found.floor)
            digits = "fewer" if found.rms > made else "more"
            return (
                f"rounding, by its size, but not that of {names}, which makes {made:.2g} nats, and "
                f"{found.rms:.2g} were recorded: that of a format of {digits} digits"
            )
        if found.difference.tokens < LEAST:
            return (
                f"rounding, by its size; {found.difference.tokens:,} tokens are too few to tell "
                f"whose ({LEAST} are needed)"
            )
        if share <= SEEN:
            return f"rounding, by its size; no profile fits by its digits, {names} comes nearest"
        return f"rounding: {names} explains {share:.0%} of what was recorded"
    beyond = f"{found.rms:.2g} nats, and rounding makes at most {found.most_rms:.2g}"
    if abs(found.bias) > found.most_bias and found.rms <= found.most_rms:
        beyond = f"a mean of {found.bias:+.2g} nats, and rounding makes {found.most_bias:.2g}"
    if cause is not None:
        return f"a bug, not rounding: {beyond}; {cause.name} leaves {cause.left:.2g}"
    near = [one for one in found.causes[:1] if one.part <= HALF]
    tried = "".join(f"; {one.name} leaves {one.left:.2g}, and comes nearest" for one in near)
    return (
        f"a bug, not rounding: {beyond}{tried}; none that was tried explains it: another "
        "checkpoint, adapter, template, sampling penalty, quantization or scaling of rotations?"
    )


def _tell(found: RecordedGap) -> list[str]:
    gap, best = found.difference, found.best[0].name
    left = min(max(found.rest, 0.0), 1.0)
    return [
        f"a                   {found.a.name}, emulated",
        f"tokens              {gap.tokens:,}{_tell_left_out(found.left_out)}",
        f"recorded - float32  RMS {found.rms:.2g}, mean {found.bias:+.2g} nats",
        f"a - recorded        RMS {gap.rms:.2g}, mean of the size {gap.mean:.2g} nats, largest "
        f"{gap.largest:.2g}",
        f"ratio               mean {gap.ratio_mean:.4g}; {gap.clipped:.2%} of the tokens clipped",
        f"what is left        {left:.1%} of the squared difference from float32, by the digits of "
        f"{best}: RMS {left**0.5 * found.rms:.2g} nats",
        f"no rounding         explains {found.excess:.1%} of it",
        *([f"temperature         {found.temperature}"] if found.temperature else []),
        *(f"far out             {one}" for one in found.outliers[:SHOWN]),
    ]


def _tell_left_out(texts: int) -> str:
    return f", of the first texts; {texts:,} more were not read" if texts else ""


def _tell_share(share: float) -> str:
    return f"{share:8.1%}" if share >= BEYOND else f"{'–':>8}"


def _list_candidates(found: RecordedGap) -> list[str]:
    lines = [f"{'profile':<18}  error, nats  emulated  by torch"]
    for one in found.candidates:
        real = one.missing if one.real is None else _tell_share(one.real)
        row = f"{one.name:<18}  {one.rms:11.2g}  {_tell_share(one.emulated)}  {real}"
        lines.append(row.rstrip())
    return [*lines, f"{'recorded':<18}  {found.rms:11.2g}"]


def _list_causes(causes: Iterable[Cause]) -> list[str]:
    first = list(causes)[:SHOWN]
    return [
        "leaves, nats       of  tried",
        *(f"{one.left:12.2g}  {one.whole:7.2g}  {one.name}" for one in first),
    ]
