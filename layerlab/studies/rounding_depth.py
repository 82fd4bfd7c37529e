"""Figure 1 of budzinskiy25: how rounding errors grow with the depth of a Transformer."""

import numpy as np
import pandas as pd
from torch import Tensor

from layerlab.domain import Domain
from layerlab.studies.ensemble import NAMES, NORMWISE, Ensemble, by_layer, last, stack_errors
from layerlab.studies.picture import Curve, curves, histogram
from layerlab.studies.statistic import Interval, bins, line, resampled
from layerlab.studies.study import Outcome, Picture, Study, Verdict
from layerlab.studies.work import Draw, Work

DIGITS = (11, 16, 24)
SIZE = 20
ENSEMBLE = Ensemble(
    width=SIZE, tokens=SIZE, inner=SIZE, attention=1.0, feedforward=SIZE**-0.5, conditioned=True
)
# Above this the result has no correct digit to lose: growth can be read below it only.
SATURATED = 0.1
# "Several orders of magnitude", read as the least that the plural allows.
ORDERS = 2.0
# A mean that is this much above the median belongs to few draws.
FAR = 3.0
ABOUT = (
    f"The median is far below the mean where the mean is more than {FAR:g} times as large: few "
    f"draws then make it. 'Several orders of magnitude' are {ORDERS:g}, the least that the plural "
    "allows, and 'most' is more than half."
)


def one(draw: Draw, norm: str, layers: int) -> dict[str, Tensor]:
    """One batch: errors after each block."""
    return {"errors": stack_errors(draw, ENSEMBLE, DIGITS, layers, norm)}  # type: ignore[arg-type]


def run(work: Work) -> Outcome:
    """Compute, judge and draw."""
    errors = work.gather(one, [dict(work.options)])[0]["errors"]
    table = by_layer(errors, DIGITS)
    judged = max(range(len(DIGITS)), key=lambda place: DIGITS[place])
    tail = errors[:, :, judged, NORMWISE]
    return Outcome(
        verdicts=(growth(tail, work.seed), spread(tail, work.seed), rare(tail)),
        frames={"layers": table, "draws": last(errors, DIGITS)},
        pictures=(*lines(table), heap(errors)),
        remarks=(*saturation(table), ABOUT),
    )


def growth(errors: np.ndarray, seed: int) -> Verdict:
    """Whether the mean error is closer to an exponential of the depth than to a power of it."""
    layers = np.arange(1, errors.shape[1] + 1)

    def advantage(draws: np.ndarray) -> float:
        logs = np.log(draws.mean(0))
        return line(layers, logs).explained - line(np.log(layers), logs).explained

    found = resampled(errors, advantage, seed)
    factor = resampled(errors, lambda draws: float(np.exp(slope(layers, draws))), seed)
    power = line(np.log(layers), np.log(errors.mean(0)))
    early, late = halves(errors)
    return Verdict(
        claim=STUDY.claim,
        word="holds" if found.low > 0 else "fails" if found.high < 0 else "not decided",
        number=factor.value,
        said=(
            f"x {factor} per layer over {len(layers)} layers (normwise, {DIGITS[-1]} digits, mean "
            f"of {len(errors)} draws), but x {early:.3g} in the first half and x {late:.3g} in the "
            f"second; an exponential explains {line(layers, np.log(errors.mean(0))).explained:.3f} "
            f"of the variance of the log error, the power {power.slope:.2f} of the depth "
            f"{power.explained:.3f} (difference {found}; above 0 was asked for)"
        ),
    )


def slope(layers: np.ndarray, errors: np.ndarray) -> float:
    """Growth of the logarithm of the mean per layer."""
    return line(layers, np.log(errors.mean(0))).slope


def halves(errors: np.ndarray) -> tuple[float, float]:
    """The factor per layer in the first and in the second half of the depth."""
    count = errors.shape[1]
    layers, half = np.arange(1, count + 1), max(2, count // 2)
    return (
        float(np.exp(slope(layers[:half], errors[:, :half]))),
        float(np.exp(slope(layers[-half:], errors[:, -half:]))),
    )


def spread(errors: np.ndarray, seed: int) -> Verdict:
    """How far the median stays below the mean."""

    def ratio(draws: np.ndarray) -> float:
        return float(draws[:, -1].mean() / np.median(draws[:, -1]))

    found: Interval = resampled(errors, ratio, seed)
    return Verdict(
        claim="The median error is far below the mean: large errors are rare.",
        word="holds" if found.low > FAR else "fails" if found.high < FAR else "not decided",
        number=found.value,
        said=f"mean / median after the last layer is {found}, and above {FAR:g} was asked for "
        f"(normwise, {DIGITS[-1]} digits)",
    )


def rare(errors: np.ndarray) -> Verdict:
    """Which share of the draws lies orders of magnitude below the mean."""
    final = errors[:, -1]
    mean = final.mean()
    below, far = float((final < mean).mean()), float((final < mean / 10**ORDERS).mean())
    one_order = float((final < mean / 10).mean())
    return Verdict(
        claim="Most errors of the last layer are several orders of magnitude below their mean.",
        word="holds" if far > 0.5 else "fails",
        number=far,
        said=(
            f"{below:.0%} of the draws lie below the mean, {one_order:.0%} at least one order of "
            f"magnitude and {far:.0%} at least two, where more than half was asked for (normwise, "
            f"{DIGITS[-1]} digits)"
        ),
    )


def lines(table: pd.DataFrame) -> list[Picture]:
    """The upper row of the figure, means, and the lower one, medians with 5 to 95 %."""
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
    """The histogram of the last layer, with the means as vertical lines."""
    final = errors[:, -1, :, NORMWISE]
    return histogram(
        "histogram",
        "Errors of the last layer; dashed: their mean",
        {f"{digits} digits": bins(final[:, place]) for place, digits in enumerate(DIGITS)},
        {f"{digits} digits": float(final[:, place].mean()) for place, digits in enumerate(DIGITS)},
        "relative error, normwise",
    )


def saturation(table: pd.DataFrame) -> list[str]:
    """From which layer on a precision has no correct digit left."""
    found = []
    for digits in DIGITS:
        rows = table[(table["digits"] == digits) & (table["statistic"] == NAMES[NORMWISE])]
        over = rows[rows["mean"] > SATURATED]["layer"]
        if len(over):
            found.append(
                f"With {digits} digits the mean error is above {SATURATED:g} from layer "
                f"{over.iloc[0]} on: growth is judged at {DIGITS[-1]} digits."
            )
    return found


STUDY = Study(
    name="rounding-depth",
    title="Rounding error by depth",
    source="budzinskiy25, Figure 1 and conclusion 1",
    claim="The mean relative rounding error grows nearly exponentially with depth.",
    cost="75 seconds",
    draws=5000,
    run=run,
    fast={"draws": 300},
    options={"norm": "layer", "layers": 40},
    domains={
        "norm": Domain(kind=str, choices=("layer", "rms")),
        "layers": Domain(kind=int, least=4, most=200),
    },
)
STUDIES = (STUDY,)
