"""Findings on few bits: massive activations, outlier channels, cancelling or idle heads."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from layerlab.report.findings.attention import LARGEST_HALF
from layerlab.report.findings.extremes import Peak, figure, peak, percent
from layerlab.report.findings.rule import Rule, RuleData, RuleHit

HEADROOM = 2.0  # Own: the next layer may double it
KURTOSIS = 100.0  # Own; he24 plots the quantity, 1 is an even stream and `width` a single channel
KURTOSIS_SHARE = 0.5  # Own: of the width, where that is the smaller
MASSIVE = 100.0  # sun24, section 2; `massive` also asks for 1000 times the median
CONDITION = 1e4  # Own
FLIPPED = 0.05  # Own: one token in twenty
LARGE = 0.1  # Own: share of the KL divergence
CANCELLING = 2.0  # Own: times head_width; independent Gaussian weights have about 0.4 times


def _overflow(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("stream", "largest")
    rows = rows[rows["largest"] > LARGEST_HALF / HEADROOM]
    if rows.empty:
        return
    top = peak(rows, "largest")
    half = readings.card.get("dtype") == "float16"
    yield top.hit(
        severity="error" if half or not np.isfinite(top.value) else "warning",
        sentence=f"{top.place}: the stream reaches {figure(top.value)}{_spot(top.row)}, and fp16 "
        f"overflows at {LARGEST_HALF:,.0f}{top.more}",
        advice="Run and train this model in bf16 or float32: fp16 turns it into Inf, then NaN.",
        threshold=LARGEST_HALF / HEADROOM,
        picture="channels",
    )


def _massive(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("stream", "massive", "largest", "median")
    rows = rows[rows["massive"] > 0]
    if rows.empty:
        return
    top = peak(rows, "largest")
    yield top.hit(
        severity="info",
        sentence=_massive_sentence(top),
        advice="Most large models have a few and rely on them (sun24). Quantize activations per "
        "channel or keep these channels in 16 bit (dettmers22); one scale per tensor wastes "
        "nearly all levels.",
        threshold=MASSIVE,
        picture="channels",
    )


def _massive_sentence(top: Peak) -> str:
    value, spot, median = figure(top.value), _spot(top.row), top.row["median"]
    if not median > 0:
        return f"{top.place}: massive activation {value}{spot}, beside a median of 0{top.more}"
    ratio = figure(top.value / median)
    return (
        f"{top.place}: massive activation {value}{spot}, {ratio} times the median "
        f"{figure(median)}{top.more}"
    )


def _spot(row: dict[str, Any]) -> str:
    token, channel = row.get("largest_token"), row.get("largest_channel")
    if pd.isna(token) or pd.isna(channel):
        return ""
    return f" (token {int(token)}, channel {int(channel)})"


def _kurtosis(readings: RuleData) -> Iterator[RuleHit]:
    width = readings.card.get("width")
    limit = min(KURTOSIS, KURTOSIS_SHARE * width) if width else KURTOSIS
    rows = readings.rows("stream", "kurtosis")
    rows = rows[rows["kurtosis"] > limit]
    if rows.empty:
        return
    top = peak(rows, "kurtosis")
    yield top.hit(
        severity="warning",
        sentence=f"{top.place}: kurtosis of the channels is {figure(top.value)}, above "
        f"{figure(limit)}: a few channels hold most of the stream{top.more}",
        advice="int8 with one scale per tensor will lose the others: use a scale per channel, "
        "rotate the stream before quantizing, or keep outliers in 16 bit (dettmers22). When "
        "training anew, he24 says which choices avoid them.",
        threshold=limit,
        picture="channels",
    )


def _condition(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("querykey", "condition")
    rows = rows[rows["condition"] > CONDITION]
    if rows.empty:
        return
    top = peak(rows, "condition")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: condition of W_k^T W_q is {figure(top.value)}, above "
        f"{figure(CONDITION)}{top.more}",
        advice="The head leaves some of its query-key directions unused: fewer would do, or it is "
        "undertrained. At a fixed norm the condition does not raise the rounding error of scores; "
        "the norm of |W_k|^T |W_q| does (budzinskiy25).",
        threshold=CONDITION,
        picture="attention",
    )


def _cancelling(readings: RuleData) -> Iterator[RuleHit]:
    width = readings.card.get("head_width")
    rows = readings.rows("querykey", "abs_norm", "norm")
    rows = rows[rows["norm"] > 0]
    if rows.empty or not width:  # of no row, a configuration may hold anything
        return
    rows = rows.assign(ratio=rows["abs_norm"] / rows["norm"])
    rows = rows[rows["ratio"] > CANCELLING * width]
    if rows.empty:
        return
    top = peak(rows, "ratio")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: the norm of |W_k|^T |W_q| is {figure(top.value)} times that of "
        f"W_k^T W_q, above {figure(CANCELLING * width)}{top.more}",
        advice="Its scores are small differences of large terms, where rounding errors are "
        "largest beside the result (budzinskiy25): compute this head's scores in float32.",
        threshold=CANCELLING * width,
        picture="attention",
    )


def _divergence(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("swap", "share")
    rows = rows[np.isfinite(rows["share"])]
    if rows.empty:
        return
    whole, parts = rows.iloc[0], rows[rows["by"] != "all"]
    # What costs most for its size, of what costs much: most parts with most weights cost most.
    large = parts[parts["share"] >= min(LARGE, parts["share"].max())]
    top = large.iloc[int((large["share"] / large["weights"]).argmax())]
    saved = percent(top["saved"]) if top["saved"] > 0 else "nothing alone"
    yield RuleHit(
        severity="warning" if whole["flips"] > FLIPPED else "info",
        sentence=f"it predicts otherwise than the other checkpoint by "
        f"{figure(float(whole['kl']))} nats per token (KL), with another likeliest token at "
        f"{percent(whole['flips'])} of them; the weights of {top['part']}, "
        f"{percent(top['weights'] / whole['weights'])} of those that differ, alone make "
        f"{percent(top['share'])} of that",
        advice="Where the other checkpoint is what this one should be, keep this part in more "
        f"digits first: that saves {saved}.",
        value=float(whole["flips"]),
        threshold=FLIPPED,
    )


RULES = (
    Rule("swapped", "swap", "Own limit", _divergence),
    Rule("overflow", "stream", "IEEE 754 binary16", _overflow, "largest"),
    Rule("kurtosis", "stream", "Own limit; he24", _kurtosis, "kurtosis"),
    Rule("massive", "stream", "sun24: above 100 and 1000 times the median", _massive, "largest"),
    Rule("cancelling", "querykey", "Own; budzinskiy25", _cancelling, "abs_norm", relative=True),
    Rule("condition", "querykey", "Own limit", _condition, "condition"),
)
