"""Stochastic rounding, the source's future work: bound and bias against rounding to nearest."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.figure1_depth import ENSEMBLE
from layerlab.studies.budzinskiy25.support.random_transformers import NORMWISE
from layerlab.studies.budzinskiy25.support.reference_transformer import block, errors
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact, Strict
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import bootstrap, line, ratio_of_medians, summary, table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import below, decide

MODES = ("nearest", "stochastic")
LENGTHS = (4, 16, 64, 256, 1024, 4096)
# With which probability the bound of stochastic rounding may fail.
CHANCE = 0.05
# How often one attention block is computed anew on the same numbers, to see the mean error.
REPEATS = 16
STANDARD_ERRORS = 3.0


def errors_of_sums(draw: Sampler, mode: str, digits: int) -> dict[str, Tensor]:
    """Return, for one batch, signed relative errors of sums of positive products."""
    strict = Strict(digits, mode, draw.generator, carrier=torch.float64)
    x, y = (strict.take(draw.uniform(1, max(LENGTHS))) for _ in range(2))
    exact = (x * y).cumsum(-1)
    total, found = torch.zeros_like(x[:, :, :1]), []
    for index in range(max(LENGTHS)):
        term = strict.multiply(x[:, :, index : index + 1], y[:, :, index : index + 1])
        total = strict.add(total, term)
        if index + 1 in LENGTHS:
            truth = exact[:, 0, index]
            found.append((total[:, 0, 0] - truth) / truth)
    return {"errors": torch.stack(found, 1)}


def repeat(draw: Sampler, mode: str, digits: int, norm: str) -> dict[str, Tensor]:
    """Return, for one batch, the error of one block, and of its mean over repeats."""
    strict = Strict(digits, mode, draw.generator, carrier=torch.float64)
    x, exact = strict.take(ENSEMBLE.start(draw)), Exact()
    weights = ENSEMBLE.weights(draw).convert(strict)
    truth = block(exact, x, weights, norm)  # type: ignore[arg-type]
    runs = [block(strict, x, weights, norm) for _ in range(REPEATS)]  # type: ignore[arg-type]
    mean = torch.stack(runs).mean(0)
    return {
        "single": errors(runs[0], truth)[:, NORMWISE],
        "mean": errors(mean, truth)[:, NORMWISE],
    }


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    digits, norm = context.options["digits"], context.options["norm"]
    sums = context.sample(errors_of_sums, [{"mode": m, "digits": digits} for m in MODES], batch=256)
    blocks = context.sample(
        repeat, [{"mode": m, "digits": digits, "norm": norm} for m in MODES], batch=32
    )
    signed = {mode: part["errors"] for mode, part in zip(MODES, sums, strict=True)}
    rows: list[dict[str, Any]] = [
        {
            **summary(np.abs(signed[mode][:, index]), {"mode": mode, "terms": length}),
            "bias": float(signed[mode][:, index].mean()),
            "standard_error": float(signed[mode][:, index].std(ddof=1) / len(signed[mode]) ** 0.5),
            "bound": bounds(length, digits)[mode],
        }
        for mode in MODES
        for index, length in enumerate(LENGTHS)
    ]
    kept = {mode: part for mode, part in zip(MODES, blocks, strict=True)}
    block_rows = [
        summary(kept[mode][what], {"mode": mode, "error of": what})
        for mode in MODES
        for what in ("single", "mean")
    ]
    return Outcome(
        verdicts=(
            judge_shorter(signed, digits, context.seed),
            judge_unbiased(signed),
            judge_averaged(kept, context.seed),
        ),
        frames={"sums": table(rows), "blocks": table(block_rows)},
        pictures=(plot_means(signed, digits),),
    )


def bounds(terms: int, digits: int) -> dict[str, float]:
    """Return both bounds on the relative error of a sum of positive products.

    To nearest it is (1 + u)^n - 1 with u = 2^-t. Stochastic, with probability 1 - CHANCE, it is
    sqrt(((1 + u^2)^n - 1) / CHANCE): each factor 1 + delta has the mean 1 given those before it.
    Its two values are 2u apart at most, and chosen with p and 1 - p, so that its variance is p (1 -
    p) (2u)^2 <= u^2, that of the product of n at most (1 + u^2)^n - 1, and Chebyshev's inequality
    gives the rest.
    """
    unit = 2.0**-digits
    return {
        "nearest": float(np.expm1(terms * np.log1p(unit))),
        "stochastic": float(np.sqrt(np.expm1(terms * np.log1p(unit**2)) / CHANCE)),
    }


def judge_shorter(signed: dict[str, np.ndarray], digits: int, seed: int) -> StudyVerdict:
    """Judge the error's growth with the number of terms, and whether the bound is tighter."""
    lengths = np.log(LENGTHS)

    def power(draws: np.ndarray) -> float:
        return line(lengths, np.log(np.abs(draws).mean(0))).slope

    found = {mode: bootstrap(draws, power, seed) for mode, draws in signed.items()}
    final = {mode: np.abs(draws[:, -1]) for mode, draws in signed.items()}
    limit = bounds(LENGTHS[-1], digits)
    inside = float((final["stochastic"] <= limit["stochastic"]).mean())
    gain = limit["nearest"] / limit["stochastic"]
    # The bound is a promise of 1 - CHANCE: fewer draws inside would refute it.
    kept = inside >= 1 - CHANCE
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(holds=kept and gain > 1),
        number=gain,
        said=(
            f"for {LENGTHS[-1]} terms at {digits} digits the bound of stochastic rounding is "
            f"{limit['stochastic']:.3g} and holds in {inside:.1%} of the draws, of which "
            f"{1 - CHANCE:.0%} were asked for; it is {gain:.3g} times below "
            f"{limit['nearest']:.3g} for nearest; mean errors {final['stochastic'].mean():.2g} "
            f"and {final['nearest'].mean():.2g}, growing with the powers {found['stochastic']} "
            f"and {found['nearest']} of the number of terms"
        ),
    )


