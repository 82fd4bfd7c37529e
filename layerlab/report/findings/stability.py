"""Blocks that amplify, gradients that vanish or explode, a stream that grows, layers that idle."""

import math
from collections.abc import Iterator

from layerlab.records.layer_names import layer_name
from layerlab.report.findings.extremes import figure, peak, percent
from layerlab.report.findings.rule import Location, Rule, RuleData, RuleHit

STEEP = 10.0  # Own: times the median block
STEEP_BLOCKS = 4  # Own: fewer blocks have no telling median
GRADIENT = 1e3  # Own; noci22 and wortsman23 describe both directions
GROWTH = 100.0  # Own
GROWTH_GRAVE = 1e4  # Own: an update of its first size is then lost in bf16, and nearly in fp16
IDLE = 0.01  # Own: both branches write less than this share of the stream


def _steep(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("lipschitz", "local")
    layers = readings.means(rows, ["layer"], "local").reset_index()
    if len(layers) < STEEP_BLOCKS:
        return
    median = float(layers["local"].median())
    above = layers[layers["local"] > STEEP * median]
    if above.empty or median <= 0:
        return
    top = peak(above, "local")
    first = top.place.layer == int(layers["layer"].min())
    yield top.hit(
        severity="info" if first else "warning",
        sentence=f"{top.place}: the block can amplify a small change {figure(top.value)} times, "
        f"{figure(top.value / median)} times the median block ({figure(median)}){top.more}",
        advice="The first block reads embeddings, which are small beside the stream, so its norm "
        "amplifies them most: look at the others before changing anything."
        if first
        else "Rounding and quantization errors that enter here grow most: keep this block in "
        "higher precision, and check its norm gains and its largest scores.",
        threshold=STEEP * median,
    )


def _gradient(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("lipschitz", "gradient")
    layers = readings.means(rows, ["layer"], "gradient")["gradient"]
    if len(layers) < 2:
        return
    first, last = float(layers.iloc[0]), float(layers.iloc[-1])
    if not 0 < last < math.inf or 1 / GRADIENT <= first / last <= GRADIENT:
        return
    ratio, explodes = first / last, first > last
    ends = int(layers.index[0]), int(layers.index[-1])
    yield RuleHit(
        severity="warning",
        sentence=f"the loss gradient at {layer_name(ends[0])} is {figure(ratio)} times that at "
        f"{layer_name(ends[1])}: it {'explodes' if explodes else 'vanishes'} on its way back",
        advice="Scale the branches by 1/sqrt(depth) (noci22) or put a norm into each branch; in a "
        "trained model, expect the first layers to react too strongly to fine-tuning."
        if explodes
        else "The first layers hardly learn from this text. Scale the branches by 1/sqrt(depth) "
        "(noci22), or check whether the tokens' features collapse on the way.",
        value=ratio,
        threshold=GRADIENT if explodes else 1 / GRADIENT,
        place=Location(layer=ends[0]),
    )


def _growth(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("stream", "norm")
    layers = readings.means(rows, ["layer"], "norm")["norm"]
    if len(layers) < 2 or not float(layers.iloc[0]) > 0:
        return
    first, last = float(layers.iloc[0]), float(layers.iloc[-1])
    growth = last / first
    if not growth > GROWTH:
        return
    layer = int(layers.index[-1])
    yield RuleHit(
        severity="warning" if growth > GROWTH_GRAVE else "info",
        sentence=f"layer {layer}: the mean norm of the residual stream is {figure(last)}, "
        f"{figure(growth)} times that of the embeddings ({figure(first)})",
        advice="Usual for pre-norm models, and it shrinks the say of late layers: an update as "
        f"large as an embedding is {percent(1 / growth)} of the stream there. Depth-scaled "
        "initialisation or a norm after each branch keeps it flat (noci22, wortsman23).",
        value=growth,
        threshold=GROWTH,
        place=Location(layer=layer),
        picture="channels",
    )


def _idle(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("stream", "attention_share", "ffn_share")
    if rows.empty:
        return
    shares = readings.means(rows, ["layer"], "attention_share", "ffn_share").reset_index()
    shares["written"] = shares[["attention_share", "ffn_share"]].max(axis=1)
    idle = shares[shares["written"] < IDLE]
    if idle.empty:
        return
    top = peak(idle, "written", lowest=True)
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: attention and feed-forward write {percent(top.value)} of the "
        f"stream at most, below {percent(IDLE)}{top.more}",
        advice="It does almost nothing on this text: a candidate for pruning. Remove it, measure "
        "the loss again, and keep the cut if it did not move.",
        threshold=IDLE,
    )


RULES = (
    Rule("gradient", "lipschitz", "Own limit; noci22", _gradient, "gradient", relative=True),
    Rule("steep", "lipschitz", "Own limit; castin24", _steep, "local"),
    Rule("growth", "stream", "Own limit; wortsman23", _growth, "growth"),
    Rule("idle", "stream", "Own limit", _idle, "attention_share"),
)
