"""Scores that grow, rows that see one token, sinks, and norms that concentrate."""

import math
from collections.abc import Iterator

import pandas as pd

from layerlab.report.findings.extremes import Peak, figure, peak, percent
from layerlab.report.findings.rule import Rule, RuleData, RuleHit

SCORE = 100.0  # kimi25: QK-clip's tau
SCORE_DIVERGED = 1e4  # wortsman23: runs whose scores passed about 1e4 diverged
LARGEST_HALF = 65504.0  # the largest finite fp16 number
ENTROPY_HEAD = 0.05  # Own; zhai23 names the phenomenon and gives no limit
ENTROPY_LAYER = 0.1  # Own
SINK = 0.8  # Own; xiao23 describes the sink
SINK_TOKENS = 16  # Own: in a shorter text the first token has much of the mass by counting alone
RATIO = 3.0  # Own: times the norm of the uniform causal matrix of the same length
COLUMN_SHARE = 0.8  # Own: the fullest column alone explains the norm
ENCLOSURE = 1e-2  # Own: ten times the gap that the method promises


def _score(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("attention", "logit_max")
    rows = rows[rows["logit_max"] > SCORE]
    if rows.empty:
        return
    top = peak(rows, "logit_max")
    softcap = readings.card.get("softcap")
    yield top.hit(
        severity="info" if softcap else "error" if top.value >= SCORE_DIVERGED else "warning",
        sentence=f"{top.place}: largest attention score {figure(top.value)}, above {figure(SCORE)}"
        f"{_spread(top)}{top.more}",
        advice=_cap(float(softcap)) if softcap else _headroom(top.value),
        threshold=SCORE,
        picture="attention",
    )


def _spread(top: Peak) -> str:
    spread = top.row.get("logit_range")
    return "" if pd.isna(spread) else f" (range of a row {figure(spread)})"


def _cap(softcap: float) -> str:
    return (
        f"This model caps its scores at {figure(softcap)} before the softmax, so nothing "
        "overflows; scores this far beyond the cap no longer differ after it."
    )


def _headroom(score: float) -> str:
    start = (
        f"fp16 overflows at {LARGEST_HALF:,.0f}, {figure(LARGEST_HALF / score)} times this score"
        if score < LARGEST_HALF
        else f"fp16 overflows at {LARGEST_HALF:,.0f}, so there this score is infinite"
    )
    return (
        f"{start}; bf16 keeps 8 bits of it, a step of {figure(_bfloat_step(score))}. QK-norm "
        "(henry20, dehghani23) or QK-clip (kimi25) bound it; otherwise keep the scores in float32."
    )


def _bfloat_step(number: float) -> float:
    """Return the distance between neighbouring bf16 numbers of this size."""
    return math.ldexp(1.0, math.frexp(number)[1] - 8) if math.isfinite(number) else math.inf


def _entropy(readings: RuleData) -> Iterator[RuleHit]:
    """Yield a finding on layers whose attention is sharp throughout.

    Sharpness that a sink explains is left to the sink rule.
    """
    rows = readings.rows("attention", "entropy")
    if rows.empty:
        return
    columns = [name for name in ("entropy", "sink_mass") if name in rows.columns]
    layers = readings.means(rows, ["layer"], *columns).reset_index()
    sharp = layers[layers["entropy"] < ENTROPY_LAYER]
    if "sink_mass" in columns:
        sharp = sharp[~(sharp["sink_mass"] > 0.5)]
    if sharp.empty:
        yield from _sharp_heads(rows)
        return
    top = peak(sharp, "entropy", lowest=True)
    spot = peak(rows[rows["layer"] == top.place.layer], "entropy", lowest=True)
    yield RuleHit(
        severity="warning",
        sentence=f"{top.place}: mean normalized attention entropy over its heads is "
        f"{figure(top.value)}, below {ENTROPY_LAYER}{top.more}; lowest in head {spot.place.head}",
        advice="Entropy collapse goes with unstable training (zhai23): lower the learning rate, "
        "add QK-norm (henry20), or reparametrise the weights by their spectral norm (zhai23).",
        value=top.value,
        threshold=ENTROPY_LAYER,
        place=spot.place,
        picture="attention",
    )


def _sharp_heads(rows: pd.DataFrame) -> Iterator[RuleHit]:
    heads = rows[["layer", "head"]].drop_duplicates()
    sharp = rows[rows["entropy"] < ENTROPY_HEAD]
    if sharp.empty:
        return
    top = peak(sharp, "entropy", lowest=True)
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: each token attends to almost one token, normalized entropy "
        f"{figure(top.value)}, below {ENTROPY_HEAD}{top.more} (of {len(heads)})",
        advice="Not a fault by itself: previous-token and induction heads (olsson22) are sharp, "
        "and so is a sink. Whole layers as sharp as this would be entropy collapse (zhai23).",
        threshold=ENTROPY_HEAD,
        picture="attention",
    )


def _sink(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("attention", "sink_mass")
    short = [index for index, tokens in readings.tokens.items() if tokens < SINK_TOKENS]
    rows = rows[(rows["sink_mass"] > SINK) & ~rows["sequence"].isin(short)]
    if rows.empty:
        return
    top = peak(rows, "sink_mass")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: {percent(top.value)} of the attention goes to the first token, "
        f"above {percent(SINK)}{top.more}",
        advice="An attention sink: such a head mostly does nothing on this text. Keep the first "
        "tokens when a sliding window trims the cache (xiao23); its large norm is no instability.",
        threshold=SINK,
        picture="attention",
    )


def _ratio(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("spectrum", "uniform_ratio", "norm")
    rows = rows[rows["uniform_ratio"] > RATIO]
    if rows.empty:
        return
    top = peak(rows, "uniform_ratio")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: attention norm {figure(top.row['norm'])}, {figure(top.value)} "
        f"times that of uniform causal attention of the same length{top.more}",
        advice=f"{_column(top)} A norm above 1 does not multiply with depth: the product of "
        "attention matrices stays below sqrt(n).",
        threshold=RATIO,
        picture="attention",
    )


def _column(top: Peak) -> str:
    column = top.row.get("column_bound")
    if pd.isna(column):
        return "A large norm means that many tokens attend to the same few."
    if top.row["norm"] < COLUMN_SHARE * column:
        return (
            f"The fullest column alone allows {figure(column)}: no single token draws it all, "
            "a few share it."
        )
    return (
        f"Its fullest column allows {figure(column)} and nearly is the norm: most tokens attend "
        "to one, an attention sink rather than an amplifier."
    )


def _enclosure(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("spectrum", "lower", "upper")
    gap = (rows["upper"] - rows["lower"]) / rows["lower"]
    rows = rows.assign(gap=gap)[gap > ENCLOSURE]
    if rows.empty:
        return
    top = peak(rows, "gap")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: the attention norm is known only to lie between "
        f"{figure(top.row['lower'])} and {figure(top.row['upper'])}, a gap of "
        f"{percent(top.value)}{top.more}",
        advice="Its two largest singular values are close together; measure the spectrum in "
        "float64 or with more steps for a narrower enclosure.",
        threshold=ENCLOSURE,
    )


RULES = (
    Rule("score", "attention", "kimi25, tau = 100; wortsman23", _score, "logit_max"),
    Rule("entropy", "attention", "Own limit; zhai23", _entropy, "entropy"),
    Rule("sink", "attention", "Own limit; xiao23", _sink, "sink_mass"),
    Rule("ratio", "spectrum", "Own limit; spectral25", _ratio, "uniform_ratio"),
    Rule("enclosure", "spectrum", "Own limit; wielandt50", _enclosure, "norm", relative=True),
)
