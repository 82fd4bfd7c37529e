"""Effective dimension by depth with both modules of pangu23, before any training."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, each
from layerlab.studies.pangu23.theory.collapse_depth import EACH, SMALL, TOKENS, scale_weights
from layerlab.studies.support.feature_statistics import DIMENSION, depths, warn_of_few
from layerlab.studies.support.passages import excerpts, overlap

# As the ablation has them; paths that would start at zero start at random.
NORMAL: dict[str, Any] = {"initial": "normal"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "both modules": ("pangu-pi", NORMAL),
    "without shortcut": ("pangu-pi-no-as", {}),
    "without series": ("pangu-pi-no-siaf", NORMAL),
    "neither": ("llama", {}),
}
NAMES = tuple(VARIANTS)
STARTS = (f"deviation {SMALL:g}", "deviation 1/sqrt(width)")
# Of the width: less is no limit that anybody would see.
EFFECT = 0.02


def one(draw: Sampler, layers: int, width: int) -> dict[str, Tensor]:
    """Return d(0.8) over the width, variant by start by layer, for one batch.

    The variants share their weights.
    """
    ids = excerpts(draw, "llama", TOKENS, EACH).view(draw.count, EACH, TOKENS)
    seeds = torch.randint(2**31, (draw.count,), generator=draw.generator).tolist()
    sizes = {"width": width, "layers": layers, "heads": 4, "vocab": 512, "context": TOKENS}
    found = [
        torch.stack([dimensions(*made, sizes, seed, passages) for made in VARIANTS.values()])
        for seed, passages in zip(seeds, ids, strict=True)
    ]
    return {"dimension": torch.stack(found)}


def dimensions(
    name: str, options: dict[str, Any], sizes: dict[str, Any], seed: int, ids: Tensor
) -> Tensor:
    """Return the dimension of one variant, start by layer."""
    from layerlab.loading.model import load_model
    from layerlab.model.build import build

    model = build(name, **sizes, **options, seed=seed)
    scatter(model, seed)
    loaded = load_model(model)
    small = depths(loaded, ids)[:, DIMENSION]
    scale_weights(model, sizes["width"] ** -0.5 / SMALL)
    return torch.stack([small, depths(loaded, ids)[:, DIMENSION]])


def scatter(model: torch.nn.Module, seed: int) -> None:
    """Draw scales and shifts of every term of a series from a standard normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".terms." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    (part,) = context.sample(one, [context.options], batch=2)
    found = part["dimension"]
    rows = [
        summary(found[:, variant, start, layer], {"start": label, "model": name, "layer": layer})
        for start, label in enumerate(STARTS)
        for variant, name in enumerate(NAMES)
        for layer in range(found.shape[3])
    ]
    return Outcome(
        verdicts=(
            judge_limits(found, context.seed),
            judge_series(found, 0, context.seed),
            judge_series(found, 1, context.seed),
        ),
        frames={"dimension": table(rows)},
        pictures=tuple(plot(found, start) for start in range(len(STARTS))),
        remarks=(
            f"Random models of {context.options['layers']} layers and width "
            f"{context.options['width']}; what variants share is the same in all. "
            "Shortcuts of the width over 32 start at random, and so do scales and shifts of the "
            "series: in this package both start silent, and all four would be one model.",
            *warn_of_few(EACH * TOKENS, {"these models": context.options["width"]}),
            "The figure is of trained models of 7B, and its values are not printed: that the "
            "modules act otherwise when they are trained is not excluded here.",
            overlap(TOKENS),
        ),
    )


def loss(found: np.ndarray, without: str, start: int, seed: int, comparisons: int = 1) -> Interval:
    """Return what the last layer loses of d(0.8) over the width without one module."""
    last = found[:, :, start, -1]
    apart = last[:, 0] - last[:, NAMES.index(without)]
    return bootstrap(apart, np.mean, seed, comparisons=comparisons)


def judge_limits(found: np.ndarray, seed: int) -> StudyVerdict:
    """Judge the module whose absence is said to limit most."""
    count = len(STARTS)
    losses = [loss(found, "without shortcut", start, seed, count) for start in range(count)]
    numbers = ", ".join(f"{one} ({label})" for one, label in zip(losses, STARTS, strict=True))
    return StudyVerdict(
        claim=STUDY.claim,
        word=each(above(one, EFFECT, 0) for one in losses),
        number=max(one.value for one in losses),
        said=f"without it the last layer loses {numbers} of d(0.8), as a share of the width; more "
        f"than {EFFECT:g} was asked for ({len(found)} draws, paired)",
    )


def judge_series(found: np.ndarray, start: int, seed: int) -> StudyVerdict:
    """Judge the module whose absence is said to lower every layer."""
    lost = loss(found, "without series", start, seed)
    whole = float(found[:, 0, start, -1].mean())
    return StudyVerdict(
        claim="Before any training, the series activation raises the effective dimension of a deep "
        f"stack whose matrices have a {STARTS[start]}.",
        word=above(lost, EFFECT, 0),
        number=lost.value,
        said=f"without it the last layer loses {lost} of d(0.8), as a share of the width, of "
        f"{whole:.3f} with both modules; more than {EFFECT:g} was asked for",
        source="pangu23, section 5.2",
    )


def plot(found: np.ndarray, start: int) -> Picture:
    """Plot a line per model."""
    lines = [
        Curve(
            name=name,
            x=list(range(found.shape[3])),
            y=found[:, variant, start].mean(0).tolist(),
            kind=variant,
            style="dash" if variant == 1 else "solid",
        )
        for variant, name in enumerate(NAMES)
    ]
    return curves(
        ("small", "ordinary")[start],
        f"Effective dimension by depth before training, {STARTS[start]} (mean)",
        lines,
        x="layer, 0 behind the embedding",
        y="d(0.8), as a share of the width",
        log="",
    )


STUDY = Study(
    name="modules-at-start",
    title="Both modules before training",
    source="pangu23, section 5.2 and Figure 4; before training is own",
    claim="Before any training, a stack without augmented shortcuts is limited in its effective "
    "dimension.",
    cost="4 minutes",
    draws=32,
    scale=random_networks("{layers}", "{width}"),
    unit="random initialisations, each with passages of one text",
    run=run,
    # Of a narrower model one direction is more than what is asked about.
    fast={"draws": 6, "layers": 12, "width": 128},
    **study_options("modules-at-start"),
)
