"""Features that become alike: one common direction, few dimensions, a fall in every layer."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from layerlab.records.layer_names import EMBEDDING
from layerlab.report.findings.extremes import figure, peak, percent
from layerlab.report.findings.rule import Location, Rule, RuleData, RuleHit

RESIDUAL = 0.1  # Own; dong21 proves the limit 0, not a level
FALL = 0.5  # Own: last layer against first, where every layer in between falls
COSINE = 0.9  # Own; ethayarajh19 reports up to 0.99 in the last layers of models that work well
DIMENSION = 0.05  # Own: share of the dimensions that there could be
DIMENSION_ROOM = 20  # Own: with less room a small share is a handful of dimensions anyway
ENOUGH = 4  # Own: tokens per width, so that the dimension is the model's and not the sample's


def _stream(readings: RuleData, column: str) -> pd.DataFrame:
    """Return the mean of a diversity column over texts, one row per layer of the stream."""
    rows = readings.rows("diversity", column)
    if rows.empty:
        return rows
    if "place" in rows.columns:
        rows = rows[rows["place"] == "stream"]
    return readings.means(rows, ["layer"], column).reset_index()


def _residual(readings: RuleData) -> Iterator[RuleHit]:
    layers = _stream(readings, "relative_residual")
    low = layers[layers["relative_residual"] < RESIDUAL]
    if low.empty:
        yield from _fall(layers)
        return
    top = peak(low, "relative_residual", lowest=True)
    yield top.hit(
        severity="warning",
        sentence=f"{top.place}: {percent(top.value)} of the stream is what tells its tokens apart, "
        f"below {percent(RESIDUAL)}; the rest is the same for all{top.more}",
        advice="Rank collapse (dong21), or one large bias that every token carries: if the loss "
        "is good, subtract the mean feature before comparing tokens. In training, check that the "
        "shortcuts are not scaled down and that the norm gains have not shrunk.",
        threshold=RESIDUAL,
        kind="stream",
        picture="channels",
    )


def _fall(layers: pd.DataFrame) -> Iterator[RuleHit]:
    curve = layers["relative_residual"].to_numpy(dtype=float)
    if len(curve) < 4 or not (np.diff(curve) < 0).all() or curve[-1] > FALL * curve[0]:
        return
    last = int(layers["layer"].iloc[-1])
    yield RuleHit(
        severity="info",
        sentence=f"layer {last}: the share of the stream that tells tokens apart fell in every "
        f"layer, from {figure(curve[0])} to {figure(curve[-1])}",
        advice="Features become more alike with depth. Deeper stacks of the same kind would "
        "collapse further; stronger shortcuts (tang21) or a series activation (pangu23) slow it.",
        value=float(curve[-1]),
        threshold=FALL * float(curve[0]),
        kind="stream",
        place=Location(layer=last),
    )


def _cosine(readings: RuleData) -> Iterator[RuleHit]:
    layers = _stream(readings, "cosine")
    residual = _stream(readings, "relative_residual")
    collapsed = residual[residual["relative_residual"] < RESIDUAL]["layer"]
    high = layers[(layers["cosine"] > COSINE) & ~layers["layer"].isin(collapsed)]
    if high.empty:
        return
    top = peak(high, "cosine")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: two tokens of a text have cosine {figure(top.value)} on average, "
        f"above {COSINE}{top.more}",
        advice="The features share one common direction; good models do this too (ethayarajh19). "
        "Subtract the mean feature before using cosines as similarities.",
        threshold=COSINE,
        kind="stream",
        picture="channels",
    )


def _dimension(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("dimension", "effective_dimension", "tokens")
    width = readings.card.get("width")
    if rows.empty or not width:
        return
    tokens = int(rows["tokens"].max())
    if tokens < ENOUGH * width:
        yield _too_few(tokens, int(width))
        return
    room = min(int(width), tokens - 1)
    shares = rows.assign(share=rows["effective_dimension"] / room)
    low = shares[(shares["share"] < DIMENSION) & (shares["layer"] != EMBEDDING)]
    if low.empty or room < DIMENSION_ROOM:
        return
    top = peak(low, "share", lowest=True)
    count = top.row["effective_dimension"]
    massive = readings.rows("stream", "massive")
    driven = top.place.layer in set(massive[massive["massive"] > 0]["layer"])
    yield RuleHit(
        severity="warning" if count <= 1 and not driven else "info",
        sentence=f"{top.place}: {count:.0f} of {room} dimensions hold the share of the variance "
        f"that counts as effective, {percent(top.value)}, below {percent(DIMENSION)}{top.more}",
        advice="Massive activations rule the variance of this layer; see that finding, and read "
        "the effective rank, which weighs them less."
        if driven
        else "Few directions carry nearly everything (pangu23, section 5.2): compare the effective "
        "rank, and with a second model of this width before calling it collapse.",
        value=float(count),
        threshold=DIMENSION * room,
        place=top.place,
        picture="channels",
    )


def _too_few(tokens: int, width: int) -> RuleHit:
    return RuleHit(
        severity="info",
        sentence=f"only {tokens:,} tokens for a width of {width:,}: dimensions and ranks are "
        f"limited by the sample (at most {tokens - 1:,}), so they are not judged",
        advice=f"Give at least {ENOUGH * width:,} tokens: more --samples, or a longer --context.",
        value=float(tokens),
        threshold=float(ENOUGH * width),
        relative=True,
        mark="tokens",
    )


RULES = (
    Rule("collapse", "diversity", "Own limit; dong21", _residual, "relative_residual"),
    Rule("cosine", "diversity", "Own limit; ethayarajh19", _cosine, "cosine"),
    Rule("dimension", "dimension", "Own limit; pangu23", _dimension, "effective_dimension"),
)
