"""Figure 3 of budzinskiy25: rounding errors of attention against the norm of its input."""

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.support.random_transformers import MAX, NAMES
from layerlab.studies.budzinskiy25.support.reference_transformer import Weights, attention, errors
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact, Strict
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import (
    Interval,
    bootstrap,
    line,
    mean_of_groups,
    summary,
    table,
)
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict, Word
from layerlab.studies.engine.verdict import within

NORMS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SIZE = 10
DEVIATION = 0.1
# Below, the rounding of the sums weighs more than that of the scores; above, one key has it all.
STEEP = (8, 32)
# Nearer to this power than to any other whole one.
NEAR = 0.5
# Of draws: the worst of each tenth is one number of ten.
GROUPS = 10


def one(draw: Sampler, norm: float, digits: int) -> dict[str, Tensor]:
    """Return the errors of one attention with identity matrices, for one batch."""
    x = draw.normal(SIZE, SIZE, mean=1.0, deviation=DEVIATION)
    x = x * (norm / x.norm(dim=-1).amax(-1))[:, None, None]
    identity = torch.eye(SIZE, dtype=torch.float64).expand(draw.count, SIZE, SIZE)
    weights = Weights(query=identity, key=identity, value=identity, inner=identity, outer=identity)
    strict, exact = Strict(digits), Exact()
    held = strict.take(x)
    observed = attention(strict, held, weights.convert(strict))
    truth = attention(exact, exact.take(held), weights.convert(exact))
    return {"errors": errors(observed, truth)}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    digits = context.options["digits"]
    cases = [{"norm": norm, "digits": digits} for norm in NORMS]
    # draw x norm x statistic, in units of the last digit
    found = np.stack([one_["errors"] for one_ in context.sample(one, cases, batch=256)], axis=1)
    units = found * 2.0**digits
    rows = [
        summary(units[:, index, statistic], {"norm": norm, "statistic": name})
        for statistic, name in enumerate(NAMES)
        for index, norm in enumerate(NORMS)
    ]
    worst, mean = units[:, :, MAX].max(0), units[:, :, MAX].mean(0)
    y = "largest relative error of a component, in units of roundoff"
    drawn = [
        Curve(name="worst draw", x=NORMS, y=worst.tolist(), kind=1),
        Curve(name="mean of the draws", x=NORMS, y=mean.tolist(), kind=0),
    ]
    return Outcome(
        verdicts=judge(units[:, :, MAX], context.seed),
        frames={"norms": table(rows)},
        pictures=(
            curves(
                "norms",
                "Error by norm of the input",
                drawn,
                x="largest norm of a token",
                y=y,
                log="xy",
            ),
        ),
        remarks=(
            f"'About quadratically' is a power within {NEAR:g} of 2: nearer to 2 than to any other "
            f"whole power. It is read from norms of {STEEP[0]} to {STEEP[1]}: below, the rounding "
            "of the sums weighs more than that of the scores; above, one key has all the weight.",
        ),
    )


def power(errors: np.ndarray) -> float:
    """Return the power of the norm that an error follows in the steep part."""
    places = [index for index, norm in enumerate(NORMS) if STEEP[0] <= norm <= STEEP[1]]
    return line(np.log([NORMS[index] for index in places]), np.log(errors[places])).slope


def judge(units: np.ndarray, seed: int) -> tuple[StudyVerdict, ...]:
    """Judge the power that the worst draw follows, and that of the mean."""
    groups = min(GROUPS, len(units))
    worst = mean_of_groups(units, lambda draws: power(draws.max(0)), groups)
    mean = bootstrap(units, lambda draws: power(draws.mean(0)), seed)
    listed = ", ".join(f"{value:.3g}" for value in units[:, NORMS.index(STEEP[0]) :].max(0))
    steep = f"norms from {STEEP[0]:g} to {STEEP[1]:g}"
    return (
        StudyVerdict(
            claim=STUDY.claim,
            word=quadratic(worst),
            number=worst.value,
            unit=f"{groups} groups of {len(units) // groups} random initialisations",
            said=(
                f"the worst of {len(units) // groups} draws follows the power {worst} of the norm, "
                f"{steep}, over {groups} such groups; the worst of all follows "
                f"{power(units.max(0)):.3g}: {listed} units of roundoff from norm {STEEP[0]} on, "
                f"doubling; within {NEAR:g} of 2 was asked for"
            ),
        ),
        StudyVerdict(
            claim="The mean error grows quadratically as well.",
            word=quadratic(mean),
            number=mean.value,
            said=f"the mean follows the power {mean} of the norm, {steep}; within {NEAR:g} of 2 "
            "was asked for",
        ),
    )


def quadratic(power: Interval) -> Word:
    """Judge whether a power is about 2."""
    return within(power, 2 - NEAR, 2 + NEAR)


STUDY = Study(
    name="rounding-input",
    title="Rounding error of attention by the norm of its input",
    source="budzinskiy25, Figure 3 and Remark 4.24",
    claim="The worst error of attention grows about quadratically with the norm of its input.",
    cost="3 seconds",
    draws=1000,
    scale=random_networks(1, SIZE),
    run=run,
    fast={"draws": 400},
    **study_options("rounding-input"),
)
