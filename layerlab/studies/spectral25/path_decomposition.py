"""Output of a stack with skips by the length of paths: dong21's decomposition.

With its attention weights, norms and gates held at what they are on a passage, a stack is linear in
its embedding, so its output is a sum over paths that pass some attention sublayers and skip others.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.studies.engine.pictures import Curve, band, curves
from layerlab.studies.engine.sampling import Arrays, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap, bootstrap_each, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import below, each
from layerlab.studies.spectral25.linear_paths import Piece, paths
from layerlab.studies.support.once import compute_once
from layerlab.studies.support.passages import (
    excerpts,
    for_each_layer,
    get_model,
    overlap,
    tokens_of,
)
from layerlab.studies.support.theory_block import theory_of

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.studies.engine.given_models import GivenModel

MODEL = "llama"
TOKENS = 64
WIDTH, HEADS, DEPTH = 64, 4, 8
CAUSAL, OPEN = "random, causal", "random, no mask"
RANDOM = (CAUSAL, OPEN)
CASES = (MODEL, *RANDOM)
LABELS = {MODEL: "trained llama", CAUSAL: "random, causal mask", OPEN: "random, no mask"}
# Half of the layers: read off the draws of seed 0, and found again with seed 1.
FALLING = 4
# Of a stream in float32, whose blocks are held against their parts as closely.
SAME = 1e-3


@compute_once
def trained_layers(name: str, own: "GivenModel | None" = None) -> tuple[Piece, ...]:
    """Return a model's layers in float64, checked against what the model computes.

    Raises:
        NotApplicable: with what is held on a passage they are no linear maps of its embedding, or
            the stream is another between the layers.
    """
    given = {} if own is None else {name: own}
    subject, found, streams = get_model(name, given), list[Piece](), list[Tensor]()
    ids = tokens_of(name, given)[:TOKENS]

    def read(layer: Any) -> None:
        if layer.block is None:
            return
        layer_theory = theory_of(layer, subject)
        block = layer_theory.block()
        biases = (block.attention.value_bias, block.attention.output_bias)
        inner = block.feedforward
        if any(one is not None for one in (*biases, inner.inward_bias, inner.outward_bias)):
            raise NotApplicable("its biases are no part of a sum over paths")
        if not found and not torch.allclose(layer_theory.entered, embed(subject, ids), rtol=1e-5):
            raise NotApplicable("what its first block reads is more than an embedding")
        found.append(
            Piece(
                norm=block.attention_norm,
                attention=block.attention,
                second=block.feedforward_norm,
                feedforward=block.feedforward,
            )
        )
        streams[:] = [layer.stream.double()]

    for_each_layer(subject, ids[None], read)
    missed = paths(embed(subject, ids), found).sum(0) - streams[0]
    if not float(missed.norm()) <= SAME * float(streams[0].norm()):
        raise NotApplicable("its paths do not sum to the stream behind its last layer")
    return tuple(found)


def embed(subject: "LoadedModel", ids: Tensor) -> Tensor:
    """Return the embedding of some tokens in a model."""
    embedding: Any = subject.model.get_input_embeddings()
    return torch.as_tensor(embedding.weight.detach()[ids.to(subject.device)].double())


def random(draw: Sampler, causal: bool) -> tuple[Piece, ...]:
    """Return layers of attention with skips alone, each matrix of entries N(0, 1 / inputs)."""
    from layerlab.numerics.theory.modules import TheoryAttention, TheoryNorm

    allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    size = WIDTH // HEADS

    def matrix(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=draw.generator, dtype=torch.float64)
        return drawn / WIDTH**0.5

    return tuple(
        Piece(
            norm=TheoryNorm(kind="rms"),
            attention=TheoryAttention(
                query=matrix(HEADS, size, WIDTH),
                key=matrix(HEADS, size, WIDTH),
                value=matrix(HEADS, size, WIDTH),
                output=matrix(HEADS, WIDTH, size),
                scale=size**-0.5,
                allowed=allowed.tril() if causal else allowed,
            ),
        )
        for _ in range(DEPTH)
    )


def one(draw: Sampler, case: str) -> dict[str, Tensor]:
    """Return the shares and residuals of the paths of each length, for one batch."""
    if case not in RANDOM:
        layers = trained_layers(case, draw.given.get(case))
        subject, passages = get_model(case, draw.given), excerpts(draw, case, TOKENS)
        found = [paths(embed(subject, ids), layers) for ids in passages]
    else:
        found = []
        for _ in range(draw.count):
            start = torch.randn(TOKENS, WIDTH, generator=draw.generator, dtype=torch.float64)
            found.append(paths(start, random(draw, case == CAUSAL)))
    return {
        name: torch.stack([read(parts) for parts in found])
        for name, read in (("share", share), ("apart", apart), ("residual", residual))
    }


def share(parts: Tensor) -> Tensor:
    """Return <Y_k, X> / |X|^2 of each length, X being the sum: the shares may be negative."""
    total = parts.sum(0)
    return (parts * total).sum((1, 2)) / total.square().sum()


def apart(parts: Tensor) -> Tensor:
    """Return the shares of what differs between tokens: every part minus its mean over tokens."""
    from layerlab.measures.support.centring import centre

    return share(torch.stack([centre(part) for part in parts]))


def residual(parts: Tensor) -> Tensor:
    """Return the relative residual of what paths of each length carry; 0 is rank one."""
    from layerlab.measures.quantities.diversity import relative_residual

    return torch.stack([relative_residual(part) for part in parts])


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases = (*context.models, *RANDOM)
    gathered = context.sample(one, [{"case": case} for case in cases], batch=16)
    parts = dict(zip(cases, gathered, strict=True))
    labels = LABELS | {name: name for name in context.given}
    every = sum(found["residual"].shape[1] - 1 for found in parts.values())
    rows = [
        summary(found[quantity][:, length], {"stack": case, "quantity": quantity, "length": length})
        for case, found in parts.items()
        for quantity in ("share", "apart", "residual")
        for length in range(found[quantity].shape[1])
    ]
    found = {case: steps(one["residual"], context.seed, every) for case, one in parts.items()}
    return Outcome(
        verdicts=(
            judge_short({case: one["share"] for case, one in parts.items()}, context.seed, labels),
            judge_ranked(found, labels),
            judge_nearer(found, context.draws),
            judge_differing(parts, context.seed, labels),
        ),
        frames={"paths": table(rows), "steps": table(list(_step(found)))},
        pictures=(
            *(
                plot(quantity, title, parts, labels, y)
                for quantity, title, y in (
                    ("share", "Share of the output by path length", "share of the output"),
                    ("residual", "Rank of what paths carry", "relative residual"),
                )
            ),
        ),
        remarks=(
            "A path's length is the number of attention sublayers that it passes. Attention "
            "weights, norms and gates are held at what they are on the passage, so the parts sum "
            "to the stream behind the last layer exactly. A feed-forward, with its skip, belongs "
            "to every path.",
            "A share is the projection of a part on the output, over the output: shares sum to 1 "
            "and can be negative, where paths cancel.",
            f"A step is the median over draws of what a part's relative residual is, over that of "
            f"the part one sublayer shorter in the same draw: below 1 it is nearer to rank 1. The "
            f"intervals of the {every} steps hold together.",
            f"That the steps fall up to length {FALLING} was read off another model of 8 layers: "
            "the claim is asked of these as it is."
            if context.given
            else f"That the steps fall up to length {FALLING} was read off the draws of seed 0; "
            "those of seed 1 say the same.",
            f"Trained stacks: {_depths(context, parts)} and no biases; passages of {TOKENS} "
            f"tokens. The random stacks are attention with RMS norm and skips, width {WIDTH}, "
            f"{HEADS} heads, on random features. {overlap(TOKENS, context.given)}",
        ),
    )


def _depths(context: StudyContext, parts: Mapping[str, Arrays]) -> str:
    depths = {name: parts[name]["share"].shape[1] - 1 for name in context.models}
    lines = [f"{context.describe(name)} has {depth} layers" for name, depth in depths.items()]
    return ", ".join(lines)


def length(shares: np.ndarray) -> np.ndarray:
    """Return the mean length of a path, weighted by its share, draw by draw."""
    return np.asarray(shares @ np.arange(shares.shape[1]))


def judge_short(
    shares: dict[str, np.ndarray], seed: int, labels: Mapping[str, str] = LABELS
) -> StudyVerdict:
    """Judge whether paths are short, against the mean of all 2^L paths, half of the layers."""
    found = bootstrap_each({case: length(one) for case, one in shares.items()}, np.mean, seed)
    depths = {case: one.shape[1] - 1 for case, one in shares.items()}
    numbers = ", ".join(f"{mean} in {labels[case]}" for case, mean in found.items())
    first = next(iter(shares))
    least, depth = bootstrap(shares[first][:, :2].sum(1), np.mean, seed), depths[first]
    layers = " or ".join(f"{one}" for one in dict.fromkeys(depths.values()))
    middle = " or ".join(f"{one / 2:g}" for one in dict.fromkeys(depths.values()))
    return StudyVerdict(
        claim=STUDY.claim,
        word=each(below(one, depths[case] / 2) for case, one in found.items()),
        number=found[first].value,
        said=f"weighed by its share of the output, a path passes {numbers} of {layers} attention "
        f"sublayers; below {middle}, which is what all paths alike would "
        f"make, was asked for. Lengths 0 and 1 carry {least} of the output in {labels[first]}, and "
        f"are {(1 + depth) / 2**depth:.1%} of all paths",
    )


def steps(
    residuals: np.ndarray, seed: int, comparisons: int = DEPTH * len(CASES)
) -> list[Interval]:
    """Return the residual's median factor from each length to the next."""
    quotients = residuals[:, 1:] / residuals[:, :-1]
    return [bootstrap(one, np.median, seed, comparisons=comparisons) for one in quotients.T]


