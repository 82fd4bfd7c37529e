"""The difference between two runs of one model: what it is made of, and how it is told."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from typing import Any

from layerlab.numerics.profiles.expert_choices import ExpertChoices
from layerlab.numerics.profiles.operations import OPERATIONS
from layerlab.numerics.profiles.profile import NumericsProfile, differences
from layerlab.numerics.profiles.token_differences import TokenDifferences
from layerlab.records.json_values import json_values

# What is worth changing leaves no more than this of the difference.
WORTH = 0.5
SHOWN = 0.005  # smaller shares are added up
ECHO = 0.05
LARGEST = 3
UNLESS = "unless widened"


@dataclass(frozen=True, kw_only=True)
class DifferenceShare:
    """A part of the difference.

    Attributes:
        name: of an operation, a component, or layers.
        share: of the squared difference; shares of all parts add up to the closure. NaN where the
            errors of this part alone leave what the model can compute, as a root below 0.
        rms: of the difference that these results alone make, in nats.
        differs: whether the profiles set it, or an operation of it, differently. Where they do
            not, both round alike, and what is here are roundings that came out otherwise because
            of the others.
    """

    name: str
    share: float
    rms: float
    differs: bool = False


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Difference that is left once b does some things as a does, in a run of its own.

    Attributes:
        operations: what is taken back.
        rms: what is left, in nats.
        mean: of the absolute difference, in nats.
    """

    operations: tuple[str, ...]
    rms: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class JointShare:
    """Two operations whose errors meet: `excess` is their share together less the sum of their own.

    Attributes:
        first: the larger one.
        second: the other.
        excess: of the squared difference.
    """

    first: str
    second: str
    excess: float


