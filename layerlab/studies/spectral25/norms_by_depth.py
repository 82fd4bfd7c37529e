"""36 layers in spectral25: norms of attention by depth where they can be had, at initialisation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.studies.engine.pictures import Curve, curves, interval_band
from layerlab.studies.engine.sampling import Arrays, GivenModels, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, random_networks
from layerlab.studies.engine.statistics import (
    Interval,
    bootstrap,
    bootstrap_each,
    maximum,
    summary,
    table,
)
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, below, decide, each
from layerlab.studies.spectral25.gpt1_gpt2 import matrices
from layerlab.studies.support.passages import PASSAGES, excerpts, overlap

DEPTH, WIDTH, HEADS, VOCAB, TOKENS = 36, 64, 4, 64, 18
TEXTS = 8
# Pre-norm and post-norm as GPT-2 and GPT-1 have them; a factor on queries and keys stands in for
# what training does to scores.
VARIANTS = {"pre-norm": "gpt2", "post-norm": "gpt1"}
SHARPNESS = {"start": 1.0, "sharp": 10.0}
# Where GPT-2-large rises, stays and falls in the source; the first post-norm layer has no norm.
RISE, PLATEAU, FALL = slice(1, 10), slice(19, 32), slice(33, 36)
# Of a norm: less than a reader of the figure would see.
EFFECT = 0.1
# The rows of float32 attention sum to 1 up to some 1e-7, layer after layer.
ROUNDING = 1 + 1e-4
DepthCurves = Mapping[tuple[str, str], Mapping[str, np.ndarray]]


def norms(draw: Sampler, placement: str) -> dict[str, Tensor]:
    """Return, for one batch, mean norms by layer, and the norm of the product over layers."""
    rows = []
    for _ in range(draw.count):
        seed = int(torch.randint(2**31, (), generator=draw.generator))
        ids = torch.randint(VOCAB, (TEXTS, TOKENS), generator=draw.generator)
        rows.append(_one(placement, seed, ids))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _one(placement: str, seed: int, ids: Tensor) -> dict[str, Tensor]:
    model, found = random(placement, seed), dict[str, Tensor]()
    for scores, sharpness in SHARPNESS.items():
        sharpen(model, sharpness)
        with torch.no_grad():
            attentions = model(ids, output_attentions=True, use_cache=False).attentions
        matrices = torch.stack([layer.double() for layer in attentions])
        found[f"{scores} norm"] = torch.linalg.matrix_norm(matrices, 2).mean((1, 2))
        products = norm_of_product(matrices[:, 0, 0])
        found |= {f"{scores} {name}": number for name, number in products.items()}
    return found


def norms_of_given(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return, for one batch, the same of a model that the user named, on passages of its text."""
    rows = []
    for _ in range(draw.count):
        ids = excerpts(replace(draw, count=1), name, TOKENS, TEXTS)
        every = matrices(name, ids, torch.full((TEXTS,), TOKENS), draw.given)
        norm = torch.stack([torch.linalg.matrix_norm(layer, 2).mean() for layer in every])
        products = norm_of_product(torch.stack([layer[0, 0] for layer in every]))
        rows.append({"norm": norm, **products})
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def norm_of_product(matrices: Tensor) -> dict[str, Tensor]:
    """Return the norm of the product of all layers' matrices, and the product of their norms."""
    product = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    for matrix in matrices:
        product = matrix @ product
    return {
        "product": torch.linalg.matrix_norm(product, 2),
        "norms": torch.linalg.matrix_norm(matrices, 2).prod(),
    }


def random(placement: str, seed: int) -> Any:
    """Return a stack at its initialisation."""
    from layerlab.model.build import build

    model = build(
        VARIANTS[placement],
        width=WIDTH,
        layers=DEPTH,
        heads=HEADS,
        vocab=VOCAB,
        context=TOKENS,
        seed=seed,
    )
    model.set_attn_implementation("eager")
    return model