def _step(found: Mapping[str, Sequence[Interval]]) -> Iterator[dict[str, Any]]:
    for case, every in found.items():
        for index, step in enumerate(every):
            yield {"stack": case, "from": index, "to": index + 1, **vars(step)}


def judge_ranked(
    found: Mapping[str, Sequence[Interval]], labels: Mapping[str, str] = LABELS
) -> StudyVerdict:
    """Judge whether each further sublayer brings what is carried nearer to rank 1."""
    every = [step for one in found.values() for step in one]
    steps_of = " or ".join(dict.fromkeys(f"{len(one)}" for one in found.values()))
    ends = ", ".join(
        f"{min(step.value for step in one):.3g} to {max(step.value for step in one):.3g} in "
        f"{labels[case]}"
        for case, one in found.items()
    )
    rises = "; ".join(
        f"{step} from {place} to {place + 1} in {labels[case]}"
        for case, one in found.items()
        for place, step in enumerate(one)
        if step.low > 1
    )
    return StudyVerdict(
        claim="The longer a path, the nearer what it carries is to rank 1.",
        word=each(below(step, 1) for step in every),
        number=max(step.value for step in every),
        said=f"from each length to the next the relative residual is multiplied by {ends}; below 1 "
        f"was asked for in each of {steps_of} steps. It rises: {rises or 'nowhere'}",
        source="spectral25, section 1.3; dong21, section 3",
    )


