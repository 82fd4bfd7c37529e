"""Rank collapse with and without skips, feed-forward and mask, in spectral25's words and dong21's.

Bare attention in float64 says how fast it goes; the package's own variants say what prevents it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.studies.engine.pictures import Curve, band, curves
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, decide
from layerlab.system.hooks import temporary_hooks

TOKENS = 32
BARE_WIDTH = 16
BARE_DEPTH = 24
# Of the entries at the start: small enough to shrink, and large enough for some layers to be seen.
START = 2.0
# The power of the distance that the next step follows: 1 is exponential, 3 is dong21's theorem.
ORDER = 1.5
# Below this, float64 or a softmax in float32 is all that is measured.
FLOOR, FLOOR_MODEL = 1e-13, 1e-6
VARIANTS = ("attention-only", "attention-mlp", "attention-skip", "llama")
LABELS = {
    "attention-only": "attention alone",
    "attention-mlp": "with feed-forward",
    "attention-skip": "with skips",
    "llama": "with both",
}
WIDTH, DEPTH, HEADS, VOCAB = 64, 8, 4, 64
ROTARY = "rotary positions"
# A stack that keeps this share of its features different between tokens has not collapsed.
KEPT = 0.05


def bare(draw: Sampler, causal: bool) -> dict[str, Tensor]:
    """Return, for one batch, the relative residual after each layer of bare attention.

    A layer is softmax(X B X^T / sqrt(d)) X V. B is a product of two random matrices over d, V is
    random and orthogonal, so it keeps distances.
    """
    from layerlab.measures.quantities.diversity import relative_residual

    stream = draw.normal(TOKENS, BARE_WIDTH, deviation=START)
    past = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    found = [stream]
    for _ in range(BARE_DEPTH):
        query, key, value = (draw.normal(BARE_WIDTH, BARE_WIDTH) for _ in range(3))
        scores = stream @ query @ key.mT @ stream.mT / BARE_WIDTH**1.5
        scores = scores.masked_fill(~past, -torch.inf) if causal else scores
        stream = torch.softmax(scores, -1) @ stream @ torch.linalg.qr(value).Q
        found.append(stream)
    rows = [torch.stack([relative_residual(one) for one in layer]) for layer in found]
    return {"residual": torch.stack(rows, 1)}


def collapse_of(draw: Sampler, name: str, position: str) -> dict[str, Tensor]:
    """Return, for one batch, the relative residual of a variant's random stack by layer.

    Without a mask every token sees every other, as the theorem has it.
    """
    from layerlab.model.build import build

    open_mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.float64)
    masks = {"causal": None, "open": open_mask}
    rows: dict[str, list[Tensor]] = {mask: [] for mask in masks}
    for _ in range(draw.count):
        seed, ids = _draw(draw)
        model = build(
            name,
            width=WIDTH,
            layers=DEPTH,
            heads=HEADS,
            vocab=VOCAB,
            context=TOKENS,
            seed=seed,
            position=position,
        )
        model = widen(model.requires_grad_(False).double())
        model.set_attn_implementation("eager")
        for name_of, mask in masks.items():
            rows[name_of].append(_residuals(model, ids, mask))
    return {name_of: torch.stack(found) for name_of, found in rows.items()}


def _residuals(model: Any, ids: Tensor, mask: Tensor | None) -> Tensor:
    from layerlab.measures.quantities.diversity import relative_residual

    found: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(
            lambda _, __, output: found.append(relative_residual(output[0][0]))
        )
        for layer in model.model.layers
    ]
    with temporary_hooks(hooks):
        model(ids[None], attention_mask=mask, use_cache=False)
    return torch.stack(found)


def _draw(draw: Sampler) -> tuple[int, Tensor]:
    """Draw a seed for the weights, and token ids."""
    seed = int(torch.randint(2**31, (), generator=draw.generator))
    return seed, torch.randint(VOCAB, (TOKENS,), generator=draw.generator)


def widen(model: Any) -> Any:
    """Scale every matrix of a model's blocks to entries of variance 1 / inputs.

    Models start with entries of 0.02, with which a narrow stack does next to nothing.
    """
    for parameter in model.model.layers.parameters():
        if parameter.dim() == 2:
            parameter.mul_(parameter.shape[1] ** -0.5 / parameter.std())
    return model


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    masks = {False: "no mask", True: "causal mask"}
    lone = dict(zip(masks, context.sample(bare, [{"causal": one} for one in masks]), strict=True))
    cases = [*((name, "learned") for name in VARIANTS), ("attention-only", "rotary")]
    parts = context.sample(collapse_of, [{"name": n, "position": p} for n, p in cases], batch=16)
    bares = {causal: found["residual"] for causal, found in lone.items()}
    stacks = {
        (name if position == "learned" else ROTARY, causal): found["causal" if causal else "open"]
        for (name, position), found in zip(cases, parts, strict=True)
        for causal in masks
    }
    rows = [
        summary(found[:, layer], {"stack": "bare", "mask": masks[causal], "layer": layer})
        for causal, found in bares.items()
        for layer in range(found.shape[1])
    ]
    rows += [
        summary(found[:, layer], {"stack": name, "mask": masks[causal], "layer": layer + 1})
        for (name, causal), found in stacks.items()
        for layer in range(found.shape[1])
    ]
    return Outcome(
        verdicts=(
            judge_doubly(bares[False], context.seed),
            judge_halved(bares[True], context.seed),
            judge_rotary(stacks[ROTARY, False], stacks["attention-only", False], context.seed),
            judge_skips(stacks, context.seed),
            judge_feedforward(stacks, context.seed),
        ),
        frames={"residual": table(rows)},
        pictures=(plot_bare(bares), plot_stacks(stacks)),
        remarks=(
            f"Bare stack: {TOKENS} tokens of width {BARE_WIDTH}, one head, no norm, float64, the "
            "setting of the theorem behind the claim (dong21, Theorem 2.2).",
            f"Stacks of the package: width {WIDTH}, {DEPTH} layers, {HEADS} heads, {TOKENS} random "
            "tokens, matrices with entries of variance 1 / inputs, an RMS norm before each "
            "sublayer and learned positions in all of them. Their softmax is in float32, so a "
            "residual below 1e-6 is rounding.",
            f"An order above {ORDER:g} is called doubly exponential: half-way from 1, which is "
            "exponential, to 2, the least whole order above it. A stack that keeps less than "
            f"{KEPT:g} of its features different between tokens has collapsed.",
        ),
    )


def order(residuals: np.ndarray, floor: float = FLOOR) -> np.ndarray:
    """Return the power of itself by which the distance shrinks, draw by draw.

    That is log(r3 / r2) / log(r2 / r1), taken at the last three layers above `floor`: 1 if every
    layer takes the same factor off, 3 if r becomes C r^3.
    """
    found = []
    for row in residuals:
        below = np.flatnonzero(row < floor)
        end = int(below[0]) if len(below) else len(row)
        first, second, third = np.log(row[end - 3 : end]) if end >= 3 else [math.nan] * 3
        found.append((third - second) / (second - first))
    return np.array(found)


def _median(values: np.ndarray) -> float:
    present = values[np.isfinite(values)]
    return float(np.median(present)) if len(present) else math.nan


def judge_doubly(residuals: np.ndarray, seed: int) -> StudyVerdict:
    """Judge the claim as it stands: attention that sees every token."""
    found = bootstrap(order(residuals), _median, seed)
    numbers = ", ".join(f"{one:.2g}" for one in np.median(residuals, 0)[3:7])
    return StudyVerdict(
        claim=STUDY.claim,
        word=above(found, ORDER),
        number=found.value,
        said=f"without a mask the logarithm of the relative residual grows by the factor {found} "
        f"from layer to layer (1 is exponential, 3 the theorem's order; above {ORDER:g} was asked "
        f"for): {numbers} after 3 to 6 layers (median of {len(residuals)} draws)",
    )


def judge_halved(residuals: np.ndarray, seed: int) -> StudyVerdict:
    """Judge the rate of collapse under the causal mask that every GPT has."""
    last = 6
    ratios = (residuals[:, -1] / residuals[:, -1 - last]) ** (1 / last)
    found, power = bootstrap(ratios, _median, seed), bootstrap(order(residuals), _median, seed)
    return StudyVerdict(
        claim="In a GPT, whose attention is causal, the collapse is doubly exponential, too.",
        word=above(power, ORDER),
        number=found.value,
        said=f"under a causal mask each of the last {last} of {BARE_DEPTH} layers leaves "
        f"{found} of the relative residual, and the order is {power}, where above {ORDER:g} was "
        "asked for: exponential, at the second eigenvalue 1/2 of uniform causal attention "
        f"(median of {len(residuals)} draws)",
        source="spectral25, section 3; the rate: Own",
    )


def judge_rotary(found: np.ndarray, learned: np.ndarray, seed: int) -> StudyVerdict:
    """Judge whether positions inside attention keep its rows apart when all tokens are equal."""
    powers = {
        name: bootstrap(order(one, FLOOR_MODEL), _median, seed)
        for name, one in (("rotary", found), ("learned", learned))
    }
    power = powers["rotary"]
    return StudyVerdict(
        claim="With rotary positions attention without mask, skips and feed-forward collapses "
        "doubly exponentially, too.",
        word=above(power, ORDER),
        number=power.value,
        said=f"with rotary positions the order is {power}, with learned ones {powers['learned']} "
        f"(1 is exponential, 3 the theorem's; above {ORDER:g} was asked for): turned queries and "
        "keys of equal tokens still give unequal rows of attention, which the theorem excludes",
        source="Own",
    )


def _last(found: np.ndarray, seed: int) -> Interval:
    return bootstrap(found[:, -1], _median, seed)


def judge_skips(stacks: Mapping[tuple[str, bool], np.ndarray], seed: int) -> StudyVerdict:
    """Judge attention with its skip against attention alone."""
    kept = {causal: _last(stacks["attention-skip", causal], seed) for causal in (False, True)}
    alone = {causal: _last(stacks["attention-only", causal], seed) for causal in (False, True)}
    low = min(kept[c].low / alone[c].high for c in kept)
    stays = min(one.low for one in kept.values()) > KEPT
    gone = max(kept[c].high / alone[c].low for c in kept) < 2
    return StudyVerdict(
        claim="Skip connections prevent rank collapse.",
        word=decide(holds=stays and low > 2, fails=gone),
        number=kept[False].value,
        said=f"after {DEPTH} layers with skips the relative residual is {kept[False]} without a "
        f"mask and {kept[True]} with a causal one; without skips {alone[False]} and {alone[True]}. "
        f"Above {KEPT:g} was asked for, and more than twice what is left without skips",
        source="spectral25, section 1.3",
    )


def judge_feedforward(stacks: Mapping[tuple[str, bool], np.ndarray], seed: int) -> StudyVerdict:
    """Judge the feed-forward without skips against attention alone."""
    found = {c: _last(stacks["attention-mlp", c], seed) for c in (False, True)}
    alone = {c: _last(stacks["attention-only", c], seed) for c in (False, True)}
    # Powers of ten behind three layers.
    ends = [np.log10(stacks[name, False][:, 2]) for name in ("attention-mlp", "attention-only")]
    slower = bootstrap(
        np.stack(ends, 1),
        lambda pair: float(np.median(pair[:, 0]) - np.median(pair[:, 1])),
        seed,
    )
    prevents = min(one.low for one in found.values()) > KEPT
    return StudyVerdict(
        claim="Without skips the feed-forward prevents rank collapse.",
        word=decide(holds=prevents, fails=found[False].high < KEPT),
        number=found[False].value,
        said=f"after {DEPTH} layers with feed-forward and no skips the relative residual is "
        f"{found[False]} without a mask and {found[True]} with a causal one, beside "
        f"{alone[False]} and {alone[True]} of attention alone; without a mask the "
        f"first three layers take {slower} powers of ten less off. Above {KEPT:g} was asked for "
        "with and without a mask",
        source="spectral25, section 1.3 and section 3",
    )


def plot_bare(found: Mapping[bool, np.ndarray]) -> Picture:
    """Plot bare attention, with a mask and without."""
    lines = [
        _curve("causal mask" if causal else "no mask", residuals, int(causal), "solid", FLOOR)
        for causal, residuals in found.items()
    ]
    title = "Distance to rank one in attention alone (median, 5 to 95 %)"
    return curves("bare", title, lines, x="layer", y="relative residual")


def plot_stacks(stacks: Mapping[tuple[str, bool], np.ndarray]) -> Picture:
    """Plot the variants of the package."""
    lines = [
        _curve(
            f"{LABELS[name]}, {'causal' if causal else 'no mask'}",
            residuals,
            VARIANTS.index(name),
            "dash" if causal else "solid",
            FLOOR_MODEL,
            first=1,
        )
        for (name, causal), residuals in stacks.items()
        if name in VARIANTS
    ]
    title = "Distance to rank one with skips and feed-forward (median, 5 to 95 %)"
    return curves("stacks", title, lines, x="layer", y="relative residual")


def _curve(
    name: str, found: np.ndarray, kind: int, style: str, floor: float, first: int = 0
) -> Curve:
    low, middle, high = np.percentile(found, [5, 50, 95], axis=0)
    points = np.flatnonzero(middle > floor)
    rows = np.maximum(low[points], floor), middle[points], high[points]
    return band(name, (points + first).tolist(), rows, kind=kind, style=style)


STUDY = Study(
    name="rank-collapse",
    title="Rank collapse and what prevents it",
    source="spectral25, sections 1.3 and 3; dong21, Theorem 2.2",
    claim="Without skips and feed-forward the output of attention degenerates to rank 1 doubly "
    "exponentially with depth.",
    cost="1 minute",
    draws=200,
    scale=random_networks(BARE_DEPTH, WIDTH),
    run=run,
    fast={"draws": 6},
)
