"""Feature collapse by depth in Llama-like models: trained ones, and deep ones at their start."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.engine.given_models import judge_one
from layerlab.studies.engine.pictures import curves, mean_band
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import below, decide
from layerlab.studies.support.feature_statistics import (
    DIMENSION,
    HALF,
    RESIDUAL,
    depths,
    warn_of_few,
)
from layerlab.studies.support.passages import PASSAGES, excerpts, get_model, overlap

TOKENS = 128
# Passages of one draw: together enough tokens to read a dimension at the width.
EACH = 4
SMALL = 0.02
QUANTITIES = ("relative residual", "d(0.8) / width")
TRAINED = ("llama", "pre-norm")
CLAIM = "The features of {model} collapse with depth: its tokens become alike."


def trained_depths(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return both quantities by layer in a trained model, for one batch."""
    ids = excerpts(draw, name, TOKENS, EACH).view(draw.count, EACH, TOKENS)
    return {"layers": torch.stack([depths(get_model(name, draw.given), one) for one in ids])}


def random_depths(draw: Sampler, layers: int, width: int) -> dict[str, Tensor]:
    """Return both quantities in random Llamas, with small and with ordinary matrices."""
    from layerlab.loading.model import load_model
    from layerlab.model.build import build

    ids = excerpts(draw.built_in, "llama", TOKENS, EACH).view(draw.count, EACH, TOKENS)
    seeds = torch.randint(2**31, (draw.count,), generator=draw.generator).tolist()
    small, ordinary = [], []
    for seed, one in zip(seeds, ids, strict=True):
        sizes: dict[str, Any] = {
            "width": width,
            "layers": layers,
            "heads": 4,
            "vocab": 512,
            "context": TOKENS,
        }
        found = load_model(build("llama", **sizes, seed=seed))
        small.append(depths(found, one))
        scale_weights(found.model, width**-0.5 / SMALL)
        ordinary.append(depths(found, one))
    return {"small": torch.stack(small), "ordinary": torch.stack(ordinary)}


def scale_weights(model: torch.nn.Module, factor: float) -> None:
    """Multiply every matrix by a factor, those of the embedding too."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    layers, width = context.options["layers"], context.options["width"]
    parts = context.sample_models(trained_depths, batch=4)
    trained = {name: part["layers"] for name, part in parts.items()}
    found = {name if context.given else f"{name}, trained": one for name, one in trained.items()}
    judged = context.models if context.given else TRAINED[:1]
    (random,) = context.sample(random_depths, [context.options], batch=2)
    small, ordinary = f"random, deviation {SMALL:g}", "random, deviation 1/sqrt(width)"
    found |= {small: random["small"], ordinary: random["ordinary"]}
    rows = [
        summary(one[:, layer, quantity], {"model": name, "layer": layer, "quantity": label})
        for name, one in found.items()
        for quantity, label in enumerate(QUANTITIES)
        for layer in range(one.shape[1])
    ]
    deep = f"of {layers} layers and width {width}"
    return Outcome(
        verdicts=(
            *(
                verdict
                for name in judged
                for verdict in judge_trained(name, trained[name], context)
            ),
            judge_alike(
                f"A deep Llama whose matrices start with a deviation of {SMALL:g} collapses.",
                found[small],
                context.seed,
                f"random Llamas {deep}",
            ),
            judge_alike(
                "A deep Llama whose matrices start with a deviation of 1/sqrt(width) collapses.",
                found[ordinary],
                context.seed,
                f"the same Llamas {deep}, every matrix multiplied",
            ),
        ),
        frames={"layers": table(rows)},
        pictures=tuple(plot(found, column) for column in (RESIDUAL, DIMENSION)),
        remarks=(
            f"A draw is {EACH} passages of {TOKENS} tokens; the first token of each is left out, "
            "and the dimension is that of all others together. A random model is drawn with them.",
            overlap(TOKENS, context.given),
            *warn_of_few(EACH * TOKENS, {**widths(context), "the random Llamas": width}),
            f"The trained models have {sizes(context)}; the models of the source have 29 of "
            "4096. Collapse stands for less than half of what there was behind the embedding.",
        ),
    )


def widths(context: StudyContext) -> dict[str, int]:
    """Return the width of the features of each trained model."""
    models = {name: get_model(name, context.given) for name in context.models}
    return {context.describe(name): one.config.hidden_size for name, one in models.items()}


def sizes(context: StudyContext) -> str:
    """Describe the shapes of the trained models."""
    shapes = []
    for name in context.models:
        subject = get_model(name, context.given)
        assert not isinstance(subject.stack, str), subject.stack
        shapes.append(f"{len(subject.stack.blocks)} layers of width {subject.config.hidden_size}")
    return " and ".join(dict.fromkeys(shapes))


def judge_trained(name: str, found: np.ndarray, context: StudyContext) -> list[StudyVerdict]:
    """Judge one trained model: whether its tokens become alike, and its features narrow."""
    called = context.describe(name)
    claim = CLAIM.format(model=name) if context.given else STUDY.claim
    return judge_one(
        name,
        context.given,
        judge_alike(claim, found, context.seed, called, trained=True),
        judge_narrow(found, context.seed, called),
    )


def ratio(found: np.ndarray, quantity: int, seed: int, comparisons: int = 1) -> Interval:
    """Return how much of the embedding's value is left at the last layer, mean over draws."""
    last = found[:, -1, quantity] / found[:, 0, quantity]
    return bootstrap(last, np.mean, seed, comparisons=comparisons)