def judge_nearer(found: Mapping[str, Sequence[Interval]], draws: int) -> StudyVerdict:
    """Judge whether what is carried comes nearer to rank 1 over the first steps."""
    every = [step for one in found.values() for step in one[:FALLING]]
    last = max(every, key=lambda step: step.high)
    return StudyVerdict(
        claim=f"Up to length {FALLING} it is so: each sublayer more takes it nearer to rank 1.",
        word=each(below(step, 1) for step in every),
        number=last.value,
        said=f"the step that is nearest to 1, of {FALLING} in each of {len(found)} stacks, "
        f"multiplies the relative residual by {last}; below 1 was asked for in all (median of "
        f"{draws} draws)",
        source="Own, after dong21, section 3",
        looked=True,
    )


def judge_differing(parts: dict[str, Any], seed: int, labels: Mapping[str, str]) -> StudyVerdict:
    """Judge whether what keeps tokens apart takes shorter paths than what they share."""
    lengths = {case: length(one["apart"]) - length(one["share"]) for case, one in parts.items()}
    found = bootstrap_each(lengths, np.mean, seed)
    numbers = ", ".join(f"{gap} in {labels[case]}" for case, gap in found.items())
    return StudyVerdict(
        claim="In a random stack what differs between tokens reaches the output by shorter paths "
        "than the rest.",
        word=each(below(found[case], 0) for case in (CAUSAL, OPEN)),
        number=found[OPEN].value,
        said=f"the mean length of the output minus its mean over tokens, less that of the output "
        f"itself, is {numbers} sublayers; below 0 was asked for in random stacks (mean of "
        f"{len(parts[OPEN]['share'])} draws)",
        source="Own, after spectral25, section 1.3",
    )


def plot(
    quantity: str, title: str, parts: dict[str, Any], labels: Mapping[str, str], y: str
) -> Picture:
    """Plot one line per stack over the length of paths."""
    most = max(found[quantity].shape[1] for found in parts.values())
    lines = [
        band(
            labels[case],
            list(range(len(low))),
            (low, np.median(found[quantity], 0), high),
            kind=kind,
        )
        for kind, (case, found) in enumerate(parts.items())
        for low, high in [np.percentile(found[quantity], [5, 95], axis=0)]
    ]
    if quantity == "share":
        places = list(range(most))
        alike = [comb(most - 1, count) / 2 ** (most - 1) for count in places]
        lines.append(Curve(name="all paths alike", x=places, y=alike, kind=6, style="dot"))
    return curves(
        quantity,
        f"{title} (median, 5 to 95 %)",
        lines,
        x="length of a path, attention sublayers",
        y=y,
        log="" if quantity == "share" else "y",
    )


STUDY = Study(
    name="path-length",
    title="Paths by their length",
    source="spectral25, section 1.3; dong21, section 3",
    claim="With skip connections the output is carried by short paths, around most of attention.",
    cost="20 seconds",
    draws=200,
    models=(MODEL,),
    few=16,
    passage=TOKENS,
    attention=True,
    scale=f"{BUILT_IN}, and {random_networks(DEPTH, WIDTH)}",
    run=run,
    fast={"draws": 120},
    unit="random initialisations, and passages of one text through one model",
)
