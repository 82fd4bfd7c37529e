"""spectral25's teaching pictures from trained models: a unit ball's image, queries and keys."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.studies.engine.pictures import Curve, band, curves, plane
from layerlab.studies.engine.sampling import Arrays, GivenModels, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN
from layerlab.studies.engine.statistics import bootstrap, bootstrap_each, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, below, each, within
from layerlab.studies.support.attention_scores import check_scores
from layerlab.studies.support.passages import (
    NONE,
    PASSAGES,
    excerpts,
    for_each_attention,
    for_each_layer,
    get_model,
    overlap,
    tokens_of,
)
from layerlab.studies.support.theory_block import weights_of

# GPT-1's attention hands over its scores, and neither queries nor keys.
MODELS = ("pre-norm", "llama")
TOKENS = 64
# Rows with fewer keys are left out: to point at one of three is no feat.
KEYS = 8
# More than half of the rows is most of them.
MOST = 0.5
# Of a mean cosine: cones this much apart do not look like one.
APART = 0.1
# A ratio of semi-axes below it would look like a ball.
ROUND = 1.5
# A score of 3 weighs its key 20 times another of score 0: larger ones are not of order 1.
ONE = 3.0
# Not so where queries and keys have norms of their own, or a cap, as models of a user may.
LENGTHENED = ": it grows with the norms of W_q and W_k, which no layer norm limits"


@dataclass(frozen=True, kw_only=True)
class ChosenHead:
    """One head of a model on one passage, for the pictures.

    Attributes:
        values: singular values of its value-output map.
        images: unit-length inputs of attention, mapped, along the two leading directions.
    """

    name: str
    values: Tensor
    images: Tensor
    query: Tensor
    key: Tensor


def angles(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return, for one batch, angles and sizes of the queries, keys and scores of every head."""
    found: list[dict[str, Tensor]] = []

    def read(layer: Any) -> None:
        check_scores(layer.attention)
        rows = [_head(layer.attention, head) for head in range(layer.attention.heads)]
        found.append({key: torch.stack([row[key] for row in rows]) for key in rows[0]})
        if "attention" not in layer.sublayers:
            raise NotApplicable("what an attention reads is not seen in its block")
        entered = layer.sublayers["attention"].entered.double()
        found[-1]["radius"] = entered.norm(dim=1).mean().expand(len(rows))

    for_each_attention(get_model(name, draw.given), excerpts(draw, name, TOKENS), read)
    return {key: torch.cat([row[key] for row in found]).view(draw.count, -1) for key in found[0]}


def _head(attended: Any, head: int) -> dict[str, Tensor]:
    from layerlab.measures.quantities.diversity import cosine

    query, key = attended.query[head].double(), attended.key[attended.kv_head(head)].double()
    allowed = attended.allowed_keys()[0]
    scores = attended.logits(slice(head, head + 1), dtype=torch.float64)[0]
    return {
        "aligned": share_matched(query, key, allowed),
        "chance": chance_of(allowed),
        "between": between(query, key, allowed),
        "queries": cosine(query),
        "keys": cosine(key),
        "score": scores[allowed].abs().max(),
    }


def _cosines(query: Tensor, key: Tensor) -> Tensor:
    units = [x / x.norm(dim=1, keepdim=True) for x in (query, key)]
    return units[0] @ units[1].mT


def share_matched(query: Tensor, key: Tensor, allowed: Tensor) -> Tensor:
    """Return how often a row's largest score belongs to the key of the smallest angle."""
    rows = allowed.sum(1) >= KEYS
    best = [
        scores.masked_fill(~allowed, -torch.inf)[rows].argmax(1)
        for scores in (query @ key.mT, _cosines(query, key))
    ]
    return (best[0] == best[1]).double().mean()


def chance_of(allowed: Tensor) -> Tensor:
    """Return how often two keys drawn at random would be the same, in a row's keys."""
    counts = allowed.sum(1)
    if not (counts >= KEYS).any():
        raise NotApplicable(f"no token sees {KEYS} keys or more, of {TOKENS} tokens")
    return (1 / counts[counts >= KEYS].double()).mean()