def sharpen(model: Any, sharpness: float) -> None:
    """Scale queries and keys so that scores behind a norm have this size."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("query.weight", "key.weight")):
                # Entries of variance 1 / inputs give scores of size 1.
                parameter.mul_(sharpness**0.5 * WIDTH**-0.5 / parameter.std())


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    from layerlab.measures.quantities.spectrum import uniform_norm

    if context.given:
        return read_given(context, uniform_norm(TOKENS, TOKENS))
    gathered = context.sample(norms, [{"placement": place} for place in VARIANTS], batch=8)
    parts = {
        (place, scores): {name: found[f"{scores} {name}"] for name in ("norm", "product", "norms")}
        for place, found in zip(VARIANTS, gathered, strict=True)
        for scores in SHARPNESS
    }
    rows = [
        summary(found["norm"][:, layer], {"placement": place, "scores": scores, "layer": layer + 1})
        for (place, scores), found in parts.items()
        for layer in range(DEPTH)
    ]
    return Outcome(
        verdicts=(
            judge_bounded(parts, context.seed),
            judge_lacks(parts, context.seed),
            judge_shape(parts, context.seed),
            judge_products(parts),
        ),
        frames={"norms": table(rows)},
        pictures=(plot(parts, uniform_norm(TOKENS, TOKENS)),),
        remarks=(
            "GPT-2-large is on the Hub: type layerlab study deep-curve --model "
            "openai-community/gpt2-large for its own curve. What is judged here is what the source "
            "makes of it: that the placement of the norm is why the curve stays flat.",
            f"Random stacks of {DEPTH} layers, width {WIDTH}, {HEADS} heads, {TOKENS} random "
            f"tokens, {TEXTS} texts for each. Queries and keys have entries of variance "
            f"1 / inputs, so that scores are of size 1 behind a norm, or {SHARPNESS['sharp']:g} "
            "times that; all else is as it starts. Trained stacks of both placements stand beside "
            "each other in gpt-curves, at 8 layers.",
            f"Norms lie between 1 and sqrt({TOKENS}) = {TOKENS**0.5:.3g}, and the source reads "
            f"differences of 0.1 and more from its figures: less than {EFFECT:g} is no rise there.",
        ),
    )


def read_given(context: StudyContext, uniform: float) -> Outcome:
    """Read and judge the models that the user named, in place of random stacks."""
    parts = context.sample_models(norms_of_given, batch=8)
    rows = [
        summary(found["norm"][:, layer], {"model": name, "layer": layer + 1})
        for name, found in parts.items()
        for layer in range(found["norm"].shape[1])
    ]
    lines = [
        interval_band(
            name,
            np.linspace(0, 1, found["norm"].shape[1]).tolist(),
            [bootstrap(column, np.mean) for column in found["norm"].T],
            kind=kind,
        )
        for kind, (name, found) in enumerate(parts.items())
    ]
    flat = Curve(name="uniform attention", x=[0.0, 1.0], y=[uniform] * 2, kind=6, style="dot")
    title = "Norm of attention by depth (mean, 95 % interval)"
    x, y = "depth: 0 is the first layer, 1 the last", "spectral norm, mean over heads"
    return Outcome(
        verdicts=(
            judge_flat(parts, context.seed),
            judge_curve(parts, context.seed),
            judge_bounded_product(parts, context.given),
        ),
        frames={"norms": table(rows)},
        pictures=(curves("depth", title, [*lines, flat], x=x, y=y, log=""),),
        remarks=(
            f"A draw is {TEXTS} passages of {TOKENS} tokens. Layers 2 to 10, 20 to 32 and 34 to 36 "
            f"of the source's {DEPTH} are those at the same relative depth (layer - 1) / (L - 1) "
            "of a model of another depth, the nearest where none is in between.",
            f"Norms lie between 1 and sqrt({TOKENS}) = {TOKENS**0.5:.3g}, and the source reads "
            f"differences of 0.1 and more from its figures: less than {EFFECT:g} is no rise there. "
            "Whether the placement of the norm is why takes stacks that differ in nothing else: "
            "type the study without --model.",
            overlap(TOKENS, context.given),
        ),
    )


def at_depth(found: np.ndarray, layers: slice) -> np.ndarray:
    """Return the mean over the layers at the relative depth of some of 36, draw by draw."""
    steps, depths = found.shape[1] - 1, np.arange(found.shape[1]) * (DEPTH - 1)
    low, high = layers.start * steps, (layers.stop - 1) * steps
    away = np.abs(2 * depths - low - high)
    return np.asarray(found[:, away <= max(high - low, away.min())].mean(1))


def judge_flat(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge whether the norm stays where it is after its first rise."""
    gaps = {
        name: at_depth(one["norm"], PLATEAU) - at_depth(one["norm"], RISE)
        for name, one in parts.items()
    }
    found = bootstrap_each(gaps, np.mean, seed)
    text = ", ".join(f"{gap} in {name}" for name, gap in found.items())
    return StudyVerdict(
        claim=f"The norm of attention does not grow over the layers of {' and '.join(parts)}.",
        word=each(below(gap, EFFECT) for gap in found.values()),
        number=max(gap.value for gap in found.values()),
        said=f"the mean norm at the depth of layers 20 to 32 less that of layers 2 to 10 is {text} "
        f"(mean of {len(next(iter(gaps.values())))} draws); below {EFFECT:g}, the least that the "
        "source reads from its figures, was asked for in each",
        unit=f"{len(next(iter(gaps.values())))} sets of {PASSAGES}",
        scale=BUILT_IN,
    )


