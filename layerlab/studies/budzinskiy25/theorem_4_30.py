"""Theorem 4.30 of budzinskiy25 against what rounding does: what the bound for depth is worth."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.numerics.theory.modules import TheoryAttention, TheoryBlock, TheoryFFN, TheoryNorm
from layerlab.numerics.theory.roundoff_model import mixed, uniform
from layerlab.studies.budzinskiy25.support import reference_transformer
from layerlab.studies.budzinskiy25.support.random_transformers import MAX, Ensemble
from layerlab.studies.budzinskiy25.support.reference_transformer import Weights
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact, Strict
from layerlab.studies.engine.given_models import judge_one
from layerlab.studies.engine.pictures import band, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, random_networks
from layerlab.studies.engine.statistics import bootstrap, bootstrap_each, maximum, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import below, decide, each
from layerlab.studies.support.passages import PASSAGES, excerpts, for_each_layer, get_model
from layerlab.studies.support.theory_block import theory_of

SIZE = 12
LAYERS = 6
# Ordinary weights, for which rounding errors stay small; the source's own make stacks chaotic.
ORDINARY = Ensemble(width=SIZE, tokens=SIZE, inner=SIZE, attention=0.2, feedforward=0.2)
DIGITS = {"t = 24": 24, "t = 16": 16}
OBSERVED, RECURSION, PRINTED = range(3)
COLUMNS = ("observed", "Theorem 4.30 with factors read off the data", "Theorem 4.30 as printed")
TOKENS = 16
MODEL = "llama"
SINGLE, HALF = 2.0**-24, 2.0**-8
VACUOUS = 1.0
CLOSE = 1e3


def theory_of_block(weights: Weights, draw: int) -> TheoryBlock:
    """Return one draw of the source's block in the theory's terms."""
    norm = TheoryNorm(kind="rms")
    return TheoryBlock(
        attention_norm=norm,
        attention=TheoryAttention(
            query=weights.query[draw][None],
            key=weights.key[draw][None],
            value=weights.value[draw][None],
            scale=weights.query.shape[-2] ** -0.5,
        ),
        feedforward_norm=norm,
        feedforward=TheoryFFN(
            inward=weights.inner[draw], outward=weights.outer[draw], activation="relu"
        ),
    )


def one(draw: Sampler, digits: int) -> dict[str, Tensor]:
    """Return the largest relative error and both bounds, draw x layer x column, for one batch."""
    # Late: what bounds whole blocks is only computed here.
    from layerlab.numerics.theory import depth_bounds

    arithmetic = Strict(digits)
    start = arithmetic.take(ORDINARY.start(draw)).double()
    layers = [ORDINARY.weights(draw).convert(arithmetic).convert(Exact()) for _ in range(LAYERS)]
    given = iter(layers)
    errors = reference_transformer.run([arithmetic], start, lambda: next(given), LAYERS, "rms")[
        :, :, 0, MAX
    ]
    found = torch.empty(draw.count, LAYERS, len(COLUMNS), dtype=torch.float64)
    found[..., OBSERVED] = errors
    unit = 2.0**-digits
    for number in range(draw.count):
        blocks = [theory_of_block(weights, number) for weights in layers]
        first = start[number]
        for layer, bound in enumerate(depth_bounds.recursion(first, blocks, uniform(unit))):
            found[number, layer, RECURSION] = bound
            printed = depth_bounds.printed_bound(first, blocks[: layer + 1], unit)
            found[number, layer, PRINTED] = printed
    return {"bounds": found}


def errors_of_trained(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return the bf16 errors behind each block of a trained model, for one batch."""
    from layerlab.numerics.theory import depth_bounds

    subject = get_model(name, draw.given)
    assert not isinstance(subject.stack, str), subject.stack
    found = torch.zeros(draw.count, len(subject.stack.blocks), dtype=torch.float64)
    factors = torch.zeros_like(found)

    def read(layer: Any) -> None:
        if layer.block is None:
            return
        seen, layer_index = theory_of(layer, subject), layer.layer
        block = seen.block()
        before = found[layer.sequence, layer_index - 1].item() if layer_index else 0.0
        step = depth_bounds.layer(seen.entered, block, mixed(HALF, SINGLE))
        found[layer.sequence, layer_index] = step.after(before)
        factors[layer.sequence, layer_index] = depth_bounds.printed_factor(block)

    for_each_layer(subject, excerpts(draw, name, TOKENS), read)
    return {"errors": found, "factors": factors}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    parts = context.sample(one, [{"digits": digits} for digits in DIGITS.values()], batch=16)
    found = {name: part["bounds"] for name, part in zip(DIGITS, parts, strict=True)}
    models = context.sample_models(errors_of_trained, batch=16)
    rows = [
        summary(every[:, layer, column], {"digits": name, "layer": layer + 1, "quantity": quantity})
        for name, every in found.items()
        for layer in range(LAYERS)
        for column, quantity in enumerate(COLUMNS)
    ]
    rows += [
        summary(
            model["errors"][:, layer],
            {"digits": f"bf16, {name}", "layer": layer + 1, "quantity": COLUMNS[RECURSION]},
        )
        for name, model in models.items()
        for layer in range(model["errors"].shape[1])
    ]
    return Outcome(
        verdicts=(
            judge_never(found),
            judge_size(found, RECURSION, TELLS, context.seed),
            judge_size(found, PRINTED, "So does it as it is printed.", context.seed),
            *(
                verdict
                for name, one in models.items()
                for verdict in judge_one(
                    name, context.given, judge_speaking(one, context.describe(name), context.seed)
                )
            ),
        ),
        frames={"bounds": table(rows)},
        pictures=(plot(found, "t = 24"),),
        remarks=(
            f"Random stacks of {LAYERS} of the source's blocks with RMS norms, d = n = D = {SIZE}, "
            "weights N(0, 0.04), every operation rounded. Errors are relative, of the worst entry, "
            "as in the theorem.",
            "Factors of the first form are read off the data, layer by layer; the printed form "
            "takes its leading constants as our copy has them, 16 n + 23 d + 17 D and 4^L / 3, "
            "which cannot be read for sure. Neither is a bound where errors are not small: both "
            "are of first order.",
            f"On {context.describe_all()}, each draw is a passage of {TOKENS} tokens in bf16, sums "
            "in float32; the printed form needs W_k^T W_q to be invertible, which no head narrower "
            "than the model can be.",
        ),
    )