def between(query: Tensor, key: Tensor, allowed: Tensor) -> Tensor:
    """Return the mean cosine between a query and the keys that it may use."""
    return _cosines(query, key)[allowed].mean()


def slices(name: str, given: GivenModels = NONE) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the output and value matrices of every head of a model, layer by layer."""
    subject = get_model(name, given)
    assert not isinstance(subject.stack, str), subject.stack
    for part in subject.stack.attentions:
        weights = weights_of(part, subject)
        if weights.value is None or weights.output is None:
            raise NotApplicable(f"{name}: {'; '.join(dict.fromkeys(weights.refused.values()))}")
        group = len(weights.output) // len(weights.value)
        value = weights.value.double().repeat_interleave(group, 0)
        yield weights.output.double(), value


def maps(name: str) -> Tensor:
    """Return the value-output map of every head of a built-in model, head x width x width."""
    return torch.cat([output @ value for output, value in slices(name)])


def axes_of(name: str, given: GivenModels) -> Tensor:
    """Return the semi-axes of every head's map, which has no more rank than the head is wide."""
    found = []
    for output, value in slices(name, given):
        inner = torch.linalg.qr(output).R @ torch.linalg.qr(value.mT).R.mT
        semi = torch.linalg.svdvals(inner)
        found.append(torch.nn.functional.pad(semi, (0, output.shape[1] - semi.shape[1])))
    return torch.cat(found).cpu()


def axes(mapped: Tensor) -> Tensor:
    """Return the semi-axes of the unit ball's image under each map, as the head width allows."""
    return torch.linalg.svdvals(mapped)


def choose_head(name: str, given: GivenModels = NONE) -> ChosenHead:
    """Choose the head whose map has the largest norm, at the beginning of the text."""
    subject = get_model(name, given)
    layers = list(slices(name, given))
    every = [(place, own) for place, (heads, _) in enumerate(layers) for own in range(len(heads))]
    place, own = every[int(axes_of(name, given)[:, 0].argmax())]
    output, value = layers[place]
    chosen = output[own] @ value[own]
    left, values, _ = torch.linalg.svd(chosen)
    found: dict[str, Tensor] = {}
    places: list[int] = []

    def read(layer: Any) -> None:
        if layer.attention is None:
            return
        index = len(places)
        places.append(layer.layer)
        if index != place:
            return
        entered = layer.sublayers["attention"].entered.double()
        units = entered / entered.norm(dim=1, keepdim=True)
        found["images"] = units @ chosen.mT @ left[:, :2]
        found["query"] = layer.attention.query[own].double()
        found["key"] = layer.attention.key[layer.attention.kv_head(own)].double()
        found["layer"] = torch.tensor(1 + layer.layer)

    for_each_layer(subject, tokens_of(name, given)[None, : 2 * TOKENS], read)
    layer = int(found.pop("layer"))
    cpu = {key: one.cpu() for key, one in found.items()}
    called = f"{name}, layer {layer}, head {own}"
    return ChosenHead(name=called, values=values.cpu(), **cpu)


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    parts = context.sample_models(angles, batch=16)
    semi = {
        name: (axes_of(name, context.given) if context.given else axes(maps(name))).numpy()
        for name in context.models
    }
    one = choose_head(context.models[0], context.given)
    widths = [get_model(name, context.given).config.hidden_size for name in context.models]
    text = next((one.source for one in context.given.values()), "the built-in text")
    rows = [
        summary(values.ravel(), {"model": name, "quantity": quantity})
        for name, found in parts.items()
        for quantity, values in found.items()
    ]
    rows += [
        summary(ratios(values), {"model": name, "quantity": "axis ratio"})
        for name, values in semi.items()
    ]
    return Outcome(
        verdicts=(
            judge_aligned(parts, context.seed),
            judge_cones(parts, context.seed),
            judge_ball(semi, context.seed),
            judge_ordered(parts, context.seed, "" if context.given else LENGTHENED),
            judge_sphere(parts, widths, context.seed),
        ),
        frames={"heads": table(rows)},
        pictures=(plot_ball(one), plot_angles(one), plot_axes(semi)),
        remarks=(
            f"Pictures: the head whose value-output map has the largest norm ({one.name}), on the "
            f"first {2 * TOKENS} tokens of {text}.",
            f"Of order 1 is below {ONE:g}: such a score weighs its key 20 times one of score 0. "
            f"Semi-axes or radii within a factor of {ROUND:g} would look like a ball and like 1; "
            f"cones whose mean cosines are less than {APART:g} apart would look like one.",
            f"Passages of {TOKENS} tokens; queries and keys as they meet, behind rotary positions "
            f"where a model has them. {overlap(TOKENS, context.given)}",
        ),
    )


