"""The difference between two runs of one model: what it is made of, and how it is told."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from typing import Any

from layerlab.numerics.profiles.expert_choices import ExpertChoices
from layerlab.numerics.profiles.operations import OPERATIONS
from layerlab.numerics.profiles.profile import NumericsProfile, differences
from layerlab.numerics.profiles.token_differences import CLIP, QUANTILES, TokenDifferences
from layerlab.records.json_values import json_values

# What is worth changing leaves no more than this of the difference.
WORTH = 0.5
SHOWN = 0.005  # smaller shares are added up
ECHO = 0.05
LARGEST = 3


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
    """What is left of the difference once b does some things as a does, in a run of its own.

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

    def to_json(self) -> dict[str, Any]:
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
    known = [one.share for one in parts if isfinite(one.share)]
    return sum(known) if known else nan


def describe(found: RunGap) -> str:
    """Return a page of text: the difference by token, where it comes from, what to change."""
    blocks = [_lead(found), _tell_difference(found.difference, found.choices)]
    if found.operations:
        blocks += [_table(found), *_list_places(found), _list_remedies(found)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _lead(found: RunGap) -> list[str]:
    pair = (("a", found.a), ("b", found.b))
    lines = [f"{letter:<6}  {one.name}: {one.summary}" for letter, one in pair]
    return [*lines, f"change  {advise(found)}"]


def advise(found: RunGap) -> str:
    """Return in a sentence what to change first, and what it leaves."""
    if not found.operations:
        return "nothing: on these tokens both give the same to the bit"
    first, whole = found.first, f"{found.difference.rms:.2g} nats"
    if first is None:
        return f"nothing that differs leaves less than half of {whole}"
    if len(first.operations) == 1:
        return f"{first.operations[0]}: as in a it turns {whole} into {first.rms:.2g}, in a run"
    causes = ", ".join(f"{one.name} {one.share:.0%}" for one in found.causes[:LARGEST])
    if first == found.remedies[-1]:
        said = f"no change but all {len(first.operations)} together halves {whole} ({causes})"
    else:
        said = (
            f"{_join(first.operations)}: as in a they turn {whole} into {first.rms:.2g}, in a run"
        )
    if found.echo > ECHO:
        said += (
            f"; {found.echo:.0%} are roundings that both do, and that any other difference makes"
            " come out otherwise"
        )
    return said


def _join(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _tell_difference(found: TokenDifferences, choices: ExpertChoices) -> list[str]:
    low, middle, high = found.ratio_quantiles
    rows = [
        ("tokens", f"{found.tokens:,}"),
        ("|log p_a - log p_b|", f"mean {found.mean:.2g}, RMS {found.rms:.2g} nats"),
        ("", f"largest {found.largest:.2g}; with its sign the mean is {found.bias:+.2g}"),
        ("ratio p_a / p_b", f"mean {found.ratio_mean:.4f}, median {middle:.4f}"),
        ("", f"{QUANTILES[0]:.0%} below {low:.4f}, {1 - QUANTILES[2]:.0%} above {high:.4f}"),
        ("clipped", f"{found.clipped:.2%} of the tokens, outside 1 ± {CLIP:g}"),
    ]
    if found.argmax_changed is not None:
        rows.append(("most probable token", f"another at {found.argmax_changed:.2%}"))
        rows.append(("KL divergence", f"(a, b) {found.kl_ab:.2g}, (b, a) {found.kl_ba:.2g} nats"))
    if choices.total:
        share, expected = choices.changed / choices.total, choices.expected / choices.total
        rows.append(("experts", f"others at {share:.2%} of {choices.total:,} choices"))
        rows.append(("", f"{expected:.2%} foretold by the margins of the router"))
    return [f"{name:<19}  {text}" for name, text in rows]


def _table(found: RunGap) -> list[str]:
    lines = [f"{'operation':<24}  share  alone, nats  in the profiles"]
    shown = [one for one in found.operations if not abs(one.share) < SHOWN]
    pair = (("a", found.a), ("b", found.b))
    for one in shown:
        told = [f"{profile.tell(one.name)} in {letter}" for letter, profile in pair]
        lines.append(f"{_row(one)}  {', '.join(told) if one.differs else ''}".rstrip())
    rest = sum(one.share for one in found.operations if one not in shown)
    if len(shown) < len(found.operations):
        lines.append(f"{'smaller ones':<24}  {rest:5.1%}")
    lines.append(f"{'closure':<24}  {found.closure:5.3f}")
    return lines + [
        f"{one.first} with {one.second}: {one.excess:+.1%} beyond their sum" for one in found.pairs
    ]


def _row(one: DifferenceShare) -> str:
    return f"{one.name:<24}  {one.share:5.1%}  {one.rms:11.2g}"


def _list_places(found: RunGap) -> list[list[str]]:
    tables = (
        ("component", found.components, found.component_closure),
        ("layer", found.layers, found.layer_closure),
    )
    return [
        [
            f"{name:<24}  share  alone, nats",
            *map(_row, rows),
            f"{'closure':<24}  {closure:5.3f}",
        ]
        for name, rows, closure in tables
    ]


def _list_remedies(found: RunGap) -> list[str]:
    lines = ["set as in a                       RMS left  mean left, nats"]
    for place, (one, added) in enumerate(list_steps(found.remedies)):
        told = _join(added) if len(added) < LARGEST else f"{len(added)} more"
        lines.append(_tell_remedy(f"and {told}" if place else told, one))
    return lines + [_tell_remedy(f"{one.operations[0]} alone", one) for one in found.alone[1:]]


def list_steps(remedies: Iterable[Remedy]) -> list[tuple[Remedy, tuple[str, ...]]]:
    """Return each with what it takes back beside what the one before does."""
    found, before = [], 0
    for one in remedies:
        found.append((one, one.operations[before:]))
        before = len(one.operations)
    return found


def _tell_remedy(name: str, one: Remedy) -> str:
    return f"{name:<32}  {one.rms:8.2g}  {one.mean:9.2g}"