def judge_unbiased(signed: dict[str, np.ndarray]) -> StudyVerdict:
    """Judge the mean signed error of the longest sum, in its standard errors."""
    scores = {
        mode: float(draws[:, -1].mean() / (draws[:, -1].std(ddof=1) / len(draws) ** 0.5))
        for mode, draws in signed.items()
    }
    means = {mode: float(draws[:, -1].mean()) for mode, draws in signed.items()}
    clean = abs(scores["stochastic"]) <= STANDARD_ERRORS
    biased = abs(scores["nearest"]) > STANDARD_ERRORS
    return StudyVerdict(
        claim="Stochastic rounding has no bias in long sums of positive terms, nearest has one.",
        word=decide(holds=clean and biased, fails=not clean),
        number=scores["stochastic"],
        said=(
            f"mean signed error of {LENGTHS[-1]} terms: stochastic {means['stochastic']:.2g} "
            f"({scores['stochastic']:.1f} standard errors), nearest {means['nearest']:.2g} "
            f"({scores['nearest']:.1f}); up to {STANDARD_ERRORS:g} standard errors, which chance "
            "passes once in 370 times, are no bias"
        ),
    )


def judge_averaged(blocks: dict[str, dict[str, np.ndarray]], seed: int) -> StudyVerdict:
    """Judge whether stochastic rounding makes one block, whose sums are short, more accurate."""
    pair = np.stack([blocks[mode]["single"] for mode in ("stochastic", "nearest")], 1)
    found = bootstrap(pair, ratio_of_medians, seed)
    left = float(
        np.median(blocks["stochastic"]["mean"]) / np.median(blocks["stochastic"]["single"])
    )
    return StudyVerdict(
        scale=random_networks(1, ENSEMBLE.width),
        claim="One block of width 20 is more accurate under stochastic rounding.",
        word=below(found, 1),
        number=found.value,
        said=(
            f"its median normwise error is {found} times that of nearest, and below 1 was asked "
            f"for; the mean of {REPEATS} stochastic runs keeps {left:.2f} of it "
            f"({REPEATS**-0.5:.2f} if they were independent)"
        ),
    )


def plot_means(signed: dict[str, np.ndarray], digits: int) -> Any:
    """Plot the mean error over the number of terms, with both bounds."""
    lines = [
        Curve(
            name=mode,
            x=LENGTHS,
            y=[float(n) for n in np.abs(signed[mode]).mean(0)],
            kind=kind,
        )
        for kind, mode in enumerate(MODES)
    ]
    lines += [
        Curve(
            name=f"{mode}: {'worst case' if mode == 'nearest' else 'bound of 95 % of the draws'}",
            x=LENGTHS,
            y=[bounds(length, digits)[mode] for length in LENGTHS],
            kind=kind,
            style="dash",
        )
        for kind, mode in enumerate(MODES)
    ]
    title = "Mean error of a sum of positive products; dashed: bounds"
    return curves("sums", title, lines, x="terms", y="relative error", log="xy")


STUDY = Study(
    name="stochastic",
    title="Stochastic rounding",
    source="budzinskiy25, future work; croci22; the design is own",
    claim="Stochastic rounding has a tighter bound on long sums than the worst case of nearest.",
    cost="20 seconds",
    draws=1000,
    scale="sums of up to 4,096 random terms",
    run=run,
    fast={"draws": 200},
    **study_options("stochastic"),
)