def judge_aligned(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge whether direction alone decides, or length as well."""
    found = bootstrap_each({name: one["aligned"] for name, one in parts.items()}, np.mean, seed)
    numbers = ", ".join(f"{share} of rows in {name}" for name, share in found.items())
    wins = "a longer key wins: that a key of the same direction gets the attention is no rule"
    rest = any(one.value < 1 for one in found.values())
    others = f"In all other rows {wins}" if rest else "In no row does a longer key win"
    chance = ", ".join(dict.fromkeys(f"{one['chance'].mean():.2g}" for one in parts.values()))
    return StudyVerdict(
        claim=STUDY.claim,
        word=each(above(one, MOST) for one in found.values()),
        number=next(iter(found.values())).value,
        said=f"the key with the largest score is the one with the smallest angle in {numbers} "
        f"(rows of at least {KEYS} keys; chance {chance}), and above {MOST:g}, which is most, "
        f"was asked for. {others}",
    )


def judge_cones(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge the angles among queries, among keys, and between the two."""
    means = []
    gaps = bootstrap_each(
        {
            name: (found["queries"] + found["keys"]) / 2 - found["between"]
            for name, found in parts.items()
        },
        np.mean,
        seed,
    )
    for name, found in parts.items():
        means.append(
            f"{bootstrap(found['queries'], np.mean, seed)} among queries, "
            f"{bootstrap(found['keys'], np.mean, seed)} among keys and "
            f"{bootstrap(found['between'], np.mean, seed)} between them in {name}"
        )
    apart = ", ".join(f"{gap} in {name}" for name, gap in gaps.items())
    return StudyVerdict(
        claim="Queries and keys of a head lie in different cones.",
        word=each(above(gap, APART, 0) for gap in gaps.values()),
        number=next(iter(gaps.values())).value,
        said=f"the mean cosine is {'; '.join(means)}. The mean of the first two less the third is "
        f"{apart}; above {APART:g} was asked for",
        source="Own, after spectral25, section 1.2.2, second figure",
    )


def ratios(values: np.ndarray) -> np.ndarray:
    """Return the longest over the shortest nonzero semi-axis, head by head."""
    there = values > 1e-6 * values[:, :1]
    return np.asarray([one[0] / one[kept][-1] for one, kept in zip(values, there, strict=True)])


def judge_ball(semi: Mapping[str, np.ndarray], seed: int) -> StudyVerdict:
    """Judge the semi-axes of the image of the unit ball."""
    found = bootstrap_each({name: ratios(values) for name, values in semi.items()}, np.median, seed)
    numbers = ", ".join(f"{ratio} in {name}" for name, ratio in found.items())
    first = next(iter(semi.values()))
    rank = int((first > 1e-6 * first[:, :1]).sum(1).max())
    width = first.shape[1]
    return StudyVerdict(
        claim="The value-output map of a head makes of the unit ball an ellipsoid far from a ball.",
        word=each(above(one, ROUND, 1) for one in found.values()),
        number=next(iter(found.values())).value,
        said=f"its longest semi-axis is {numbers} times the shortest of those that are not 0, and "
        f"above {ROUND:g} was asked for (median and interval over heads); {rank} of {width} are "
        "not 0",
        source="spectral25, section 2.1, fourth figure",
        unit=f"{len(first)} heads of one model of each kind",
    )


def judge_ordered(parts: Mapping[str, Arrays], seed: int, why: str) -> StudyVerdict:
    """Judge the size of scores behind a norm."""
    found = bootstrap_each(
        {name: one["score"].max(1) for name, one in parts.items()}, np.median, seed
    )
    numbers = ", ".join(f"{score} in {name}" for name, score in found.items())
    return StudyVerdict(
        claim="Behind a layer norm scores are always of order 1.",
        word=each(below(one, ONE) for one in found.values()),
        number=next(iter(found.values())).value,
        said=f"the largest score of a passage is {numbers}, and below {ONE:g} was asked for "
        f"(median over passages){why}",
        source="spectral25, section 1.2.1",
    )


def judge_sphere(parts: Mapping[str, Arrays], widths: Sequence[int], seed: int) -> StudyVerdict:
    """Judge the length of what attention reads."""
    found = bootstrap_each({name: one["radius"] for name, one in parts.items()}, np.mean, seed)
    radii = ", ".join(f"{radius} in {name}" for name, radius in found.items())
    roots = ", ".join(dict.fromkeys(f"{width**0.5:g}" for width in widths))
    return StudyVerdict(
        claim="A layer norm projects tokens onto a sphere of radius 1.",
        word=each(within(one, 1 / ROUND, ROUND) for one in found.values()),
        number=next(iter(found.values())).value,
        said=f"what attention reads has the mean length {radii}, and within a factor of {ROUND:g} "
        f"of 1 was asked for: the radius is sqrt(d) = {roots} before the gain of the norm",
        source="spectral25, section 1.2.1",
    )


def plot_ball(one: ChosenHead) -> Picture:
    """Plot the ellipse of the two leading directions, with the tokens that were mapped."""
    turn = np.linspace(0, 2 * np.pi, 181)
    first, second = (float(value) for value in one.values[:2])
    x, y = np.cos(turn), np.sin(turn)
    circle = Curve(name="unit circle", x=x.tolist(), y=y.tolist(), kind=6, style="dash")
    x, y = (first * x).tolist(), (second * y).tolist()
    ellipse = Curve(name="image of the unit ball", x=x, y=y, kind=0)
    x, y = one.images.mT.tolist()
    cloud = Curve(name="tokens of unit length", x=x, y=y, kind=1)
    return plane(
        "ball",
        f"Image of the unit ball under W_o W_v ({one.name})",
        [circle, ellipse],
        [cloud],
        x="along the first left singular vector",
        y="along the second",
    )


def plot_angles(one: ChosenHead) -> Picture:
    """Plot queries and keys in the plane of their two leading directions."""
    both = torch.cat([one.query, one.key])
    right = torch.linalg.svd(both, full_matrices=False).Vh[:2]
    clouds = [
        Curve(name=name, x=flat[:, 0].tolist(), y=flat[:, 1].tolist(), kind=kind)
        for kind, (name, flat) in enumerate(
            (("queries", one.query @ right.mT), ("keys", one.key @ right.mT))
        )
    ]
    kept = float((both @ right.mT).square().sum() / both.square().sum())
    return plane(
        "angles",
        f"Queries and keys ({one.name}); {kept:.0%} of their squared length lies in this plane",
        [],
        clouds,
        x="first direction",
        y="second direction",
    )


def plot_axes(semi: Mapping[str, np.ndarray]) -> Picture:
    """Plot the semi-axes of the images, over heads."""
    lines = []
    for kind, (name, values) in enumerate(semi.items()):
        rank = int((values > 1e-6 * values[:, :1]).sum(1).min())
        rows = np.percentile(values[:, :rank], [5, 50, 95], axis=0)
        lines.append(band(name, list(range(1, rank + 1)), rows, kind=kind))
    title = "Semi-axes of the unit ball's image (median over heads, 5 to 95 %)"
    return curves("axes", title, lines, x="axis, longest first", y="semi-axis")


STUDY = Study(
    name="unit-ball",
    title="Unit ball and query-key angles",
    source="spectral25, section 1.2.2",
    claim="A key gets the attention of a query whose direction it has, in most rows.",
    cost="20 seconds",
    draws=200,
    models=MODELS,
    passage=2 * TOKENS,
    attention=True,
    scale=BUILT_IN,
    run=run,
    fast={"draws": 8},
    unit=PASSAGES,
)
