"""spectral25's pictures of a block and of attention with many heads, from trained models.

Predicted: heads add up within rounding; the MLP moves tokens apart, and attention together.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.measures.quantities.diversity import relative_residual
from layerlab.studies.engine.pictures import Curve, curves, heat
from layerlab.studies.engine.sampling import Arrays, GivenModels, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN
from layerlab.studies.engine.statistics import Interval, bootstrap, bootstrap_each, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, below, decide, each
from layerlab.studies.support import passages
from layerlab.studies.support.attention_scores import check_rows
from layerlab.studies.support.once import compute_once
from layerlab.studies.support.theory_block import weights_of

if TYPE_CHECKING:
    from layerlab.observe.architecture.head_weights import HeadWeights
    from layerlab.studies.engine.given_models import GivenModel

# GPT-1's attention hands over its scores alone; the source's block is GPT-2's.
MODELS = ("pre-norm", "llama")
TOKENS = 64
# Tokens of the built-in text that are drawn: its first sentence, or most of it.
SHOWN = 24
# Rows with fewer keys say little of entropy.
KEYS = 8
# A hundred roundings of float32: each output sums up the products of 64 channels.
ROUNDING = 100 * 2.0**-24
# A quarter of the attention lies elsewhere in another head.
APART = 0.25
# As in other studies: a twentieth is the least that is meant.
EFFECT = 1.05
HEADS = ("error", "entropy", "sink", "share", "apart")
SUBLAYERS = ("stream", "attention", "ffn")
SHOWN_HEADS = {
    "entropy": "Entropy of attention over that of equal weights",
    "sink": "Attention to the first token of a passage",
    "share": "Share of the lengths of what heads add",
}
ENTERED = ("attention reads", "attention gives", "MLP reads", "MLP gives")


def anatomy(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return what the heads and sublayers of every layer do, for each passage of one batch."""
    found: dict[str, list[Tensor]] = {"block": [], "heads": [], "norms": [], "residuals": []}

    def read(layer: Any) -> None:
        check_rows(layer.attention)
        if not {*SUBLAYERS[1:]} <= {*layer.sublayers}:
            raise NotApplicable("no feed-forward is seen in a block with attention")
        if any(layer.sublayers[name].branch is None for name in SUBLAYERS[1:]):
            raise NotApplicable("no sum in a block shows that its sublayers join the stream")
        found["block"].append(torch.tensor(1 + layer.layer))
        found["heads"].append(_heads(layer, own[layer.attention.name]))
        found["norms"].append(_norms(layer))
        found["residuals"].append(_residuals(layer))

    own = weights(name, draw.given.get(name))
    passages.for_each_attention(
        passages.get_model(name, draw.given), passages.excerpts(draw, name, TOKENS), read
    )
    if len({len(heads) for heads in found["heads"]}) > 1:
        raise NotApplicable("its layers have different numbers of heads")
    return {
        key: torch.stack(rows).view(draw.count, -1, *rows[0].shape) for key, rows in found.items()
    }


@compute_once
def weights(name: str, own: "GivenModel | None" = None) -> "dict[str, HeadWeights]":
    """Return the weights of every attention layer of a model, cut into heads, by its name."""
    subject = passages.get_model(name, {} if own is None else {name: own})
    assert not isinstance(subject.stack, str), subject.stack
    return {part.name: weights_of(part, subject) for part in subject.stack.attentions}


def contributions(attended: Any, found: "HeadWeights") -> Tensor:
    """Return what every head adds, head x token x width: A_h V_h through its slice of W_O."""
    if found.output is None or attended.value is None:
        raise NotApplicable("its attention hands over no values, or has no output that is known")
    matrices = attended.weights(dtype=torch.float64)
    values = attended.value.double()
    return torch.stack(
        [
            matrices[head] @ values[attended.kv_head(head)] @ found.output[head].double().mT
            for head in range(attended.heads)
        ]
    )