def judge_alike(
    claim: str, found: np.ndarray, seed: int, where: str, *, trained: bool = False
) -> StudyVerdict:
    """Judge whether tokens become alike, in what differs of their size."""
    left, dimension = (ratio(found, quantity, seed) for quantity in (RESIDUAL, DIMENSION))
    start, end = (float(found[:, index, RESIDUAL].mean()) for index in (0, -1))
    return StudyVerdict(
        scale=BUILT_IN if trained else "",
        claim=claim,
        word=below(left, HALF, 1),
        number=left.value,
        said=f"in {where}, the share of the features that differs between tokens goes from "
        f"{start:.3f} to {end:.3f}: {left} of it is left, and {dimension} of d(0.8); collapse "
        f"would leave less than {HALF:g} ({len(found)} draws)",
        source="" if trained else "Own, on pangu23, section 3",
        unit=f"{len(found)} sets of {PASSAGES}" if trained else "",
    )


def judge_narrow(found: np.ndarray, seed: int, called: str) -> StudyVerdict:
    """Judge whether the features use ever fewer directions."""
    left = ratio(found, DIMENSION, seed)
    means = found[..., DIMENSION].mean(0)
    widest = int(means.argmax())
    # The widest is chosen among all layers behind the embedding.
    risen = ratio(found[:, : widest + 1], DIMENSION, seed, comparisons=len(means) - 1)
    falls = widest == 0 and left.high < 1
    return StudyVerdict(
        scale=BUILT_IN,
        claim="The effective dimension of its features falls with depth.",
        word=decide(holds=falls, fails=risen.low > 1),
        number=risen.value,
        said=f"d(0.8) in {called} is {means[0]:.2f} of the width behind the embedding "
        f"and {risen} times that in layer {widest}, where it is largest; behind the last layer it "
        f"is {left} times that of the beginning (mean of {len(found)} draws)",
        source="pangu23, section 5.2",
        unit=f"{len(found)} sets of {PASSAGES}",
    )


def plot(found: dict[str, np.ndarray], column: int) -> Picture:
    """Plot a line per model, with the interval of its mean."""
    lines = []
    for kind, (name, one) in enumerate(found.items()):
        depth = [layer / (one.shape[1] - 1) for layer in range(one.shape[1])]
        lines.append(mean_band(name, depth, one[..., column], kind))
    title, y = (
        ("Share of the features that differs between tokens", "||JX|| / ||X||"),
        ("Effective dimension of the features", "d(0.8), as a share of the width"),
    )[column]
    name = ("residual", "dimension")[column]
    return curves(
        name,
        f"{title} by depth (mean, 95 % of draws)",
        lines,
        x="depth: 0 behind the embedding, 1 behind the last layer",
        y=y,
        log="",
    )


STUDY = Study(
    name="collapse-depth",
    title="Feature collapse by depth",
    source="pangu23, section 1 and section 3",
    claim="The features of a trained Llama, here the small built-in one, collapse with depth: its "
    "tokens become alike.",
    cost="2 minutes",
    draws=100,
    models=TRAINED,
    passage=TOKENS,
    scale=random_networks("{layers}", "{width}"),
    unit="random initialisations, each with passages of one text",
    run=run,
    fast={"draws": 12, "layers": 16, "width": 64},
    **study_options("collapse-depth"),
)
