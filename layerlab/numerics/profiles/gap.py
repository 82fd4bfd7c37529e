"""Why two runs of one model disagree: the difference of their log-probabilities, by operation."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import isfinite

from torch import Tensor, nn

from layerlab.numerics.profiles.gap_result import DifferenceShare, JointShare, Remedy, RunGap
from layerlab.numerics.profiles.lanes import Lane, OperationResult, count_layers
from layerlab.numerics.profiles.operations import OPERATIONS
from layerlab.numerics.profiles.profile import NumericsProfile, differences
from layerlab.numerics.profiles.token_differences import (
    compare_distributions,
    compare_tokens,
    rms,
)
from layerlab.numerics.profiles.token_scores import NoteRun, RunModel, TokenScores, ignore
from layerlab.records.layer_names import EMBEDDING, layer_name

# Groups of layers that are told apart at most.
DEPTHS = 12
# Differences that are taken back one after another before all the others at once, and those that
# are also taken back alone.
STEPS = 5
ALONE = 3
# A closure further from 1 asks which of the largest operations do not add up.
CLOSED = 0.1
PAIRED = 4
EXPERTS = "experts chosen otherwise"


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
    to first order d = sum_g d_g, however the errors are correlated.

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
    depths = _depths(count_layers(model))
    takes = [partial(_is_one_of, (name,)) for name in OPERATIONS]
    takes += [partial(_is_layer, span) for _, span in depths]
    mine, pinned, *parts = scores.read(
        [Lane(profile=a), Lane(profile=b), *(Lane(takes=one) for one in takes)]
    )
    logits, choices, theirs = scores.logits, scores.choices, pinned
    changed = choices.changed > 0
    if changed:
        # Alone, the second run finds its own experts.
        theirs = scores.read([Lane(profile=b)] * 2)[0]
        logits = (logits[0], scores.logits[0])
    found = RunGap(
        a=a,
        b=b,
        difference=compare_tokens(mine, theirs, **compare_distributions(*logits)),
        choices=choices,
        forwards=scores.forwards,
    )
    whole = theirs - mine
    if not bool(whole.any()):
        return found
    apart = set(differences(a, b))
    # Where weights are rounded otherwise, the error is theirs.
    apart |= {"attention_weights"} if "attention" in apart else set()
    shares = [
        _share(name, part - mine, whole, name in apart)
        for name, part in zip(OPERATIONS, parts, strict=False)
    ]
    layers = [
        _share(name, part - mine, whole)
        for (name, _), part in zip(depths, parts[len(OPERATIONS) :], strict=True)
    ]
    for rows in (shares, layers) if changed else ():
        rows.append(_share(EXPERTS, theirs - pinned, whole))
    order = [one for one in shares if isfinite(one.share)]
    ranked = sorted((one for one in order if one.rms), key=lambda one: -one.share)
    ranked += [one for one in shares if one not in order]
    found = replace(found, operations=tuple(ranked), layers=tuple(layers))
    if abs(found.closure - 1) > CLOSED:
        found = replace(found, pairs=_pair(scores, found, mine, whole))
    remedies, alone = _take_back(scores, found, mine)
    return replace(found, remedies=remedies, alone=alone, forwards=scores.forwards)


def _pair(
    scores: TokenScores, found: RunGap, mine: Tensor, whole: Tensor
) -> tuple[JointShare, ...]:
    """Exchange the errors of the largest operations two by two."""
    largest = [one for one in found.operations if one.name in OPERATIONS][:PAIRED]
    pairs = list(combinations(largest, 2))
    lanes = [Lane(takes=partial(_is_one_of, (one.name, two.name))) for one, two in pairs]
    read = scores.read([Lane(profile=found.a), Lane(profile=found.b), *lanes])[2:]
    return tuple(
        JointShare(
            first=one.name,
            second=two.name,
            excess=_share("", part - mine, whole).share - one.share - two.share,
        )
        for (one, two), part in zip(pairs, read, strict=True)
    )


def _take_back(
    scores: TokenScores, found: RunGap, mine: Tensor
) -> tuple[tuple[Remedy, ...], tuple[Remedy, ...]]:
    """Run b with its differences from a taken back, one after another and alone."""
    ranked = [one.name for one in found.causes]
    order = ranked + [one for one in differences(found.a, found.b) if one not in ranked]
    ends = sorted({*range(1, min(len(order), STEPS) + 1), len(order)})
    steps = [tuple(order[:end]) for end in ends]
    single = [(name,) for name in order[1:ALONE]]
    lanes = [Lane(profile=_replace(found, names)) for names in (*steps, *single)]
    read = scores.read([Lane(profile=found.a), Lane(profile=found.b), *lanes])[2:]
    remedies = tuple(
        Remedy(operations=names, rms=rms(one - mine), mean=float((one - mine).abs().mean()))
        for names, one in zip((*steps, *single), read, strict=True)
    )
    return remedies[: len(steps)], (remedies[0], *remedies[len(steps) :])


def _replace(found: RunGap, names: Iterable[str]) -> NumericsProfile:
    profile = found.b
    for name in names:
        profile = profile.take_back(name, found.a)
    return profile


def _share(name: str, part: Tensor, whole: Tensor, differs: bool = False) -> DifferenceShare:
    share = float((part * whole).sum() / whole.square().sum())
    return DifferenceShare(name=name, share=share, rms=rms(part), differs=differs)


def _is_one_of(names: Collection[str], result: OperationResult) -> bool:
    return result.operation in names


def _is_layer(span: range, result: OperationResult) -> bool:
    return result.layer in span


def _depths(count: int) -> list[tuple[str, range]]:
    """Return groups of layers with their names: the embedding, blocks, what lies behind them."""
    size = -(-count // DEPTHS) or 1
    spans = [range(start, min(start + size, count)) for start in range(0, count, size)]
    named = [
        (layer_name(one[0]) if len(one) == 1 else f"layers {one[0]} to {one[-1]}", one)
        for one in spans
    ]
    before = (layer_name(EMBEDDING), range(EMBEDDING, EMBEDDING + 1))
    return [before, *named, ("behind the blocks", range(count, count + 1))]
