"""The linear alternative that pangu23 sets aside: a shortcut with a larger weight, by depth."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.measures.quantities.diversity import diversity, relative_residual
from layerlab.studies.engine.pictures import curves, mean_band
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import LOOKED, Interval, bootstrap, summary, table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, below
from layerlab.studies.support.passages import excerpts, overlap
from layerlab.system.hooks import temporary_hooks

SCALES = (0.5, 1.0, 2.0, 4.0)
PLAIN, LARGER = SCALES.index(1.0), SCALES.index(2.0)
TOKENS = 128
LEVEL = 0.01
NOISE, MOTION = range(2)
QUANTITIES = ("noise over features, of that at the start", "1 - cosine to the embedding")
# Layers that turn the features by less than a quarter of what they else do have little to do.
IDLE = 0.25
# More noise than this, beside the features, is more than anybody would overlook.
EFFECT = 1.1


def one(draw: Sampler, layers: int, width: int) -> dict[str, Tensor]:
    """Return what other weights of attention's shortcut do to random Llamas, for one batch."""
    from layerlab.model.build import build

    seeds = torch.randint(2**31, (draw.count,), generator=draw.generator).tolist()
    noise = draw.normal(TOKENS, width).float()
    sizes: dict[str, Any] = {"width": width, "layers": layers, "heads": 4, "vocab": 512}
    residuals, rest = [], []
    for seed, ids, moved in zip(seeds, excerpts(draw, "llama", TOKENS), noise, strict=True):
        model = build("scaled-identity", **sizes, context=TOKENS, seed=seed)
        found = [compare_weights(model, scale, ids, moved) for scale in SCALES]
        residuals.append(torch.stack([residual for residual, _ in found]))
        rest.append(torch.stack([other for _, other in found]))
    return {"residual": torch.stack(residuals), "rest": torch.stack(rest)}


