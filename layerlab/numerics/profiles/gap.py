"""Attribution of the gap between two runs' log-probabilities to operations."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor, nn

from layerlab.numerics.profiles.classify import OperationResult, count_layers
from layerlab.numerics.profiles.gap_result import DifferenceShare, JointShare, Remedy, RunGap
from layerlab.numerics.profiles.lanes import Lane
from layerlab.numerics.profiles.operations import OPERATIONS
from layerlab.numerics.profiles.profile import NumericsProfile, differences
from layerlab.numerics.profiles.token_differences import (
    DistributionDifferences,
    compare_tokens,
    rms,
)
from layerlab.numerics.profiles.token_scores import NoteRun, RunModel, TokenScores, ignore
from layerlab.records.layer_names import EMBEDDING, layer_name

# Forward passes that a question takes at most, where the shares add up.
FORWARDS = 30
SPARE = 1
# Groups of layers that are told apart at most.
DEPTHS = 12
# So many differences are taken back together, the largest shares first, before all of them are;
# and the largest so many are also taken back alone.
STEPS = (1, 3)
ALONE = 2
# A closure further from 1 asks which of the largest operations do not add up.
CLOSED = 0.1
PAIRED = 3
EXPERTS = "experts chosen otherwise"
BEFORE, BLOCKS, BEHIND = layer_name(EMBEDDING), "blocks", "behind the blocks"


class ModelPart(NamedTuple):
    """Results of a model whose errors are exchanged together: none belongs to two parts."""

    operation: str
    component: str
    zone: str


@dataclass(frozen=True, kw_only=True)
class ExchangedErrors:
    """The difference between two runs, and what exchanged errors make of it.

    Attributes:
        whole: by token.
        parts: with the errors of b in one part.
        layers: with the errors of b in a group of layers, by name; none where all are one group.
        blocks: what all blocks together are called.
        rows: of their own in every table, as of experts that were chosen otherwise.
    """

    whole: Tensor
    parts: Mapping[ModelPart, Tensor]
    layers: Mapping[str, Tensor]
    blocks: str
    rows: tuple[DifferenceShare, ...]

    def add_up(self, field: str, apart: Collection[str]) -> list[DifferenceShare]:
        """Return the shares of operations, components or zones.

        Args:
            field: of a part.
            apart: operations that the profiles set differently.
        """
        groups: dict[str, list[ModelPart]] = {}
        for part in self.parts:
            groups.setdefault(getattr(part, field), []).append(part)
        return [
            _share(
                name,
                torch.stack([self.parts[part] for part in group]).sum(0),
                self.whole,
                any(part.operation in apart for part in group),
            )
            for name, group in groups.items()
        ]

    def list_layers(self) -> list[DifferenceShare]:
        """Return the shares by layer, in the order in which they run."""
        zones = self.add_up("zone", ())
        blocks = [_share(name, one, self.whole) for name, one in self.layers.items()]
        before, inside, behind = (
            [replace(one, name=called) for one in zones if one.name == name]
            for name, called in ((BEFORE, BEFORE), (BLOCKS, self.blocks), (BEHIND, BEHIND))
        )
        return [*before, *(blocks or inside), *behind]


def find_gap(
    model: nn.Module,
    pieces: Sequence[Tensor],
    a: NumericsProfile,
    b: NumericsProfile,
    *,
    call: RunModel,
    step: NoteRun = ignore,
) -> RunGap:
    """Run a model under two profiles and attribute the difference of their log-probabilities.

    share_g = <d_g, d> / <d, d>,   d = log p_b - log p_a,   closure = sum_g share_g

    d_g is the difference of a run that makes all the errors of a, but those of b at results of g:
    to first order d = sum_g d_g, however the errors are correlated. Shares by operation and by
    component are sums over the same parts: an operation in one component.

    Source: Own.

    Args:
        model: the model; it is not changed.
        pieces: token ids of each text.
        a: of what computes the loss.
        b: of what drew the tokens.
        call: runs the model on the ids of one text, and gives logits of 1 x token x vocabulary.
        step: is told of each run.
    """
    scores = TokenScores(model, pieces, call, step)
    pair = [Lane(profile=a), Lane(profile=b)]
    count = count_layers(model)
    parts = _list_parts(scores, pair, count)
    lanes = [Lane(takes=partial(_is_part, part, count)) for part in parts]
    chooses = any(part.operation == "router" for part in parts)
    spent = scores.count_passes([*pair, *lanes])
    spans = _group_layers(count, _count_groups(spent, len(differences(a, b)), chooses))
    # All blocks together have what their parts have.
    lanes += [Lane(takes=partial(_is_layer, span)) for span in spans.values() if len(spans) > 1]
    distributions = DistributionDifferences()
    mine, theirs, *read = scores.read([*pair, *lanes], distributions.add)
    pinned = theirs
    if scores.choices.changed:
        distributions = DistributionDifferences()
        theirs = scores.read_alone(pair[1], distributions.add)
    found = RunGap(
        a=a,
        b=b,
        difference=compare_tokens(mine, theirs, **distributions.mean),
        choices=scores.choices,
        forwards=scores.forwards,
    )
    difference = theirs - mine
    if not bool(difference.any()):
        return found
    changed = scores.choices.changed
    square = difference.square().cpu()
    share = float(square[scores.rerouted].sum() / square.sum())
    found = replace(found, choices=replace(scores.choices, share=share))
    made = [one - mine for one in read]
    exchanged = ExchangedErrors(
        whole=difference,
        parts=dict(zip(parts, made, strict=False)),
        layers=dict(zip(spans, made[len(parts) :], strict=False)),
        blocks=next(iter(spans), BLOCKS),
        rows=(_share(EXPERTS, theirs - pinned, difference),) if changed else (),
    )
    found = _attribute(found, exchanged)
    remedies, alone = _take_back(scores, found, mine)
    found = replace(found, remedies=remedies, alone=alone)
    if abs(found.closure - 1) > CLOSED:
        found = replace(found, pairs=_pair(scores, found, mine, difference))
    return replace(found, forwards=scores.forwards)


def _attribute(found: RunGap, exchanged: ExchangedErrors) -> RunGap:
    """Return what was found with its tables."""
    apart = set(differences(found.a, found.b))
    # Where weights are rounded otherwise, the error is theirs.
    apart |= {"attention_weights"} if "attention" in apart else set()
    operations, components = (
        _rank([*exchanged.add_up(field, apart), *exchanged.rows])
        for field in ("operation", "component")
    )
    layers = (*exchanged.list_layers(), *exchanged.rows)
    return replace(found, operations=operations, components=components, layers=layers)


def _rank(rows: Iterable[DifferenceShare]) -> tuple[DifferenceShare, ...]:
    """Order shares, the largest first; those that are none come last."""
    made = [one for one in rows if one.rms]
    return tuple(sorted(made, key=lambda one: -one.share if isfinite(one.share) else inf))


def _list_parts(scores: TokenScores, pair: Sequence[Lane], count: int) -> list[ModelPart]:
    """Return the parts of a model in which one of two runs rounds, in the order of operations."""
    order = list(OPERATIONS)
    found = {_find_part(one, count) for one in scores.list_results(pair)}
    return sorted(found, key=lambda part: (order.index(part.operation), part))


def _find_part(result: OperationResult, count: int) -> ModelPart:
    zone = BEFORE if result.layer == EMBEDDING else BEHIND if result.layer == count else BLOCKS
    return ModelPart(result.operation, result.component, zone)


def _count_groups(spent: float, apart: int, chooses: bool) -> int:
    """Return how many groups of layers can be told apart in as many forward passes as there are.

    A run with the errors of another from a layer on is the first run before it: of n groups, one
    takes half a pass in the mean.

    Args:
        spent: passes that the other runs beside them take.
        apart: how many things the profiles set differently.
        chooses: whether b may have to be run with experts of its own.
    """
    later = 1 + sum(end < apart for end in STEPS) + len(range(1, min(ALONE, apart)))
    left = FORWARDS - SPARE - spent - later - chooses
    return int(min(max(2 * left - 1, 1), DEPTHS))


def _pair(
    scores: TokenScores, found: RunGap, mine: Tensor, difference: Tensor
) -> tuple[JointShare, ...]:
    """Exchange the errors of the largest operations two by two, in the passes that are left."""
    largest = [one for one in found.operations if one.name in OPERATIONS][:PAIRED]
    left = FORWARDS - scores.forwards - 2  # a and b are run again beside them
    pairs = list(combinations(largest, 2))[: max(int(left), 0)]
    lanes = [Lane(takes=partial(_is_one_of, (one.name, two.name))) for one, two in pairs]
    read = scores.read([Lane(profile=found.a), Lane(profile=found.b), *lanes])[2:]
    return tuple(
        JointShare(
            first=one.name,
            second=two.name,
            excess=_share("", part - mine, difference).share - one.share - two.share,
        )
        for (one, two), part in zip(pairs, read, strict=True)
    )


def _take_back(
    scores: TokenScores, found: RunGap, mine: Tensor
) -> tuple[tuple[Remedy, ...], tuple[Remedy, ...]]:
    """Run b with its differences from a taken back, one after another and alone."""
    ranked = [one.name for one in found.causes]
    order = ranked + [one for one in differences(found.a, found.b) if one not in ranked]
    steps = [tuple(order[:end]) for end in STEPS if end < len(order)]
    single = [(name,) for name in order[1:ALONE]]
    every = (*steps, tuple(order), *single)
    lanes = [Lane(profile=_replace(found, names)) for names in every]
    if found.choices.changed:
        # Alone, each finds its own experts.
        read = [scores.read([lane] * 2)[0] for lane in lanes]
    else:
        # With all taken back, b is the first run.
        read = scores.read([Lane(profile=found.a), *lanes])[1:]
    remedies = tuple(
        Remedy(operations=names, rms=rms(one - mine), mean=float((one - mine).abs().mean()))
        for names, one in zip(every, read, strict=True)
    )
    last = len(steps) + 1
    return remedies[:last], (remedies[0], *remedies[last:])


def _replace(found: RunGap, names: Iterable[str]) -> NumericsProfile:
    profile = found.b
    for name in names:
        profile = profile.take_back(name, found.a)
    return profile


def _share(name: str, part: Tensor, difference: Tensor, differs: bool = False) -> DifferenceShare:
    share = float((part * difference).sum() / difference.square().sum())
    return DifferenceShare(name=name, share=share, rms=rms(part), differs=differs)


def _is_one_of(names: Collection[str], result: OperationResult) -> bool:
    return result.operation in names


def _is_part(part: ModelPart, count: int, result: OperationResult) -> bool:
    return _find_part(result, count) == part


def _is_layer(span: range, result: OperationResult) -> bool:
    return result.layer in span


def _group_layers(count: int, groups: int) -> dict[str, range]:
    """Return groups of blocks by name."""
    size = -(-count // groups) or 1
    spans = [range(start, min(start + size, count)) for start in range(0, count, size)]
    return {
        layer_name(one[0]) if len(one) == 1 else f"layers {one[0]} to {one[-1]}": one
        for one in spans
    }