@dataclass(frozen=True, kw_only=True)
class RunGap:
    """The difference between two runs of one model.

    Attributes:
        a: the profile of what computes the loss.
        b: the profile of what drew the tokens.
        difference: by token.
        operations: shares by operation, the largest first.
        components: shares by component, the largest first: each has operations of its own, and
            products and weights where they are done.
        layers: shares by layer.
        pairs: the largest operations two by two, where the closure is off.
        remedies: one difference after another taken back, the largest share first.
        alone: each of the largest differences taken back alone.
        choices: of experts, and how many of them change.
        forwards: forward passes, by products.
    """

    a: NumericsProfile
    b: NumericsProfile
    difference: TokenDifferences
    operations: tuple[DifferenceShare, ...] = ()
    components: tuple[DifferenceShare, ...] = ()
    layers: tuple[DifferenceShare, ...] = ()
    pairs: tuple[JointShare, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    alone: tuple[Remedy, ...] = ()
    choices: ExpertChoices = field(default_factory=ExpertChoices)
    forwards: float = 0.0

    @property
    def closure(self) -> float:
        """Return the sum of the shares by operation; 1 where errors are carried on linearly."""
        return _add(self.operations)

    @property
    def component_closure(self) -> float:
        return _add(self.components)

    @property
    def layer_closure(self) -> float:
        return _add(self.layers)

    @property
    def causes(self) -> tuple[DifferenceShare, ...]:
        """Return the shares of what the profiles set differently, the largest first."""
        return tuple(one for one in self.operations if one.differs)

    @property
    def echo(self) -> float:
        """Return the share of roundings that both do, and that came out otherwise."""
        same = [one for one in self.operations if one.name in OPERATIONS and not one.differs]
        return sum(one.share for one in same if isfinite(one.share))

    @property
    def first(self) -> Remedy | None:
        """Return the least that is worth changing: a difference alone, else several together.

        None where both do the same, or nothing short of all of it helps.
        """
        alone = min(self.alone, key=lambda one: one.rms, default=None)
        worth = WORTH * self.difference.rms
        if alone is not None and alone.rms <= worth:
            return alone
        return next((one for one in self.remedies if one.rms <= worth), None)

    def __str__(self) -> str:
        return describe(self)

    def to_dict(self) -> dict[str, Any]:
        """Return what was found, for a JSON file."""
        found = {
            **asdict(self),
            "closure": self.closure,
            "component_closure": self.component_closure,
            "layer_closure": self.layer_closure,
            "echo": self.echo,
            "differences": differences(self.a, self.b),
        }
        return dict(json_values(found))


def _add(parts: Iterable[DifferenceShare]) -> float:
    shares = [one.share for one in parts if isfinite(one.share)]
    return sum(shares) if shares else nan


def describe(found: RunGap) -> str:
    """Return a page of text: the difference by token, where it comes from, what to change."""
    blocks = [_lead(found), _tell_values(found)]
    if found.operations:
        blocks += [_table(found), *_list_places(found), _list_remedies(found)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _lead(found: RunGap) -> list[str]:
    pair = (("a", found.a), ("b", found.b))
    lines = [f"{letter:<6}  {one.name}: {one.summary}" for letter, one in pair]
    return [*lines, f"change  {advise(found)}"]


def advise(found: RunGap) -> str:
    """Return in a sentence what to change first, and what it leaves; keys stand in backticks."""
    if found.a.name != found.b.name and not differences(found.a, found.b):
        return (
            "nothing, since both profiles say the same; real runs of the two may differ all the "
            "same, as by a cache or by another kernel of attention, which no profile says"
        )
    if not found.operations:
        return "nothing, since on these tokens both give the same to the bit"
    first, whole = found.first, f"{found.difference.rms:.2g}"
    if first is None:
        return f"nothing, since no change that was run leaves less than half of RMS {whole} nats"
    if first == found.remedies[-1] and len(first.operations) > 1:
        causes = ", ".join(
            f"`{one.name}` {one.share:.0%}" for one in found.causes[:LARGEST] if isfinite(one.share)
        )
        sentence = (
            f"all {len(first.operations)} that differ, since nothing less that was run halves "
            f"RMS {whole} nats; the largest shares are {causes}"
        )
    else:
        names, left = _join(f"`{one}`" for one in first.operations), f"{first.rms:.2g}"
        shares = {one.name: one.share for one in found.causes}
        share = sum(shares.get(one, 0.0) for one in first.operations)
        sentence = f"set {names} in b as in a: RMS {whole} nats becomes {left}, as a run shows"
        if share >= SHOWN:
            sentence += f"; this makes {share:.0%} of the squared difference"
    if found.echo > ECHO:
        sentence += (
            f"; {found.echo:.0%} are roundings that both do, and that any other difference makes"
            " come out otherwise"
        )
    rerouted = sum(one.share for one in found.operations if one.name not in OPERATIONS)
    if rerouted > ECHO:
        sentence += f"; experts chosen otherwise make {rerouted:.0%} of the squared difference"
    return sentence


def _join(names: Iterable[str]) -> str:
    *most, last = names
    return " and ".join(filter(None, (", ".join(most), last)))


def _tell_values(found: RunGap) -> list[str]:
    values = [*found.difference.values, *found.choices.values]
    width = max(len(one.name) for one in values)
    head = f"{'difference by token':<{width}}  {found.difference.tokens:,} tokens"
    return [head, *(f"{one.name:<{width}}  {one}" for one in values)]


def _table(found: RunGap) -> list[str]:
    visible = [one for one in found.operations if not abs(one.share) < SHOWN]
    rows = [(one, *(tell_settings(found, one) or ("", ""))) for one in visible]
    width = max(len("smaller ones"), *(len(one.name) for one in visible))
    left = max(len(a) for _, a, _ in rows)
    lines = [
        "share of the squared difference, RMS that the operation alone makes, and how a and b do "
        "it where they differ",
        f"{'operation':<{width}}   share  RMS, nats  {'a' if left else '':<{left}}  b",
        *(f"{_row(one, width)}  {a:<{left}}  {b}".rstrip() for one, a, b in rows),
    ]
    rest = sum(one.share for one in found.operations if one not in visible)
    if len(visible) < len(found.operations):
        lines.append(f"{'smaller ones':<{width}}  {rest:6.1%}")
    lines.append(f"{'closure':<{width}}  {found.closure:6.3f}")
    lines += [
        f"{one.first} with {one.second}: {one.excess:+.1%} beyond their sum" for one in found.pairs
    ]
    if any(UNLESS in text for _, *pair in rows for text in pair):
        lines.append(f"{UNLESS}: except where the model's code casts to float32")
    return lines


def tell_settings(found: RunGap, one: DifferenceShare) -> tuple[str, str] | None:
    """Return how a and b round and sum the results of an operation; None where they do alike."""
    if not one.differs:
        return None
    return found.a.tell(one.name), found.b.tell(one.name)


def _row(one: DifferenceShare, width: int) -> str:
    share = f"{round(one.share, 3) + 0.0:.1%}" if isfinite(one.share) else "–"  # and no -0
    return f"{one.name:<{width}}  {share:>6}  {one.rms:9.2g}"


def _list_places(found: RunGap) -> list[list[str]]:
    tables = (
        ("component", found.components, found.component_closure),
        ("layer", found.layers, found.layer_closure),
    )
    width = max(len(one.name) for _, rows, _ in tables for one in rows)
    return [
        [
            f"{name:<{width}}   share  RMS, nats",
            *(_row(one, width) for one in rows),
            f"{'closure':<{width}}  {closure:6.3f}",
        ]
        for name, rows, closure in tables
    ]


def _list_remedies(found: RunGap) -> list[str]:
    rows = [(tell_remedy(found, one), one) for one in list_remedies(found)]
    head = "what is left once b does as a does"
    width = max(len(head), *(len(name) for name, _ in rows))
    return [
        f"{head:<{width}}  RMS, nats  mean, nats",
        *(f"{name:<{width}}  {one.rms:9.2g}  {one.mean:10.2g}" for name, one in rows),
    ]


def list_remedies(found: RunGap) -> list[Remedy]:
    """Return what was taken back, one after another and then alone, each once."""
    return [*found.remedies, *found.alone[1:]]


def tell_remedy(found: RunGap, one: Remedy) -> str:
    """Return what is taken back: the names of a few, or that it is all."""
    count = len(one.operations)
    if count > LARGEST and one == found.remedies[-1]:
        return f"all {count} that differ"
    return ", ".join(one.operations)
