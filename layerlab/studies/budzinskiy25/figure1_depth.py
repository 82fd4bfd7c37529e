"""Figure 1 of budzinskiy25: how rounding errors grow with the depth of a Transformer."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.support.random_transformers import (
    MAX,
    NORMWISE,
    Ensemble,
    by_layer,
    last,
    stack_errors,
)
from layerlab.studies.engine.pictures import Curve, curves, histogram
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import (
    Interval,
    LineFit,
    bins,
    bootstrap,
    bootstrap_each,
    describe_intervals,
    line,
    mean,
    median,
    resting,
)
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, combine

# The last are so many that no error comes near the size of the result, whatever the draw.
DIGITS = (11, 16, 24, 40)
FINE = len(DIGITS) - 1
# Draws of the coarser ones are in the table by layers alone.
KEPT = 2
# What the source may mean by a relative error: it does not say. Of the matrix, or of its worst
# component, as its theory has it.
READINGS = {"normwise": NORMWISE, "rho_c": MAX}
SIZE = 20
ENSEMBLE = Ensemble(
    width=SIZE, tokens=SIZE, inner=SIZE, attention=1.0, feedforward=SIZE**-0.5, conditioned=True
)
# Above this the result has no correct digit to lose: growth is read where no draw is.
SATURATED = 0.1
# "Several orders of magnitude", read as the least that the plural allows.
ORDERS = 2.0
# A mean that is this much above the median belongs to few draws.
FAR = 3.0
# Of draws: a mean that rests on fewer is that of another few in the next study of as many draws.
FEW = 30.0
ABOUT = (
    "The source does not say which relative error it shows: normwise is that of the matrix, rho_c "
    "the largest of its components, as in its theorems. A word is said where both say it, and of a "
    f"mean where it rests on at least {FEW:g} draws, (sum x)^2 / sum x^2: resampling does not know "
    "of the larger ones that were not drawn. That was asked for after a look at the numbers. "
    f"The median is far below the mean where the mean is more than {FAR:g} times as large: few "
    f"draws then make it. 'Several orders of magnitude' are {ORDERS:g}, the least that the plural "
    "allows, and 'most' is more than half."
)


DepthErrors = Mapping[str, np.ndarray]


def one(draw: Sampler, norm: str, layers: int) -> dict[str, Tensor]:
    """Return the errors after each block, for one batch."""
    return {"errors": stack_errors(draw, ENSEMBLE, DIGITS, layers, norm)}  # type: ignore[arg-type]


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    errors = context.sample(one, [dict(context.options)])[0]["errors"]
    table = by_layer(errors, DIGITS)
    fine = {name: errors[:, :, FINE, index] for name, index in READINGS.items()}
    return Outcome(
        verdicts=(
            judge_growth(fine, mean, STUDY.claim, context.seed),
            judge_growth(
                fine, median, "The median error grows nearly exponentially as well.", context.seed
            ),
            judge_spread(fine, context.seed),
            judge_rare(fine, context.seed),
        ),
        frames={"layers": table, "draws": last(errors[:, :, KEPT:], DIGITS[KEPT:])},
        pictures=(*lines(table), heap(errors)),
        remarks=(*saturation(errors), ABOUT),
    )


def judge_growth(
    errors: DepthErrors, reduce: Callable[[np.ndarray], np.ndarray], claim: str, seed: int
) -> StudyVerdict:
    """Judge whether an error is closer to an exponential of the depth than to a power of it."""

    def advantage(draws: np.ndarray) -> float:
        return fits(reduce(draws))[0].explained - fits(reduce(draws))[1].explained

    found = bootstrap_each(errors, advantage, seed, comparisons=1)
    factor = bootstrap(
        errors["normwise"], lambda draws: float(np.exp(fits(reduce(draws))[0].slope)), seed
    )
    numbers = "; ".join(_grow(name, reduce(draws), found[name]) for name, draws in errors.items())
    rests = describe_resting(errors) if reduce is mean else ""
    count, depth = errors["normwise"].shape
    return StudyVerdict(
        claim=claim,
        word="not decided" if rests else combine(above(one, 0) for one in found.values()),
        number=factor.value,
        said=f"x {factor} per layer over {depth} layers (normwise, {DIGITS[FINE]} digits, "
        f"{reduce.__name__} of {count} draws). {numbers}; above 0 was asked for{rests}",
        looked=reduce is mean,
    )


def _grow(name: str, errors: np.ndarray, advantage: Interval) -> str:
    """Describe how much an error grows in each half of the depth, and which curve explains it."""
    early, late = halves(errors)
    exponential, power = fits(errors)
    return (
        f"{name}: x {early:.3g} in the first half and x {late:.3g} in the second; of the log error "
        f"an exponential explains {exponential.explained:.3f}, the power {power.slope:.2f} of the "
        f"depth {power.explained:.3f}, a difference of {advantage}"
    )


def fits(errors: np.ndarray) -> tuple[LineFit, LineFit]:
    """Fit the logarithm of an error by layer, and by the logarithm of the layer."""
    layers, logs = np.arange(1, len(errors) + 1), np.log(errors)
    return line(layers, logs), line(np.log(layers), logs)


def halves(errors: np.ndarray) -> tuple[float, float]:
    """Return the factor per layer in the first and in the second half of the depth."""
    half = max(2, len(errors) // 2)
    parts = (fits(errors[:half]), fits(errors[-half:]))
    return float(np.exp(parts[0][0].slope)), float(np.exp(parts[1][0].slope))


def judge_spread(errors: DepthErrors, seed: int) -> StudyVerdict:
    """Judge how far the median stays below the mean."""

    def ratio(draws: np.ndarray) -> float:
        return float(draws.mean() / np.median(draws))

    found = {name: bootstrap(draws[:, -1], ratio, seed) for name, draws in errors.items()}
    numbers = describe_intervals(found)
    return StudyVerdict(
        claim="The median error is far below the mean: large errors are rare.",
        word=combine(above(one, FAR, 1) for one in found.values()),
        number=found["normwise"].value,
        said=(
            f"mean / median after the last layer is {numbers}, and above {FAR:g} was "
            f"asked for ({DIGITS[FINE]} digits)"
        ),
    )


def judge_rare(errors: DepthErrors, seed: int) -> StudyVerdict:
    """Judge what share of the draws lies orders of magnitude below the mean."""

    def share(draws: np.ndarray) -> float:
        return float((draws < draws.mean() / 10**ORDERS).mean())

    found = {name: bootstrap(draws[:, -1], share, seed) for name, draws in errors.items()}
    numbers, rests = describe_intervals(found), describe_resting(errors)
    final = errors["normwise"][:, -1]
    below, one_order = (float((final < final.mean() / size).mean()) for size in (1, 10))
    return StudyVerdict(
        claim="Most errors of the last layer are several orders of magnitude below their mean.",
        word="not decided" if rests else combine(above(one, 0.5) for one in found.values()),
        number=found["normwise"].value,
        said=(
            f"a share of {numbers} of the draws lies at least two orders of magnitude "
            f"below the mean, where more than half was asked for ({DIGITS[FINE]} digits); normwise "
            f"{below:.0%} lie below it and {one_order:.0%} at least one order{rests}"
        ),
        looked=True,
    )


def describe_resting(errors: DepthErrors) -> str:
    """Describe on how few draws the means after the last layer rest; empty if on enough."""
    found = {name: resting(draws[:, -1]) for name, draws in errors.items()}
    if min(found.values()) >= FEW:
        return ""
    numbers = " and ".join(f"{draws:.2g} draws ({name})" for name, draws in found.items())
    return f". The mean rests on {numbers}, and on at least {FEW:g} it has to before it decides"


def lines(table: pd.DataFrame) -> list[Picture]:
    """Draw the upper row of the figure, means, and the lower one, medians with 5 to 95 %."""
    kept = table[table["statistic"] == "normwise"]
    means, medians = [], []
    for kind, digits in enumerate(DIGITS):
        rows = kept[kept["digits"] == digits]
        x, name = rows["layer"].tolist(), f"{digits} digits"
        means.append(Curve(name=name, x=x, y=rows["mean"].tolist(), kind=kind))
        medians.append(
            Curve(
                name=name,
                x=x,
                y=rows["median"].tolist(),
                kind=kind,
                low=rows["p5"].tolist(),
                high=rows["p95"].tolist(),
            )
        )
    shared = {"x": "layer", "y": "relative error, normwise"}
    return [
        curves("mean", "Mean error by layer", means, **shared),
        curves("median", "Median error by layer, 5 to 95 % shaded", medians, **shared),
    ]


def heap(errors: np.ndarray) -> Picture:
    """Draw the histogram of the last layer, with the means as vertical lines."""
    final = errors[:, -1, :, NORMWISE]
    return histogram(
        "histogram",
        "Errors of the last layer; dashed: their mean",
        {f"{digits} digits": bins(final[:, index]) for index, digits in enumerate(DIGITS)},
        {f"{digits} digits": float(final[:, index].mean()) for index, digits in enumerate(DIGITS)},
        "relative error, normwise",
    )


def saturation(errors: np.ndarray) -> list[str]:
    """Report how much of the mean belongs to draws that have no correct digit left."""
    found = []
    most = errors[:, -1, FINE, NORMWISE].max()
    for index, digits in enumerate(DIGITS[:FINE]):
        final = errors[:, -1, index, NORMWISE]
        over = final > SATURATED
        if over.any():
            found.append(
                f"With {digits} digits {over.mean():.1%} of the draws are above {SATURATED:g} "
                f"after the last layer, and make {final[over].sum() / final.sum():.0%} of the mean "
                f"(normwise): growth is judged at {DIGITS[FINE]} digits, where none is above "
                f"{most:.2g}."
            )
    return found


STUDY = Study(
    name="rounding-depth",
    title="Rounding error by depth",
    source="budzinskiy25, Figure 1 and conclusion 1",
    claim="The mean relative rounding error grows nearly exponentially with depth.",
    cost="3 minutes",
    draws=5000,
    scale=random_networks("{layers}", SIZE),
    run=run,
    fast={"draws": 300},
    **study_options("rounding-depth"),
)