def judge_curve(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge the rise over the first layers, and the fall over the last."""
    steps = {
        (name, step): at_depth(one["norm"], PLATEAU) - away
        for name, one in parts.items()
        for step, away in (("up", one["norm"][:, 0]), ("down", at_depth(one["norm"], FALL)))
    }
    found = bootstrap_each(steps, np.mean, seed)
    numbers = ", ".join(f"{found[n, 'up']} up and {found[n, 'down']} down in {n}" for n in parts)
    return StudyVerdict(
        claim="The curve rises from its first layer to a plateau, and falls in the last.",
        word=each(above(one, EFFECT) for one in found.values()),
        number=min(one.value for one in found.values()),
        said=f"from the first layer to the depth of layers 20 to 32, and from there to the last "
        f"three of 36, it goes {numbers}; above {EFFECT:g} was asked for in each. The source sees "
        "GPT-2-large fall by about 0.5",
        source="spectral25, section 2.3, third figure",
        unit=f"{len(next(iter(steps.values())))} sets of {PASSAGES}",
        scale=BUILT_IN,
    )


def judge_bounded_product(parts: Mapping[str, Arrays], given: GivenModels) -> StudyVerdict:
    """Judge the norm of the product over all layers, of the first heads."""
    found = {name: maximum(one["product"]) for name, one in parts.items()}
    numbers = ", ".join(
        f"{norm} in {name}, where the product of the norms is "
        f"{np.median(parts[name]['norms']):.2g} in the median"
        for name, norm in found.items()
    )
    sums = {name: given[name].sum_of_rows(one["norm"].shape[1]) for name, one in parts.items()}
    return StudyVerdict(
        claim="Attention with norms above 1, multiplied layer after layer, explodes.",
        word=decide(fails=all(x.value <= TOKENS**0.5 * sums[n] for n, x in found.items())),
        number=max(one.value for one in found.values()),
        said=f"the product of the attention of all layers has at most the norm {numbers}; its rows "
        f"sum to 1, so that it cannot exceed sqrt(n) = {TOKENS**0.5:.3g}",
        source="spectral25, section 2.1",
        unit=f"{len(next(iter(parts.values()))['product'])} sets of {PASSAGES}",
        scale=BUILT_IN,
    )


def drift(found: np.ndarray) -> np.ndarray:
    """Return the mean of the plateau's layers less that of layers two to ten, draw by draw."""
    return np.asarray(found[:, PLATEAU].mean(1) - found[:, RISE].mean(1))


def _drifts(parts: DepthCurves, placement: str, seed: int) -> dict[str, Interval]:
    drifts = {scores: drift(parts[placement, scores]["norm"]) for scores in SHARPNESS}
    return bootstrap_each(drifts, np.mean, seed)


def _describe(found: Mapping[str, Interval], parts: DepthCurves, placement: str) -> str:
    plateau = {scores: np.mean(parts[placement, scores]["norm"][:, PLATEAU]) for scores in found}
    return " and ".join(
        f"{gap} ({scores} scores, plateau {plateau[scores]:.3g})" for scores, gap in found.items()
    )


def judge_bounded(parts: DepthCurves, seed: int) -> StudyVerdict:
    """Judge whether pre-norm keeps norms from rising over 36 layers, beside post-norm."""
    found = _drifts(parts, "pre-norm", seed)
    kept = bootstrap_each(
        {
            # The draws of a number are the same weights in both.
            scores: drift(parts["post-norm", scores]["norm"])
            - drift(parts["pre-norm", scores]["norm"])
            for scores in SHARPNESS
        },
        np.mean,
        seed,
    )
    numbers = " and ".join(f"{gap} ({scores} scores)" for scores, gap in kept.items())
    return StudyVerdict(
        claim=STUDY.claim,
        word=each(above(gap, EFFECT) for gap in kept.values()),
        number=kept["sharp"].value,
        said=f"the mean norm of layers 20 to 32 less that of layers 2 to 10 is "
        f"{_describe(found, parts, 'pre-norm')} in random pre-norm stacks; in post-norm stacks of "
        f"the same start it is larger by {numbers}, and above {EFFECT:g}, the least that the "
        "source reads from its figures, was asked for: what does not grow without pre-norm is not "
        f"kept from it by pre-norm (mean of {len(parts['pre-norm', 'sharp']['norm'])} draws)",
    )


def judge_lacks(parts: DepthCurves, seed: int) -> StudyVerdict:
    """Judge the drift of post-norm over as many layers."""
    found = _drifts(parts, "post-norm", seed)
    first, second = parts["post-norm", "sharp"]["norm"][:, :2].mean(0)
    return StudyVerdict(
        claim="Post-norm lacks this: the norm of its attention rises with depth.",
        word=each(above(gap, EFFECT) for gap in found.values()),
        number=found["sharp"].value,
        said=f"the same difference is {_describe(found, parts, 'post-norm')} in post-norm stacks "
        f"with the same start, and above {EFFECT:g} was asked for; sqrt(n) would be "
        f"{TOKENS**0.5:.3g}. With sharp scores they jump from {first:.3g} in layer 1, which "
        f"reads no norm, to {second:.3g} in layer 2",
        source="spectral25, sections 2.2 and 2.3",
    )


def judge_shape(parts: DepthCurves, seed: int) -> StudyVerdict:
    """Judge whether the figure's rise and fall are there without training."""
    numbers, steps = [], []
    for scores in SHARPNESS:
        found = parts["pre-norm", scores]["norm"]
        plateau = found[:, PLATEAU].mean(1)
        rise, fall = (
            bootstrap(plateau - away, np.mean, seed, comparisons=2 * len(SHARPNESS))
            for away in (found[:, 0], found[:, FALL].mean(1))
        )
        steps += [rise, fall]
        numbers.append(f"{rise} up and {fall} down with {scores} scores")
    return StudyVerdict(
        claim="The curve's fast rise over ten layers and its fall in the last three belong to the "
        "architecture.",
        word=each(above(step, EFFECT) for step in steps),
        number=steps[-1].value,
        said=f"from the first layer to layers 20 to 32, and from there to the last three, random "
        f"pre-norm stacks go {', '.join(numbers)}, and above {EFFECT:g} was asked for in each; the "
        "source sees GPT-2-large fall by about 0.5. Neither is there before training",
        source="spectral25, section 2.3, third figure",
    )


def judge_products(parts: DepthCurves) -> StudyVerdict:
    """Judge the norm of the product over all layers against the product of the norms."""
    found = {place: maximum(parts[place, "sharp"]["product"]) for place in VARIANTS}
    sizes = ", ".join(f"{norm} in {place}" for place, norm in found.items())
    single = np.median(parts["pre-norm", "sharp"]["norms"])
    most = TOKENS**0.5
    return StudyVerdict(
        claim="Attention with norms above 1, multiplied layer after layer, explodes.",
        word=decide(fails=max(one.value for one in found.values()) <= most * ROUNDING),
        number=max(one.value for one in found.values()),
        said=f"the product of {DEPTH} attention matrices has at most the norm {sizes} (largest of "
        f"{len(parts['pre-norm', 'sharp']['product'])} draws, sharp scores, first heads); its rows "
        f"sum to 1, so it cannot exceed sqrt(n) = {most:.3g}. The product of the norms, which "
        f"explodes, is {single:.2g} in the median, and a bound of nothing",
        source="spectral25, section 2.1",
    )


def plot(parts: DepthCurves, uniform: float) -> Picture:
    """Plot the norms by depth."""
    layers = list(range(1, DEPTH + 1))
    lines = []
    for (place, scores), found in parts.items():
        ends = [bootstrap(column, np.mean) for column in found["norm"].T]
        kind, style = list(VARIANTS).index(place), "solid" if scores == "sharp" else "dash"
        name = f"{place}, {scores} scores"
        lines.append(interval_band(name, layers, ends, kind=kind, style=style))
    lines.append(
        Curve(name="uniform attention", x=layers, y=[uniform] * DEPTH, kind=6, style="dot")
    )
    title = "Norm of attention in random stacks (mean, 95 % interval)"
    return curves("depth", title, lines, x="layer", y="spectral norm, mean over heads", log="")


STUDY = Study(
    name="deep-curve",
    title="Norm of attention at depth 36",
    source="spectral25, section 2.3",
    claim="Pre-norm keeps the norm of attention from growing over 36 layers.",
    cost="2 minutes",
    draws=100,
    models=("pre-norm", "post-norm"),
    passage=TOKENS,
    attention=True,
    layers=3,
    scale=random_networks(DEPTH, WIDTH),
    run=run,
    fast={"draws": 8},
)
