"""Figure 4 of budzinskiy25: rounding errors against where the norm of the attention stands."""

import numpy as np
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.support.random_transformers import (
    NORMWISE,
    Ensemble,
    by_layer,
    plot_errors,
    stack_errors,
)
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import above

PLACEMENTS = {
    "pre": "x + A(N(x))",
    "branch": "x + N(A(x))",
    "sum": "N(x + A(x))",
    "post": "N(x + A(x)), then N(x + M(x))",
}
SIZE = 10
# What "sharp" is taken for: a decimal digit more is lost than in pre-norm, at the end.
SHARP = 10.0


def one(
    draw: Sampler, placement: str, norm: str, layers: int, digits: int, variance: float
) -> dict[str, Tensor]:
    """Return the errors after each block, for one batch."""
    ensemble = Ensemble(
        width=SIZE,
        tokens=SIZE,
        inner=SIZE,
        attention=variance**0.5,
        feedforward=variance**0.5,
    )
    found = stack_errors(draw, ensemble, [digits], layers, norm, placement)  # type: ignore[arg-type]
    return {"errors": found}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases = [{"placement": name, **context.options} for name in PLACEMENTS]
    parts = context.sample(one, cases, batch=256)
    errors = {name: part["errors"] for name, part in zip(PLACEMENTS, parts, strict=True)}
    digits = [context.options["digits"]]
    frames = [by_layer(found, digits, placement=name) for name, found in errors.items()]
    joined = frames[0].__class__(
        {column: np.concatenate([one_[column] for one_ in frames]) for column in frames[0]}
    )
    final = {name: found[:, :, 0, NORMWISE] for name, found in errors.items()}
    return Outcome(
        verdicts=(
            judge(STUDY.claim, "branch", final, context.seed),
            judge(
                "Errors accumulate sharply with the norm behind the sum, N(x + A(x)), too.",
                "sum",
                final,
                context.seed,
            ),
            judge(
                "Errors accumulate sharply in post-norm as such, with both norms behind their "
                "sums, too.",
                "post",
                final,
                context.seed,
            ),
        ),
        frames={"layers": joined},
        pictures=plot_errors(
            {PLACEMENTS[name]: found for name, found in final.items()},
            range(1, context.options["layers"] + 1),
            "layer",
            x="layer",
        ),
        remarks=(
            "The source says 'the norm after self-attention', which can be read in two ways; the "
            "feed-forward is x + M(N(x)) in all but the last, so that one thing differs.",
            f"'Sharply' is taken for more than {SHARP:g} times the error of pre-norm: a decimal "
            "digit more is lost.",
        ),
    )


def judge(claim: str, placement: str, errors: dict[str, np.ndarray], seed: int) -> StudyVerdict:
    """Judge how far one placement lies above pre-norm after the last layer."""
    pair = np.stack([errors[placement][:, -1], errors["pre"][:, -1]], 1)

    def ratio(draws: np.ndarray) -> float:
        return float(draws[:, 0].mean() / draws[:, 1].mean())

    found: Interval = bootstrap(pair, ratio, seed)
    means, medians = pair.mean(0), np.median(pair, axis=0)
    return StudyVerdict(
        claim=claim,
        word=above(found, SHARP, 1),
        number=found.value,
        said=(
            f"{PLACEMENTS[placement]} has {found} times the mean error of {PLACEMENTS['pre']} "
            f"after {errors['pre'].shape[1]} layers, and above {SHARP:g} was asked for: "
            f"{means[0]:.2g} against {means[1]:.2g}, medians {medians[0]:.2g} and "
            f"{medians[1]:.2g} (normwise, {len(pair)} draws)"
        ),
    )


STUDY = Study(
    name="rounding-placement",
    title="Rounding error by placement of the norm",
    source="budzinskiy25, Figure 4 and conclusion 4",
    claim="With the norm after the attention, x + N(A(x)), errors accumulate sharply with depth; "
    "before it they do not.",
    cost="15 seconds",
    draws=1000,
    scale=random_networks("{layers}", SIZE),
    run=run,
    fast={"draws": 200},
    **study_options("rounding-placement"),
)