def _heads(layer: Any, found: "HeadWeights") -> Tensor:
    """Return the quantities of each head; `error` is that of all heads together."""
    attended = layer.attention
    added = contributions(attended, found)
    bias = found.output_bias
    total = added.sum(0) + (0.0 if bias is None else bias.double())
    left = layer.sublayers["attention"].left.double()
    matrices = attended.weights(dtype=torch.float64)
    lengths = added.norm(dim=(1, 2))
    columns = (
        ((total - left).norm() / left.norm()).expand(len(added)),
        entropy(matrices),
        matrices[:, KEYS:, 0].mean(1),
        lengths / lengths.sum(),
        apart(matrices),
    )
    return torch.stack(columns, 1)


def entropy(matrices: Tensor) -> Tensor:
    """Return the entropy of each head's rows with enough keys, over that of equal weights."""
    rows = matrices[:, KEYS - 1 :]
    found = -torch.xlogy(rows, rows).sum(-1)
    keys = torch.arange(KEYS, matrices.shape[1] + 1).to(rows)
    return (found / keys.log()).mean(1)


def apart(matrices: Tensor) -> Tensor:
    """Return the share of its attention that a head has elsewhere, mean over the other heads.

    Half the sum of differences of two rows: 0 where they are equal, 1 where they share no key.
    """
    rows = matrices[:, KEYS - 1 :]
    distances = (rows[:, None] - rows[None]).abs().sum(-1).mean(-1) / 2
    return distances.sum(1) / (len(matrices) - 1)


def _norms(layer: Any) -> Tensor:
    """Return the root mean square length, over tokens, of the stream and of what joins it."""
    parts = [layer.entered, *(layer.sublayers[name].branch for name in SUBLAYERS[1:])]
    return torch.stack([part.double().square().sum(1).mean().sqrt() for part in parts])


def _residuals(layer: Any) -> Tensor:
    """Return the share of features that differs between tokens, around both sublayers."""
    parts = [layer.sublayers[name] for name in SUBLAYERS[1:]]
    return torch.stack(
        [relative_residual(one) for part in parts for one in (part.entered, part.left)]
    )


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    parts, model = context.sample_models(anatomy, batch=8), context.models[0]
    text = next((one.source for one in context.given.values()), "the built-in text")
    several = {name: part for name, part in parts.items() if part["heads"].shape[2] > 1}
    return Outcome(
        verdicts=(
            judge_summed(
                parts, {name: one.rounding(TOKENS) for name, one in context.given.items()}
            ),
            *([judge_elsewhere(several, context.seed)] if several else []),
            judge_closer(parts, context.seed),
            judge_further(parts, context.seed),
            judge_carried(parts, context.seed),
        ),
        frames={"heads": table(rows(parts)), "sublayers": table(rows_of(parts))},
        pictures=(
            matrices(model, context.given),
            *(
                by_head(parts[model], quantity, f"{title} ({model}, mean over passages)")
                for quantity, title in SHOWN_HEADS.items()
            ),
            lengths(parts),
            residuals(parts),
        ),
        remarks=(
            f"Passages of {TOKENS} tokens; attention is shown on the first {SHOWN} of {text}, "
            f"in {model}, in the layer whose heads differ most. "
            f"{passages.overlap(TOKENS, context.given)}",
            "What heads add is computed anew in float64 from queries, keys and values that the "
            "model used, and held against what its attention gave.",
        ),
    )


def column(part: Arrays, name: str) -> np.ndarray:
    """Return one quantity of the heads, draw by layer by head."""
    return np.asarray(part["heads"][..., HEADS.index(name)])


def blocks(part: Arrays) -> list[int]:
    """Return the numbers of the blocks that have attention, the first is 1."""
    return [int(number) for number in part["block"][0]]


def describe(found: Mapping[str, Interval]) -> str:
    """Describe the number of each model, one after the other."""
    return ", ".join(f"{one} in {name}" for name, one in found.items())