def judge_never(found: dict[str, np.ndarray]) -> StudyVerdict:
    """Judge whether any error exceeds the theorem's bound."""
    most = {
        name: maximum(every[..., OBSERVED] / every[..., RECURSION]) for name, every in found.items()
    }
    numbers = ", ".join(f"{one} ({name})" for name, one in most.items())
    largest = max(one.value for one in most.values())
    first = np.mean([(every[:, 0, RECURSION] >= VACUOUS).mean() for every in found.values()])
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(holds=largest <= 1),
        number=largest,
        said=f"largest error over the bound: {numbers}, over all layers and "
        f"{len(next(iter(found.values())))} draws; which says little, since the bound is 1 or "
        f"more, and vacuous, in {first:.0%} of the draws behind the first layer already",
    )


TELLS = "The bound of Theorem 4.30 tells the size of the error within a thousand."


def judge_size(found: dict[str, np.ndarray], column: int, claim: str, seed: int) -> StudyVerdict:
    """Judge how far the bound lies above the error after the last layer."""
    logs = {
        name: np.log10(every[:, -1, column] / every[:, -1, OBSERVED])
        for name, every in found.items()
    }
    powers = bootstrap_each(logs, np.median, seed)
    empty = {name: float((every[:, -1, column] >= VACUOUS).mean()) for name, every in found.items()}
    numbers = ", ".join(
        f"10^{one.value:.1f} (10^{one.low:.1f} to 10^{one.high:.1f}) times the error at {name}, "
        f"vacuous (1 or more) in {empty[name]:.0%} of the draws"
        for name, one in powers.items()
    )
    limit = float(np.log10(CLOSE))
    return StudyVerdict(
        claim=claim,
        word=each(below(one, limit) for one in powers.values()),
        number=10 ** max(one.value for one in powers.values()),
        said=f"behind {LAYERS} layers the bound is {numbers} (medians)",
        source="budzinskiy25, Theorem 4.30",
    )


def judge_speaking(model: dict[str, np.ndarray], called: str, seed: int) -> StudyVerdict:
    """Judge whether the theorem says anything of a trained model."""
    first = bootstrap(model["errors"][:, 0], np.median, seed)
    last = bootstrap(np.log10(model["errors"][:, -1]), np.median, seed)
    empty = float((model["errors"] >= VACUOUS).mean())
    endless = float(np.isinf(model["factors"]).mean())
    return StudyVerdict(
        scale=BUILT_IN,
        claim="On a trained model in bf16 the theorem bounds the error below 1.",
        word=decide(holds=empty == 0, fails=empty == 1),
        number=first.value,
        said=f"on {called} the bound is {first} behind the first block and "
        f"10^{last.value:.0f} (10^{last.low:.0f} to 10^{last.high:.0f}) behind the last; it is "
        f"vacuous in {empty:.0%} of blocks and passages, and as printed infinite in "
        f"{endless:.0%}: a head narrower than the model has sigma_min = 0",
        source="budzinskiy25, Theorem 4.30",
        unit=f"{len(model['errors'])} {PASSAGES}",
    )


def plot(found: dict[str, np.ndarray], name: str) -> Picture:
    """Plot the error and the bounds by layer."""
    every = found[name]
    layers = list(range(1, LAYERS + 1))
    lines = [
        band(label, layers, np.percentile(every[..., column], [5, 50, 95], axis=0), kind=column)
        for column, label in enumerate(COLUMNS)
    ]
    picture = curves(
        "depth",
        f"Largest relative error and its bounds, {name} digits (median, 5 to 95 % of draws)",
        lines,
        x="layer",
        y="relative error of the worst entry; from 1 on a bound says nothing",
    )
    # Powers of ten from 1e-7 to 1e80.
    del picture.layout["yaxis"]["dtick"]
    return picture


STUDY = Study(
    name="bound-depth",
    title="The bound for deep Transformers",
    source="budzinskiy25, Theorem 4.30",
    claim="No error of a deep Transformer is above Theorem 4.30, with its factors read off the "
    "data.",
    cost="1 minute",
    draws=200,
    models=(MODEL,),
    passage=TOKENS,
    attention=True,
    scale=random_networks(LAYERS, SIZE),
    run=run,
    fast={"draws": 12},
)
