"""Exchange between tokens through the series activation of pangu23, form by form."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.blocks.context import Flow
from layerlab.blocks.shape import Shape, Site
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap, summary, table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, decide, each
from layerlab.variants.registry import part

TOKENS = 12
WIDTH = 8
INNER = 16
AFFINE, MATRICES, LOCAL = "affine-in", "multi-projection", "convolution"
FORMS: tuple[dict[str, Any], ...] = (
    {"form": AFFINE, "n": 2},
    {"form": AFFINE, "n": 4},
    {"form": "scale-out", "n": 2},
    {"form": MATRICES, "n": 2},
    {"form": LOCAL, "n": 2},
    {"form": LOCAL, "n": 3},
    {"form": LOCAL, "n": 4},
)


def one(draw: Sampler, **options: Any) -> dict[str, Tensor]:
    """Return how strongly each token's output responds to the input of each, for one batch."""
    found = [influence(random_series(draw, options), draw) for _ in range(draw.count)]
    return {"influence": torch.stack(found)}


def random_series(draw: Sampler, options: Mapping[str, Any]) -> torch.nn.Module:
    """Build a feed-forward with a series whose parameters are all random."""
    shape = Shape(
        width=WIDTH,
        layers=1,
        heads=1,
        kv_heads=1,
        head_width=WIDTH,
        inner=INNER,
        vocab=2,
        context=TOKENS,
    )
    kind = part("ffn", "siaf")
    module = kind(WIDTH, Site(shape=shape, layer=0, role="ffn"), **kind.given(options)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            fan = parameter.shape[-1] if parameter.dim() > 1 else 1
            noise = torch.randn(parameter.shape, generator=draw.generator, dtype=torch.float64)
            parameter.copy_(noise / fan**0.5)
    return module.requires_grad_(False)


def influence(module: torch.nn.Module, draw: Sampler) -> Tensor:
    """Return || d (r . y_i) / d x_j || for a random direction r, output i by input j.

    0 means that token i does not see token j at all.
    """
    x = torch.randn(TOKENS, WIDTH, generator=draw.generator, dtype=torch.float64)
    direction = torch.randn(WIDTH, generator=draw.generator, dtype=torch.float64)
    x.requires_grad_(True)
    along = module(x[None], Flow())[0] @ direction
    rows = [torch.autograd.grad(y, x, retain_graph=True)[0].norm(dim=1) for y in along]
    return torch.stack(rows)


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    parts = [found["influence"] for found in context.sample(one, FORMS)]
    back = [np.stack([backwards(draw) for draw in drawn]) for drawn in parts]
    rows = [
        summary(found[:, distance], {**options, "tokens_back": distance})
        for options, found in zip(FORMS, back, strict=True)
        for distance in range(TOKENS)
    ]
    lines = [
        Curve(
            name=f"{options['form']}, n = {options['n']}",
            x=list(range(TOKENS)),
            y=[float(n) for n in np.median(found, axis=0)],
            kind=kind,
            style="dash" if options["form"] == LOCAL else "solid",
        )
        for kind, (options, found) in enumerate(zip(FORMS, back, strict=True))
    ]
    picture = curves(
        "influence",
        "Influence of earlier tokens in the feed-forward, over that of the token itself (median)",
        lines,
        x="tokens back",
        y="derivative, over its own",
        log="",
    )
    return Outcome(
        verdicts=(
            judge_elementwise(parts),
            judge_literal(parts),
            judge_neighbours(parts, back, context.seed),
            judge_everywhere(parts),
        ),
        frames={"influence": table(rows)},
        pictures=(picture,),
        remarks=(
            "All numbers of the series are random here. At its start the convolution reads the "
            "present token alone, like every other form.",
            "The feed-forward alone is looked at: attention exchanges information in every form.",
            "The source does not say which form its language models have; its prices, a few "
            "per cent for each term, fit scales and shifts, which see one token.",
        ),
    )


def backwards(influences: np.ndarray) -> np.ndarray:
    """Return the mean influence by distance, over that of the token itself."""
    places = range(len(influences))
    found = np.array([np.diagonal(influences, -distance).mean() for distance in places])
    return found / found[0]


def others(influences: np.ndarray) -> float:
    """Return the largest influence of one token on another, over the largest on itself.

    0 means that there is none.
    """
    own = np.eye(influences.shape[-1], dtype=bool)
    return float(influences[..., ~own].max() / influences[..., own].max())


def reach(influences: np.ndarray) -> int:
    """Return how many tokens back an output sees in any draw, or -1 if it sees later tokens."""
    if np.triu(influences, 1).any():
        return -1
    return max(
        distance
        for distance in range(influences.shape[-1])
        if np.diagonal(influences, -distance, axis1=-2, axis2=-1).any()
    )


def _of(parts: list[np.ndarray], *forms: str) -> list[np.ndarray]:
    chosen = zip(FORMS, parts, strict=True)
    return [found for options, found in chosen if options["form"] in forms]


def _judge_absent(claim: str, found: list[np.ndarray], what: str, source: str) -> StudyVerdict:
    largest = others(np.stack(found, 1))
    return StudyVerdict(
        claim=claim,
        word=decide(holds=largest > 0),
        number=largest,
        said="the largest derivative of a token's output by another token's input is "
        f"{_times(largest)} the largest by its own, {what}; 0 is no exchange ({len(found[0])} "
        "draws)",
        source=source,
    )


def _times(found: float) -> str:
    return "exactly 0 in every draw, and so 0 times" if found == 0 else f"{found:.3g} times"


def judge_elementwise(parts: list[np.ndarray]) -> StudyVerdict:
    """Judge the form that the source writes down and prices."""
    return _judge_absent(
        STUDY.claim,
        _of(parts, AFFINE, "scale-out"),
        "with two and four terms, scales inside or outside",
        "",
    )


def judge_literal(parts: list[np.ndarray]) -> StudyVerdict:
    """Judge the form with a matrix for each term, of which the source claims it outright."""
    return _judge_absent(
        "The series with a matrix for every term varies its input over neighbours, and so learns "
        "global information.",
        _of(parts, MATRICES),
        "with two matrices",
        "pangu23, equation 9",
    )


def judge_neighbours(parts: list[np.ndarray], back: list[np.ndarray], seed: int) -> StudyVerdict:
    """Judge the form of the paper that the source builds on, made causal."""
    shares: dict[int, Interval] = {}
    for options, found in zip(FORMS, back, strict=True):
        if options["form"] == LOCAL:
            shares[options["n"]] = bootstrap(found[:, 1], np.median, seed)
    numbers = ", ".join(f"{share} with n = {n}" for n, share in shares.items())
    return StudyVerdict(
        claim="A series over neighbouring tokens, as a causal convolution, exchanges information "
        "between tokens.",
        word=each(above(share, 0) for share in shares.values()),
        number=min(share.value for share in shares.values()),
        said=f"the derivative by the token before is {numbers} times that by the token itself "
        f"(median over {len(parts[0])} draws)",
        source="chen23, neighbour form of the series activation; Own",
    )


def judge_everywhere(parts: list[np.ndarray]) -> StudyVerdict:
    """Judge whether what the convolution exchanges is global."""
    found = {
        int(options["n"]): reach(influences)
        for options, influences in zip(FORMS, parts, strict=True)
        if options["form"] == LOCAL
    }
    near = all(distance < TOKENS - 1 for distance in found.values())
    numbers = ", ".join(f"{distance} with n = {n}" for n, distance in found.items())
    return StudyVerdict(
        claim="What a convolution of neighbours exchanges in one layer is global.",
        word=decide(fails=near),
        number=max(found.values()),
        said=f"an output sees tokens back: {numbers}, in every draw, of {TOKENS - 1} that stand "
        "before it; a stack of L layers sees L (n - 1)",
        source="pangu23, section 5.1; Own",
    )


STUDY = Study(
    name="series-exchange",
    title="Series activation and information exchange",
    source="pangu23, equation 7 and section 5.1",
    claim="The series activation exchanges information between all tokens of the feature map.",
    cost="10 seconds",
    draws=200,
    scale=random_networks(1, WIDTH),
    run=run,
    fast={"draws": 12},
)
