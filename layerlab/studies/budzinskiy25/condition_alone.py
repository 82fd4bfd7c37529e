"""Effect of the condition number of W_k^T W_q alone, at a fixed norm, on rounding errors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.support.random_transformers import (
    NORMWISE,
    Ensemble,
    stack_errors,
)
from layerlab.studies.budzinskiy25.support.reference_transformer import Weights
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import (
    Interval,
    bootstrap_each,
    ratio_of_medians,
    summary,
    table,
)
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, each

CONDITIONS = (1.0, 1e1, 1e2, 1e4, 1e8)
DEPTHS = (1, 4, 8)
DIGITS = (11, 16)
SIZE = 20
ENSEMBLE = Ensemble(width=SIZE, tokens=SIZE, inner=SIZE, attention=1.0, feedforward=SIZE**-0.5)
# The norms of a product of two matrices with entries N(0, 1/d) are about these, at d = 20.
NORMS = {"frobenius": SIZE**0.5, "spectral": 3.0}
# An effect that anybody would act on; the bound promises a factor of 1e8.
EFFECT = 2.0


def set_condition(draw: Sampler, weights: Weights, condition: float, fixed: str) -> Weights:
    """Return weights whose W_k^T W_q has this condition number and a norm of `NORMS`.

    The singular vectors are random, the singular values geometric between 1 and 1 / condition.
    """
    left, right = (torch.linalg.qr(draw.normal(SIZE, SIZE)).Q for _ in range(2))
    values = torch.logspace(0, -float(np.log10(condition)), SIZE, dtype=torch.float64)
    size = values.norm() if fixed == "frobenius" else values.max()
    root = (values * NORMS[fixed] / size).sqrt()[:, None]
    return Weights(
        query=root * right.mT,
        key=root * left.mT,
        value=weights.value,
        inner=weights.inner,
        outer=weights.outer,
    )


def one(draw: Sampler, condition: float, fixed: str, norm: str) -> dict[str, Tensor]:
    """Return the errors at some depths, for one batch."""
    found = stack_errors(
        draw,
        ENSEMBLE,
        DIGITS,
        max(DEPTHS),
        norm,  # type: ignore[arg-type]
        changed=lambda weights: set_condition(draw, weights, condition, fixed),
    )
    return {"errors": found[:, [depth - 1 for depth in DEPTHS], :, NORMWISE]}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases: list[dict[str, Any]] = [
        {"condition": condition, "fixed": fixed, **context.options}
        for fixed in NORMS
        for condition in CONDITIONS
    ]
    parts = [part["errors"] for part in context.sample(one, cases)]
    # fixed -> draw x condition x depth x digits
    errors = {
        fixed: np.stack(parts[index * len(CONDITIONS) : (index + 1) * len(CONDITIONS)], axis=1)
        for index, fixed in enumerate(NORMS)
    }
    rows = [
        summary(
            errors[fixed][:, index, depth, digit],
            {
                "fixed": fixed,
                "digits": DIGITS[digit],
                "layers": DEPTHS[depth],
                "condition": condition,
            },
        )
        for fixed in NORMS
        for digit in range(len(DIGITS))
        for depth in range(len(DEPTHS))
        for index, condition in enumerate(CONDITIONS)
    ]
    return Outcome(
        verdicts=(judge(errors, context.seed),),
        frames={"conditions": table(rows)},
        pictures=tuple(plot(errors)),
    )


def judge(errors: dict[str, np.ndarray], seed: int) -> StudyVerdict:
    """Judge the largest effect of the condition number over norms, depths and digits."""
    pairs = {
        (fixed, layers, digits): found[:, [-1, 0], depth, digit]
        for fixed, found in errors.items()
        for depth, layers in enumerate(DEPTHS)
        for digit, digits in enumerate(DIGITS)
    }
    effects, compared = bootstrap_each(pairs, ratio_of_medians, seed), len(pairs)
    largest = max(effects, key=lambda key: effects[key].value)
    least = min(effects, key=lambda key: effects[key].value)
    return StudyVerdict(
        claim=STUDY.claim,
        word=each(above(effect, EFFECT, 1) for effect in effects.values()),
        number=effects[largest].value,
        said=(
            f"from condition 1 to 1e8 the median normwise error changes by a factor of "
            f"{_name_effect(least, effects)} to {_name_effect(largest, effects)}; an effect of "
            f"{EFFECT:g} was asked for in each of {compared} cases, of intervals that hold together"
        ),
    )


def _name_effect(key: tuple[str, int, int], effects: dict[tuple[str, int, int], Interval]) -> str:
    fixed, depth, digits = key
    layers = f"{depth} layer" if depth == 1 else f"{depth} layers"
    return f"{effects[key]} (fixed {fixed} norm, {layers}, {digits} digits)"


def plot(errors: dict[str, np.ndarray]) -> list[Picture]:
    """Plot the median error over the condition number, in a picture per fixed norm."""
    found = []
    for fixed, draws in errors.items():
        lines = [
            Curve(
                name=f"{depth} layers, {digits} digits",
                x=CONDITIONS,
                y=[float(n) for n in np.median(draws[:, :, index, digit], axis=0)],
                kind=index,
                style=("solid", "dash")[digit],
            )
            for index, depth in enumerate(DEPTHS)
            for digit, digits in enumerate(DIGITS)
        ]
        title = f"Median error by condition number, {fixed} norm fixed"
        x = "condition number of W_k^T W_q"
        y = "relative error, normwise"
        found.append(curves(fixed, title, lines, x=x, y=y, log="xy"))
    return found


STUDY = Study(
    name="condition-alone",
    title="The condition number of W_k^T W_q, alone",
    source="budzinskiy25, Theorem 4.30 and conclusion 2; the design is own",
    claim="At a fixed norm, a larger condition number of W_k^T W_q makes rounding errors larger.",
    cost="30 seconds",
    draws=1000,
    scale=random_networks(DEPTHS[-1], SIZE),
    run=run,
    fast={"draws": 200},
    **study_options("condition-alone"),
)