def judge_summed(parts: Mapping[str, Arrays], limits: Mapping[str, float] = {}) -> StudyVerdict:
    """Judge whether heads projected together are the sum of heads projected alone."""
    asked = {name: limits.get(name, ROUNDING) for name in parts}
    bounds = ", ".join(dict.fromkeys(f"{limit:.2g}" for limit in asked.values()))
    found = {name: float(column(part, "error").max()) for name, part in parts.items()}
    largest = max(found.values())
    numbers = ", ".join(f"{error:.2g} in {name}" for name, error in found.items())
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(holds=all(found[name] < limit for name, limit in asked.items())),
        number=largest,
        said=f"the sum of what the heads add differs from what attention gives by at most "
        f"{numbers} of its size, over all layers and passages; less than {bounds} is "
        "rounding",
    )


def judge_elsewhere(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge whether the heads of a layer look at different keys, two by two."""
    values = {name: column(part, "apart") for name, part in parts.items()}
    found = bootstrap_each(values, np.mean, seed)
    return StudyVerdict(
        claim="Heads of a layer attend to different parts of the input.",
        word=each(above(one, APART, 0) for one in found.values()),
        number=next(iter(found.values())).value,
        said=f"{describe(found)} of a head's attention lies on other keys than in another head of "
        f"its layer, on average; above {APART:g} was asked for",
        source="spectral25, section 1.2.2",
    )


def quotients(part: Arrays, read: str, given: str) -> np.ndarray:
    """Return a sublayer's effect on the share that differs between tokens, draw by layer."""
    values = part["residuals"]
    return np.asarray(values[..., ENTERED.index(given)] / values[..., ENTERED.index(read)])


def judge_closer(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge what attention does to the part that differs between tokens."""
    values = {name: 1 / quotients(part, *ENTERED[:2]) for name, part in parts.items()}
    found = bootstrap_each(values, np.mean, seed)
    return StudyVerdict(
        claim="Attention brings tokens closer to each other.",
        word=each(above(one, EFFECT, 1) for one in found.values()),
        number=next(iter(found.values())).value,
        said="the share of the features that differs between tokens in what attention reads is "
        f"{describe(found)} times that in what it gives, mean over layers; above {EFFECT:g} was "
        "asked for",
        source="spectral25, section 1.3",
    )


def judge_further(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge what the MLP does to the part that differs between tokens."""
    values = {name: quotients(part, *ENTERED[2:]) for name, part in parts.items()}
    found = bootstrap_each(values, np.mean, seed)
    return StudyVerdict(
        claim="The MLP works against it: it moves tokens apart.",
        word=each(above(one, EFFECT, 1) for one in found.values()),
        number=next(iter(found.values())).value,
        said="the share of the features that differs between tokens in what the MLP gives is "
        f"{describe(found)} times that in what it reads, mean over layers; above {EFFECT:g} was "
        "asked for",
        source="spectral25, section 1.3",
    )


def judge_carried(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge what sublayers add against the shortcut, in the layer where they add most."""
    found, count = {}, sum(part["norms"].shape[1] - 1 for part in parts.values())
    for name, part in parts.items():
        added = part["norms"][..., 1:].max(-1) / part["norms"][..., 0]
        # The first block has an embedding before it, and no stream that others have written.
        layer = 1 + int(added[:, 1:].mean(0).argmax())
        found[name] = bootstrap(added[:, layer], np.mean, seed, comparisons=count)
    return StudyVerdict(
        claim="Behind the first block a sublayer adds less than the shortcut carries.",
        word=each(below(one, 1) for one in found.values()),
        number=next(iter(found.values())).value,
        said="what a sublayer adds is as long as the stream that enters its block, times "
        f"{describe(found)}, in the layer where it adds most; below 1 was asked for",
        source="Own, after spectral25, section 1.1, first figure",
    )


def rows(parts: Mapping[str, Arrays]) -> list[dict[str, Any]]:
    """Return a row for every quantity of every head of every layer."""
    return [
        summary(values[:, layer, head], {"model": name, "layer": block, "head": head, **label})
        for name, part in parts.items()
        for quantity in HEADS
        for values, label in [(column(part, quantity), {"quantity": quantity})]
        for layer, block in enumerate(blocks(part))
        for head in range(values.shape[2])
    ]


def rows_of(parts: Mapping[str, Arrays]) -> list[dict[str, Any]]:
    """Return the rows on lengths and residuals of every layer."""
    kinds = (("norms", SUBLAYERS), ("residuals", ENTERED))
    return [
        summary(part[key][:, layer, index], {"model": name, "layer": block, "quantity": label})
        for name, part in parts.items()
        for key, labels in kinds
        for index, label in enumerate(labels)
        for layer, block in enumerate(blocks(part))
    ]


def matrices(name: str, given: GivenModels = passages.NONE) -> Picture:
    """Draw the attention of all heads of one layer on the text's first sentence."""
    from layerlab.loading.token_text import token_strings
    from layerlab.report.figures.export import plain

    subject, ids = passages.get_model(name, given), passages.tokens_of(name, given)[:SHOWN]
    found: dict[int, Tensor] = {}

    def read(layer: Any) -> None:
        found[1 + layer.layer] = layer.attention.weights(dtype=torch.float64)

    passages.for_each_attention(subject, ids[None], read)
    layer = max(found, key=lambda at: float(apart(found[at]).mean()))
    # Equal words of a text are not one word.
    text = token_strings(subject, ids)
    words = [f"{position} {plain(word)}" for position, word in enumerate(text)]
    axes = {"x": words, "y": words, "zmin": 0, "zmax": 1}
    rows = [[[round(value, 4) for value in row] for row in one.tolist()] for one in found[layer]]
    panels = [{"name": f"head {head}", "z": z, **axes} for head, z in enumerate(rows)]
    title = f"Attention of heads 0 to {len(panels) - 1} of layer {layer} ({name})"
    return heat("attention", title, panels, x="key", y="query")


def by_head(part: Arrays, quantity: str, title: str) -> Picture:
    """Draw one quantity of every head, mean over passages."""
    values = column(part, quantity).mean(0)
    panel = {
        "x": [f"head {head}" for head in range(values.shape[1])],
        "y": [str(block) for block in blocks(part)],
        "z": values.round(4).tolist(),
        "zmin": 0,
    }
    return heat(quantity, title, [panel], x="", y="layer")


def lengths(parts: Mapping[str, Arrays]) -> Picture:
    """Plot the lengths of the stream and of what joins it."""
    labels = ("stream before the block", "attention adds", "MLP adds")
    return _plot(
        parts,
        "norms",
        labels,
        "Length of the stream and of what joins it (mean over passages)",
        y="root mean square over tokens",
    )


def residuals(parts: Mapping[str, Arrays]) -> Picture:
    """Plot what differs between tokens, before and behind each sublayer."""
    title = "Share of the features that differs between tokens (mean over passages)"
    return _plot(parts, "residuals", ENTERED, title, y="||JX|| / ||X||")


def _plot(
    parts: Mapping[str, Arrays], key: str, labels: Sequence[str], title: str, *, y: str
) -> Picture:
    lines = [
        Curve(
            name=f"{label}, {name}",
            x=blocks(part),
            y=part[key][..., index].mean(0).tolist(),
            kind=index,
            style=style,
        )
        for (name, part), style in zip(parts.items(), cycle(("solid", "dash", "dot")), strict=False)
        for index, label in enumerate(labels)
    ]
    return curves(key, title, lines, x="layer", y=y, log="y" if key == "norms" else "")


STUDY = Study(
    name="block-anatomy",
    title="A block and its heads",
    source="spectral25, section 1.2.2, third figure",
    claim="Attention with many heads is the sum of its heads, each through its part of W_O.",
    cost="1 minute",
    draws=200,
    models=MODELS,
    passage=TOKENS,
    attention=True,
    layers=2,
    scale=BUILT_IN,
    run=run,
    # With fewer, attention in llama is too near to what was asked for.
    fast={"draws": 100},
    unit=passages.PASSAGES,
)
