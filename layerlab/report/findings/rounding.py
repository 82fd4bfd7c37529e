"""Findings on a number format: which answers change, and where the error is made."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from layerlab.records.layer_names import layer_name
from layerlab.report.findings.extremes import figure, percent
from layerlab.report.findings.rule import Location, Rule, RuleData, RuleHit

CHANGED = 0.05  # Own: one position in twenty gets another likeliest token
NOTABLE = 0.01  # Own
ISLANDS = 1.3  # Own: flat rounding is worse by at least this factor
LARGE = 0.25  # Own: share of the squared error
STEP = 2.0  # Own: one layer doubles the error of the stream
SMALL = 0.1  # Own: below it, raising the precision of scores and softmax buys little
# Plain formats of fewer digits than bf16, in which no model is run residual stream and all.
FEW = re.compile(r"(fp|float)[468](?!\d|.*:(tensor|channel|group))|t[1-7](?!\d)")
TWICE = 2.0  # Own: the predictor's promise


def _change(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("logits", "changed")
    rows = rows[rows["mode"] == "as-run"] if len(rows) else rows
    if rows.empty:
        return
    # What overflowed has no divergence; it is not left out, as the worst that a format does.
    columns = ["changed", "kl", "loss_change"]
    rows = rows.assign(**{name: rows[name].fillna(np.inf) for name in columns})
    means = readings.means(rows, ["format"], *columns)
    worst = means.sort_values(["kl", "changed"], key=_rank).iloc[-1]
    if not worst["changed"] > NOTABLE:
        return
    severe = worst["changed"] > CHANGED or np.isinf(worst["kl"])
    others = [
        f"{name} {percent(row['changed'])}"
        for name, row in means.drop(index=str(worst.name)).iterrows()
    ]
    ahead = bool(readings.card.get("reads_ahead"))
    beside = f" (beside it {', '.join(others)})" if others else ""
    yield RuleHit(
        severity="warning" if severe else "info",
        sentence=f"in {worst.name} another token becomes the likeliest at "
        f"{percent(worst['changed'])} of the positions{beside}; {_loss(worst, ahead)}",
        advice=_advice(str(worst.name)),
        value=float(worst["changed"]),
        threshold=CHANGED if worst["changed"] > CHANGED else NOTABLE,
    )


def _rank(values: pd.Series) -> pd.Series:
    """Rank formats that overflow behind all others, and those by what they change."""
    return np.isinf(values) if values.name == "kl" else values


def _loss(worst: Any, ahead: bool) -> str:
    """Say what a format costs; a model that has seen the next token has no loss."""
    if ahead and np.isfinite(worst["kl"]):
        return f"KL {figure(worst['kl'])} nats"
    if not np.isfinite([worst["kl"], worst["loss_change"]]).all():
        return "KL and loss are not finite"
    return f"KL {figure(worst['kl'])} nats, loss {worst['loss_change']:+.3g} nats"


def _advice(name: str) -> str:
    """Advise on a changed answer.

    For a format of few digits, the advice also names what was not tried here.
    """
    if FEW.match(name.lower()):
        return (
            f"This is no verdict on inference in {name}: every result is rounded to it, the "
            "residual stream too, and without a scale, while real inference rounds scaled factors "
            "of products only. For that, type --formats fp8_e4m3:channel (or int8:channel): "
            "weights and factors of products are rounded, and results stay bf16."
        )
    return (
        "Greedy answers will differ from those of float32. Keep in higher precision what "
        "the attribution names first (layerlab precision finds a small set), or take a format "
        "with more digits."
    )


def _overflow(readings: RuleData) -> Iterator[RuleHit]:
    table = readings.rows("rounding", "mean")
    lost = table[np.isinf(table["mean"])]
    if lost.empty:
        return
    first = lost.sort_values("layer").iloc[0]
    names = ", ".join(dict.fromkeys(lost["format"]))
    yield RuleHit(
        severity="warning",
        sentence=f"in {names} what the model computes stops being finite, first in "
        f"{layer_name(int(first['layer']))}",
        advice="The format's exponents do not reach this far: take bf16, or scale.",
        value=float(len(lost)) / len(table),
        threshold=0.0,
        kind=str(first["format"]),
        place=Location(layer=int(first["layer"])),
    )


def _cause(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("attribution", "share")
    rows = rows[(rows["by"] == "component") & np.isfinite(rows["share"])] if len(rows) else rows
    if rows.empty:
        return
    top = rows.iloc[int(rows["share"].argmax())]
    if not top["share"] > LARGE:
        return
    own = rows[rows["format"] == top["format"]]
    closure = float(own["share"].sum())
    yield RuleHit(
        severity="info",
        sentence=f"in {top['format']}, rounding in the {top['part']} causes "
        f"{percent(top['share'])} of the squared error of the logits, more than any other "
        f"component (closure {closure:.2f})",
        advice="Keep this in float32 first: it is what the error comes from here.",
        value=float(top["share"]),
        threshold=LARGE,
    )


def _scores(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("attribution", "share")
    rows = rows[(rows["by"] == "component") & np.isfinite(rows["share"])] if len(rows) else rows
    if rows.empty:
        return
    inside = rows[rows["part"].str.contains(r":(?:scores|softmax|context)$", regex=True)]
    first = str(rows["format"].iloc[0])
    share = float(inside[inside["format"] == first]["share"].sum())
    if inside.empty or share > SMALL:
        return
    yield RuleHit(
        severity="info",
        sentence=f"in {first}, scores, softmax and the product with values make "
        f"{percent(share)} of the squared error of the logits",
        advice="The advice to compute scores and softmax in higher precision (budzinskiy25) would "
        "buy little here.",
        value=share,
        threshold=SMALL,
    )


def _islands(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("logits", "error")
    if rows.empty:
        return
    means = readings.means(rows, ["format", "mode"], "error")["error"].unstack()
    if not {"as-run", "flat"} <= set(means.columns):
        return
    # Of an error that is 0 or not finite nothing is a multiple.
    ratio = (means["flat"] / means["as-run"]).replace([np.inf, -np.inf], np.nan).dropna()
    if ratio.empty or not ratio.max() > ISLANDS:
        return
    name = str(ratio.idxmax())
    yield RuleHit(
        severity="info",
        sentence=f"in {name}, the parts that the code keeps in float32 hold the error of the "
        f"logits down: with every result rounded it is {figure(float(ratio.max()))} times as large",
        advice="Do not let a compiler or a port round norms, softmax and rotary tables: their "
        "float32 costs little.",
        value=float(ratio.max()),
        threshold=ISLANDS,
    )


def _step(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("rounding", "mean")
    rows = rows[np.isfinite(rows["mean"])]
    if rows.empty:
        return
    means = readings.means(rows, ["format", "layer"], "mean").reset_index()
    before = means.groupby("format")["mean"].shift(1)
    # The first block reads bare embeddings, whose error is that of their storage alone.
    steps = means.assign(step=means["mean"] / before.where(before > 0)).query("layer > 0").dropna()
    if steps.empty or not steps["step"].max() > STEP:
        return
    top = steps.iloc[int(steps["step"].argmax())]
    yield RuleHit(
        severity="info",
        sentence=f"layer {int(top['layer'])} multiplies the error of the stream in "
        f"{top['format']} by {figure(float(top['step']))}, to {figure(float(top['mean']))}",
        advice="Look at this layer's share in the attribution, and keep it in higher precision.",
        value=float(top["step"]),
        threshold=STEP,
        kind=str(top["format"]),
        place=Location(layer=int(top["layer"])),
    )


def _predictor(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("rounding", "mean", "predicted")
    rows = rows[(rows["predicted"] > 0) & (rows["mean"] > 0)]
    rows = rows[np.isfinite(rows["mean"]) & np.isfinite(rows["predicted"])]
    if rows.empty:
        return
    ratio = rows["mean"] / rows["predicted"]
    off = ratio.where(ratio > 1, 1 / ratio)
    if not off.max() > TWICE:
        return
    top = rows.iloc[int(off.argmax())]
    yield RuleHit(
        severity="info",
        sentence=f"{layer_name(int(top['layer']))}: the error in {top['format']} is "
        f"{figure(float(top['mean']))}, and {figure(float(top['predicted']))} was predicted",
        advice="The prediction takes errors as small and independent; here they are not.",
        value=float(off.max()),
        threshold=TWICE,
        kind=str(top["format"]),
        place=Location(layer=int(top["layer"])),
    )


RULES = (
    Rule("unfinite", "rounding", "Own", _overflow, "mean", relative=True),
    Rule("answers", "logits", "Own limit", _change),
    Rule("cause", "attribution", "Own limit", _cause),
    Rule("islands", "logits", "Own limit", _islands),
    Rule("amplifier", "rounding", "Own limit", _step, "mean", relative=True),
    Rule("scores", "attribution", "Own; budzinskiy25", _scores),
    Rule("predictor", "rounding", "Own limit", _predictor, "mean", relative=True),
)