def compare_weights(model: Any, scale: float, ids: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the relative residual by layer, for a shortcut of this weight.

    With it come the growth of the noise against the features, and their motion.
    """
    weigh_shortcuts(model, scale)
    start = model.get_input_embeddings()(ids).detach()
    moved = noise * (LEVEL * start.norm() / noise.norm())
    clean, dirty = streams(model, start), streams(model, start + moved)
    share = [diversity(b - a) / diversity(a) for a, b in zip(clean, dirty, strict=True)]
    turned = torch.cosine_similarity(clean[0].double(), clean[-1].double(), dim=-1).mean()
    residual = torch.stack([relative_residual(stream) for stream in clean])
    return residual, torch.stack([share[-1] / share[0], 1 - turned])


def weigh_shortcuts(model: Any, scale: float) -> None:
    """Give every shortcut around attention this weight."""
    for name, module in model.named_modules():
        if name.endswith("attention_shortcut"):
            module.scale = scale


def streams(model: Any, start: Tensor) -> list[Tensor]:
    """Return the stream behind the embedding and behind each block."""
    from layerlab.observe.architecture.structure import anatomy, first_tensor

    found = [start]
    handles = [
        block.register_forward_hook(lambda _, given, left: found.append(first_tensor(left)[0]))
        for block in anatomy(model).blocks
    ]
    with temporary_hooks(handles), torch.no_grad():
        model(inputs_embeds=start[None], use_cache=False)
    return found


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    (found,) = context.sample(one, [context.options], batch=2)
    residual, rest = found["residual"], found["rest"]
    rows = [
        summary(
            residual[:, index, layer],
            {"scale": scale, "layer": layer, "quantity": "relative residual"},
        )
        for index, scale in enumerate(SCALES)
        for layer in range(residual.shape[2])
    ]
    rows += [
        summary(
            rest[:, index, column],
            {"scale": scale, "layer": residual.shape[2] - 1, "quantity": quantity},
        )
        for index, scale in enumerate(SCALES)
        for column, quantity in enumerate(QUANTITIES)
    ]
    lines = [
        mean_band(f"scale {scale:g}", list(range(residual.shape[2])), residual[:, index], index)
        for index, scale in enumerate(SCALES)
    ]
    picture = curves(
        "residual",
        "Share of the features that differs between tokens (mean, 95 % of draws)",
        lines,
        x="layer, 0 behind the embedding",
        y="||JX|| / ||X||",
        log="",
    )
    return Outcome(
        verdicts=(
            judge_prevents(residual, context.seed),
            judge_noisy(rest, context.seed),
            judge_idle(rest, context.seed),
        ),
        frames={"scales": table(rows)},
        pictures=(picture,),
        remarks=(
            f"Random Llamas of {context.options['layers']} layers and width "
            f"{context.options['width']}, whose matrices have a deviation of 0.02; "
            "the shortcut around attention has the weight, that around the feed-forward has "
            "none. Every draw has all weights.",
            overlap(TOKENS),
            f"Little to do is below {IDLE:g} of what layers else do; noise that grows less than "
            f"{EFFECT:g} times as much as the features grows as they do to any reader.",
            LOOKED,
            "That it trains worse is the second half of what the source says of it, and needs "
            "training: it is not judged here.",
        ),
    )


def pair_draws(values: np.ndarray, seed: int) -> Interval:
    """Return the mean of the larger weight less that of the plain shortcut, draw by draw."""
    return bootstrap(values[:, LARGER] - values[:, PLAIN], np.mean, seed)


def judge_prevents(residual: np.ndarray, seed: int) -> StudyVerdict:
    """Judge whether tokens stay apart."""
    last = residual[:, :, -1]
    found = pair_draws(last, seed)
    plain, larger = (float(last[:, index].mean()) for index in (PLAIN, LARGER))
    return StudyVerdict(
        claim=STUDY.claim,
        word=above(found, 0),
        number=found.value,
        said=f"behind the last layer {larger:.3f} of the features differ between tokens at a "
        f"weight of 2, and {plain:.3f} at 1, {found} more, and above 0 was asked for ({len(last)} "
        f"draws, paired; {residual[:, PLAIN, 0].mean():.3f} behind the embedding)",
    )


def judge_noisy(rest: np.ndarray, seed: int) -> StudyVerdict:
    """Judge whether noise grows relative to the features."""
    found = bootstrap(rest[:, LARGER, NOISE], np.mean, seed)
    plain = bootstrap(rest[:, PLAIN, NOISE], np.mean, seed)
    return StudyVerdict(
        claim="With the larger weight, noise grows more than the features do.",
        word=above(found, EFFECT, 1),
        number=found.value,
        said=f"noise of {LEVEL:g} of the embedding, over the diversity of the features, is {found} "
        f"times as much behind the last layer as at the start, and {plain} times with the plain "
        f"shortcut; above {EFFECT:g} was asked for",
        source="pangu23, section 4.1",
        looked=True,
    )


def judge_idle(rest: np.ndarray, seed: int) -> StudyVerdict:
    """Judge whether layers still do something."""
    pair = rest[:, [LARGER, PLAIN], MOTION]
    found = bootstrap(pair, _share, seed)
    larger, plain = (bootstrap(pair[:, index], np.mean, seed) for index in (0, 1))
    return StudyVerdict(
        claim="The larger weight keeps tokens apart by leaving the layers little to do.",
        word=below(found, IDLE, 1),
        number=found.value,
        said="1 less the cosine between a token behind the last layer and behind the embedding is "
        f"{larger} at a weight of 2 and {plain} at 1: {found} of it; below {IDLE:g} was asked for",
        source="Own, on pangu23, section 4.1",
        looked=True,
    )


def _share(pair: np.ndarray) -> float:
    larger, plain = pair.mean(0)
    return float(larger / plain)


STUDY = Study(
    name="scaled-identity",
    title="A shortcut of larger weight",
    source="pangu23, section 4.1",
    claim="An identity shortcut of larger weight prevents the collapse of features.",
    cost="2 minutes",
    draws=100,
    scale=random_networks("{layers}", "{width}"),
    unit="random initialisations, each with a passage of one text",
    run=run,
    fast={"draws": 8, "layers": 12, "width": 64},
    **study_options("scaled-identity"),
)
