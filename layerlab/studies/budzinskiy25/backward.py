"""The source's future work: how rounding errors of gradients grow on the way back."""

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.figure1_depth import ENSEMBLE
from layerlab.studies.budzinskiy25.support.random_transformers import NORMWISE, by_layer
from layerlab.studies.budzinskiy25.support.reference_backward import gradients
from layerlab.studies.budzinskiy25.support.reference_transformer import errors
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact, Strict
from layerlab.studies.engine.pictures import band, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap, line, ratio_of_medians
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above

WAYS = {"forward": "stream after the block", "backward": "gradient by the block's input"}


def one(draw: Sampler, norm: str, layers: int, digits: int) -> dict[str, Tensor]:
    """Return, for one batch, the errors of the streams and of the gradients on the way back.

    Gradients meet the same rounded streams; they are held in float64, as they may leave float32.
    """
    strict, exact = Strict(digits, carrier=torch.float64), Exact()
    start = strict.take(ENSEMBLE.start(draw))
    stack = [ENSEMBLE.weights(draw).convert(strict) for _ in range(layers)]
    last = strict.take(draw.normal(ENSEMBLE.tokens, ENSEMBLE.width))
    observed = gradients(strict, start, stack, last, norm)  # type: ignore[arg-type]
    truth = gradients(exact, start, stack, last, norm)  # type: ignore[arg-type]
    return {
        way: torch.stack(
            [errors(*pair) for pair in zip(observed[index], truth[index], strict=True)], 1
        )
        for index, way in enumerate(WAYS)
    }


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    found = context.sample(one, [dict(context.options)], batch=32)[0]
    digits = [context.options["digits"]]
    frames = {way: by_layer(found[way][:, :, None], digits) for way in WAYS}
    # Both in the order in which they are computed: blocks passed since the errors began.
    forward, back = found["forward"][:, :, NORMWISE], found["backward"][:, ::-1, NORMWISE]
    return Outcome(
        verdicts=(judge(forward, back, context.seed),),
        frames=frames,
        pictures=tuple(plot(forward, back)),
        remarks=(
            "Gradients are those of a random linear function of the result, by the input of each "
            "block; every operation of the way back is rounded, and it meets the rounded streams.",
        ),
    )


def judge(forward: np.ndarray, back: np.ndarray, seed: int) -> StudyVerdict:
    """Judge both errors' growth per block, and the first gradient's error against the result's."""
    blocks = np.arange(1, forward.shape[1] + 1)

    def growth(draws: np.ndarray) -> float:
        return float(np.exp(line(blocks, np.log(np.median(draws, axis=0))).slope))

    there = bootstrap(forward, growth, seed)
    here = bootstrap(back, growth, seed)
    both = np.stack([back[:, -1], forward[:, -1]], 1)
    end: Interval = bootstrap(both, ratio_of_medians, seed)
    return StudyVerdict(
        claim=STUDY.claim,
        word=above(end, 1),
        number=end.value,
        said=(
            f"after {len(blocks)} blocks the median normwise error of the gradient is {end} times "
            f"that of the result; it grows x {here} per block on the way back, x {there} on the "
            f"way forward ({len(forward)} draws); above 1 was asked for"
        ),
    )


def plot(forward: np.ndarray, back: np.ndarray) -> list[Picture]:
    """Plot the median and the 5 to 95 % range of both ways over the blocks passed."""
    blocks = list(range(1, forward.shape[1] + 1))
    lines = [
        band(f"{way}: {WAYS[way]}", blocks, np.percentile(draws, [5, 50, 95], axis=0), kind=kind)
        for kind, (way, draws) in enumerate({"forward": forward, "backward": back}.items())
    ]
    title = "Median error by blocks passed, 5 to 95 % shaded"
    return [curves("ways", title, lines, x="blocks passed", y="relative error, normwise")]


STUDY = Study(
    name="backward",
    title="Rounding error of gradients",
    source="budzinskiy25, future work; the design is own",
    claim="Gradients by early blocks carry larger rounding errors than the result itself.",
    cost="15 seconds",
    draws=1000,
    scale=random_networks("{layers}", ENSEMBLE.width),
    run=run,
    fast={"draws": 200},
    **study_options("backward"),
)
