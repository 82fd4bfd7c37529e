"""The largest eigenvalue lambda of A^T (I - e e^T) A, which pangu23 takes to be below 1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.measures.support.sublayers.sublayer_bounds import contraction, spectral_bound
from layerlab.studies.engine.given_models import judge_one
from layerlab.studies.engine.pictures import Curve, band, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, CASES
from layerlab.studies.engine.statistics import (
    HIGH,
    LOW,
    Interval,
    bootstrap,
    maximum,
    summary,
    table,
)
from layerlab.studies.engine.study import EXACT, Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, decide
from layerlab.studies.support.attention_scores import check_rows
from layerlab.studies.support.passages import (
    PASSAGES,
    excerpts,
    for_each_attention,
    get_model,
    overlap,
)

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel

MODEL = "llama"
LENGTHS = (8, 16, 32, 64, 128, 256)
TRAINED, CAUSAL, DOUBLY = "trained heads, causal", "random scores, causal", "doubly stochastic"
UNIFORM, BLOCKS = "uniform, causal", "two tokens seen by half each"
# Rows and columns of random positive matrices, divided by their sums in turn.
TURNS = 60
ROUNDING = 1e-9


def one(draw: Sampler, tokens: int, models: Sequence[str]) -> dict[str, Tensor]:
    """Return, for one batch, lambda of every head of some models and of random matrices."""
    scores = draw.normal(tokens, tokens)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    causal = torch.softmax(scores.masked_fill(future, -torch.inf), -1)
    return {
        CAUSAL: largest(causal)[:, None],
        DOUBLY: largest(balance(scores.exp()))[:, None],
        **{
            name: heads(get_model(name, draw.given), excerpts(draw, name, tokens))
            for name in models
        },
    }


def largest(matrices: Tensor) -> Tensor:
    """Return an upper bound on lambda, never below the true one.

    Example:
        >>> round(largest(torch.eye(3, dtype=torch.float64)).item(), 9)
        1.0
    """
    return spectral_bound(matrices - matrices.mean(-2, keepdim=True)).square()


def balance(matrices: Tensor) -> Tensor:
    """Scale positive matrices until all rows and columns sum to 1, rows to the last digit."""
    for _ in range(TURNS):
        matrices = matrices / matrices.sum(-2, keepdim=True)
        matrices = matrices / matrices.sum(-1, keepdim=True)
    return matrices


def heads(subject: "LoadedModel", ids: Tensor) -> Tensor:
    """Return lambda of all heads in all layers, passage by passage."""
    found: list[Tensor] = []

    def read(seen: Any) -> None:
        check_rows(seen.attention)
        found.append(contraction(seen.attention, exact=True).square())

    for_each_attention(subject, ids, read)
    return torch.cat(found).view(len(ids), -1)


def uniform(tokens: int) -> Tensor:
    """Return attention in which every token sees itself and all before it alike."""
    return torch.ones(tokens, tokens, dtype=torch.float64).tril() / torch.arange(
        1, tokens + 1, dtype=torch.float64
    ).view(-1, 1)


def blocks(tokens: int) -> Tensor:
    """Return attention in which each half of the tokens sees only its own first token."""
    half = tokens // 2
    seen = (torch.arange(tokens) >= half).long() * half
    return torch.eye(tokens, dtype=torch.float64)[seen]


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    lengths = [tokens for tokens in LENGTHS if tokens <= context.options["tokens"]]
    cases = [{"tokens": tokens, "models": context.models} for tokens in lengths]
    parts = context.sample(one, cases, batch=4)
    labels = {
        f"heads of {name}, causal" if context.given else TRAINED: name for name in context.models
    }
    found = {
        label: {tokens: part[name] for tokens, part in zip(lengths, parts, strict=True)}
        for label, name in {**labels, CAUSAL: CAUSAL, DOUBLY: DOUBLY}.items()
    }
    fixed = {
        name: [float(largest(made(tokens))) for tokens in lengths]
        for name, made in ((UNIFORM, uniform), (BLOCKS, blocks))
    }
    rows = [
        summary(values.flatten(), {"attention": name, "tokens": tokens})
        for name, by_length in found.items()
        for tokens, values in by_length.items()
    ]
    lines = []
    for kind, (name, by_length) in enumerate(found.items()):
        ends = [np.percentile(values, [LOW, 50, HIGH]) for values in by_length.values()]
        lines.append(band(name, lengths, np.transpose(ends), kind=kind))
    lines += [
        Curve(name=name, x=lengths, y=values, kind=3 + index, style="dash")
        for index, (name, values) in enumerate(fixed.items())
    ]
    picture = curves(
        "lambda",
        "lambda by the number of tokens (median, 95 % of heads and draws)",
        lines,
        x="tokens",
        y="lambda; below 1: closer",
        log="xy",
    )
    return Outcome(
        verdicts=(
            *(
                verdict
                for label, name in labels.items()
                for verdict in judge_one(
                    name,
                    context.given,
                    judge_real(found[label], context.seed, label.removesuffix(", causal")),
                )
            ),
            judge_doubly(found[DOUBLY]),
            judge_running(lengths, fixed[UNIFORM]),
            judge_unbounded(lengths, fixed[BLOCKS]),
        ),
        frames={
            "lambda": table(rows),
            "fixed": table(
                [
                    {"attention": name, "tokens": tokens, "lambda": value}
                    for name, values in fixed.items()
                    for tokens, value in zip(lengths, values, strict=True)
                ]
            ),
        },
        pictures=(picture,),
        remarks=(
            f"Trained heads are all heads of all layers of {context.describe_all()}. Lemma 1 "
            "itself, with whatever lambda is, holds for every attention whose rows sum to 1.",
            "'Usually' is more than half of the heads.",
            overlap(context.options["tokens"], context.given),
        ),
    )


def judge_real(found: dict[int, np.ndarray], seed: int, whose: str) -> StudyVerdict:
    """Judge how many heads of a model contract, at the longest passages."""
    tokens = max(found)
    values = found[tokens]
    share = bootstrap(values, lambda drawn: float((drawn < 1).mean()), seed)
    middle = bootstrap(values, np.median, seed)
    return StudyVerdict(
        claim=STUDY.claim,
        word=above(share, 0.5),
        number=share.value,
        said=f"at {tokens} tokens lambda is below 1 in {_share(share, whose)}, more than "
        f"half of which was asked for, and it is {middle} in the median; the largest is "
        f"{values.max():.3g} ({len(values)} passages). A causal mask makes attention far from "
        "doubly stochastic",
    )


def _share(share: Interval, whose: str) -> str:
    return f"none of the {whose}" if share.high == 0 else f"a share of {share} of the {whose}"


def judge_doubly(found: dict[int, np.ndarray]) -> StudyVerdict:
    """Judge the case that the source proves, doubly stochastic attention."""
    highest = max(found, key=lambda tokens: float(found[tokens].max()))
    top = maximum(found[highest])
    return StudyVerdict(
        scale=CASES,
        claim="lambda is below 1 where attention is positive and doubly stochastic.",
        word=decide(holds=top.value < 1),
        number=top.value,
        said=f"the largest of all draws is {top}, at {highest} tokens; below 1 was asked for, "
        "and is proved",
        source="pangu23, section 3",
        unit=f"{len(found[highest])} random matrices",
    )


def judge_running(lengths: list[int], values: list[float]) -> StudyVerdict:
    """Judge the mildest causal attention, which is uniform."""
    above = [tokens for tokens, value in zip(lengths, values, strict=True) if value > 1]
    numbers = ", ".join(
        f"{value:.2f} at {tokens}" for tokens, value in zip(lengths, values, strict=True)
    )
    return StudyVerdict(
        scale=CASES,
        claim="lambda is below 1 for causal attention that sees all tokens alike.",
        word=decide(holds=False, fails=bool(above)),
        number=values[-1],
        said=f"it is {numbers} tokens; it stays below 4, by Hardy's inequality",
        source="Own, on pangu23, section 3",
        unit=EXACT,
    )


def judge_unbounded(lengths: list[int], values: list[float]) -> StudyVerdict:
    """Judge the worst causal attention."""
    grows = all(
        abs(value - tokens / 2) < ROUNDING * tokens
        for tokens, value in zip(lengths, values, strict=True)
    )
    return StudyVerdict(
        scale=CASES,
        claim="lambda is bounded for attention whose rows sum to 1, whatever the length.",
        word=decide(fails=grows),
        number=values[-1],
        said=f"where each half sees one token of its own it is half of the tokens, {values[-1]:g} "
        f"at {lengths[-1]}",
        source="Own, on pangu23, Lemma 1",
        unit=EXACT,
    )


STUDY = Study(
    name="attention-lambda",
    title="Contraction of tokens by attention",
    source="pangu23, section 3 and Lemma 3",
    claim="The largest eigenvalue lambda of A^T (I - e e^T) A is usually below 1, so that "
    "attention brings tokens closer.",
    cost="30 seconds",
    draws=40,
    models=(MODEL,),
    passage="tokens",
    attention=True,
    scale=BUILT_IN,
    unit=PASSAGES,
    run=run,
    fast={"draws": 6, "tokens": 64},
    **study_options("attention-lambda"),
)
