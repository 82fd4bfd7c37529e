"""Figure 2 of budzinskiy25: rounding errors against the spectral norm of W_k^T W_q."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.figure1_depth import ENSEMBLE
from layerlab.studies.budzinskiy25.support.random_transformers import (
    NAMES,
    NORMWISE,
    plot_errors,
    stack_errors,
)
from layerlab.studies.budzinskiy25.support.reference_transformer import Weights
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap, line, summary, table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, decide, each, within

NORMS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
DEPTHS = (10, 15, 20)
# Near both ends of `NORMS` the error hardly grows with the norm; the second range is the steep
# part, which a reader of the figure sees.
RANGES = ((1, 32), (8, 64))
EXPECTED = {10: 1.0, 20: 2.0}
# Nearer to this power than to any other whole one.
NEAR = 0.5


def scale(weights: Weights, norm: float) -> Weights:
    """Scale weights so that W_k^T W_q has the given spectral norm."""
    product = weights.key.mT @ weights.query
    factor = (norm / torch.linalg.matrix_norm(product, 2)).sqrt()[:, None, None]
    return replace(weights, query=weights.query * factor, key=weights.key * factor)


def one(draw: Sampler, spectral: float, norm: str, digits: int) -> dict[str, Tensor]:
    """Return the errors at the depths of the figure, for one batch."""
    found = stack_errors(
        draw,
        ENSEMBLE,
        [digits],
        max(DEPTHS),
        norm,  # type: ignore[arg-type]
        changed=lambda weights: scale(weights, spectral),
    )
    return {"errors": found[:, [depth - 1 for depth in DEPTHS], 0]}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases = [{"spectral": norm, **context.options} for norm in NORMS]
    # draw x norm x depth x statistic
    errors = np.stack([found["errors"] for found in context.sample(one, cases)], axis=1)
    rows = [
        summary(
            errors[:, index, depth, statistic],
            {"layers": DEPTHS[depth], "spectral_norm": norm, "statistic": name},
        )
        for depth in range(len(DEPTHS))
        for index, norm in enumerate(NORMS)
        for statistic, name in enumerate(NAMES)
    ]
    found = table(rows)
    return Outcome(
        verdicts=(judge_grows(errors, context.seed), judge_degrees(errors, context.seed)),
        frames={"norms": found},
        pictures=plot_errors(
            {
                f"{depth} layers": errors[:, :, index, NORMWISE]
                for index, depth in enumerate(DEPTHS)
            },
            NORMS,
            "spectral norm",
            x="spectral norm of W_k^T W_q",
            log="xy",
        ),
        remarks=(
            f"'About' is a power within {NEAR:g} of the one that is named: nearer to it than to "
            "any other whole power.",
            describe_ends(errors),
        ),
    )


def slope(errors: np.ndarray, depth: int, ends: tuple[int, int], seed: int) -> Interval:
    """Return the power of the norm that the mean error follows, with a simultaneous interval.

    The intervals of all depths hold together.
    """
    places = [index for index, norm in enumerate(NORMS) if ends[0] <= norm <= ends[1]]
    norms = np.log([NORMS[index] for index in places])
    chosen = errors[:, places, DEPTHS.index(depth), NORMWISE]
    return bootstrap(
        chosen,
        lambda draws: line(norms, np.log(draws.mean(0))).slope,
        seed,
        comparisons=len(DEPTHS),
    )


def describe_ends(errors: np.ndarray) -> str:
    """Describe by how much the mean error of the deepest stack grows near both ends."""
    means = errors[:, :, DEPTHS.index(max(DEPTHS)), NORMWISE].mean(0)
    (low, next_), (before, high) = NORMS[:2], NORMS[-2:]
    first, last = means[1] / means[0], means[-1] / means[-2]
    return (
        f"After {max(DEPTHS)} layers the mean error grows x {first:.2g} from a norm of {low:g} to "
        f"{next_:g} and x {last:.2g} from {before:g} to {high:g}, where it is {means[-1]:.2g} of "
        "the result (normwise)."
    )


def judge_grows(errors: np.ndarray, seed: int) -> StudyVerdict:
    """Judge whether the error grows with the norm at every depth."""
    found = {depth: slope(errors, depth, RANGES[0], seed) for depth in DEPTHS}
    numbers = ", ".join(f"{power} at {depth} layers" for depth, power in found.items())
    return StudyVerdict(
        claim=STUDY.claim,
        word=each(above(power, 0) for power in found.values()),
        number=found[max(DEPTHS)].value,
        said=(
            f"the mean normwise error follows the power {numbers} of the norm from {RANGES[0][0]} "
            f"to {RANGES[0][1]}; above 0 was asked for (mean of {len(errors)} draws)"
        ),
    )


def judge_degrees(errors: np.ndarray, seed: int) -> StudyVerdict:
    """Judge whether the power is about 1 at ten layers and about 2 at twenty.

    The power itself grows with the norm, so two ranges enclose it: the claim holds if both surely
    agree with it, fails if what they enclose is surely away from it, and else depends on where one
    reads it, or on the draws.
    """
    powers = {depth: [slope(errors, depth, ends, seed) for ends in RANGES] for depth in EXPECTED}
    met = each(
        within(power, asked - NEAR, asked + NEAR)
        for depth, asked in EXPECTED.items()
        for power in powers[depth]
    )
    away = any(
        all(power.high < asked - NEAR for power in powers[depth])
        or all(power.low > asked + NEAR for power in powers[depth])
        for depth, asked in EXPECTED.items()
    )
    numbers = "; ".join(
        f"{powers[10][index]} and {powers[20][index]} for norms from {low} to {high}"
        for index, (low, high) in enumerate(RANGES)
    )
    return StudyVerdict(
        claim="The growth is about linear at 10 layers and about quadratic at 20.",
        word=decide(holds=met == "holds", fails=away),
        number=powers[20][1].value,
        said=f"powers at 10 and 20 layers: {numbers}; within {NEAR:g} of 1 and of 2 was asked for "
        "in both ranges. The power itself grows with the norm",
    )


STUDY = Study(
    name="rounding-norm",
    title="Rounding error by spectral norm",
    source="budzinskiy25, Figure 2 and conclusion 2",
    claim="The rounding error grows with the spectral norm of W_k^T W_q, as a power of it.",
    cost="1 minute",
    draws=1000,
    scale=random_networks(DEPTHS[-1], ENSEMBLE.width),
    run=run,
    fast={"draws": 200},
    **study_options("rounding-norm"),
)
