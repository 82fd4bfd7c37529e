"""Weight matrices whose tails are out of the usual range, that lack rank, or hold dead rows."""

import math
from collections.abc import Iterator

import pandas as pd

from layerlab.report.findings.extremes import figure, peak, percent
from layerlab.report.findings.rule import Rule, RuleData, RuleHit

LOW, HIGH = 2.0, 6.0  # martin21: exponents of well-trained models lie mostly between
ERRORS = 2.0  # Own: standard errors by which an exponent must be outside
POWER = 0.1  # Own: distance of the fit from the data above which a tail is no power


def _tails(readings: RuleData) -> pd.DataFrame:
    """Return the matrices with a tail that a power describes."""
    rows = readings.rows("matrices", "alpha", "error", "distance")
    return rows[rows["distance"] <= POWER].drop(columns="head", errors="ignore")


def _steep(readings: RuleData) -> Iterator[RuleHit]:
    rows = _tails(readings)
    above = rows[rows["alpha"] - ERRORS * rows["error"] > HIGH]
    if above.empty:
        return
    top = peak(above, "alpha")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: the spectrum of {top.row['matrix']} falls with exponent "
        f"{figure(top.value)}, surely above {figure(HIGH)}; so do {len(above)} of {len(rows)} "
        "matrices",
        advice="Random matrices have exponents above 8 or so: such a matrix has learned little, or "
        "needs little (martin21). Compare it with the same matrix in other layers and other "
        "checkpoints before drawing conclusions.",
        threshold=HIGH,
        kind=str(top.row["matrix"]),
    )


def _heavy(readings: RuleData) -> Iterator[RuleHit]:
    rows = _tails(readings)
    below = rows[rows["alpha"] + ERRORS * rows["error"] < LOW]
    if below.empty:
        return
    top = peak(below, "alpha", lowest=True)
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: the spectrum of {top.row['matrix']} falls with exponent "
        f"{figure(top.value)}, surely below {figure(LOW)}; so do {len(below)} of {len(rows)} "
        "matrices",
        advice="A tail this heavy is ruled by its few largest directions (martin21): look at the "
        "norm and the stable rank of the matrix, and whether it is an embedding, where this is "
        "common.",
        threshold=LOW,
        kind=str(top.row["matrix"]),
    )


def _deficient(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("matrices", "rank", "full_rank").drop(columns="head", errors="ignore")
    lacking = rows.assign(missing=rows["full_rank"] - rows["rank"])
    lacking = lacking[lacking["missing"] > 0]
    if lacking.empty:
        return
    top = peak(lacking, "missing")
    yield RuleHit(
        severity="info",
        sentence=f"{top.place}: {top.row['matrix']} has rank {top.row['rank']:.0f} of "
        f"{top.row['full_rank']:.0f}; {len(lacking)} of {len(rows)} matrices lack rank",
        advice="Some directions are lost in it for good: a product of two thin matrices does the "
        "same for less. A merged adapter or a pruned model looks like this by design.",
        value=float(top.row["rank"]),
        threshold=float(top.row["full_rank"]),
        kind=str(top.row["matrix"]),
        place=top.place,
    )


def _dead(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("matrices", "dead_rows", "dead_columns")
    rows = rows.drop(columns="head", errors="ignore")
    counts = rows.assign(dead=rows["dead_rows"] + rows["dead_columns"])
    counts = counts[counts["dead"] > 0]
    if counts.empty:
        return
    # Tables of tokens have rows without use by design: of padding, or to a round number.
    blocks = counts[counts["layer"].between(0, (readings.card.get("layers") or math.inf) - 1)]
    top = peak(counts if blocks.empty else blocks, "dead")
    yield top.hit(
        severity="info" if blocks.empty else "warning",
        sentence=f"{top.place}: {top.row['matrix']} has {top.row['dead_rows']:.0f} rows and "
        f"{top.row['dead_columns']:.0f} columns next to nothing; {len(counts)} of {len(rows)} "
        "matrices have some",
        advice="Outputs or inputs that the model does not use: in an embedding, padding, or "
        "tokens that were never seen; elsewhere, units that died in training or were pruned.",
        threshold=0.0,
        kind=str(top.row["matrix"]),
    )


def _changes(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("change", "change", "rank", "full_rank")
    rows = rows.drop(columns="head", errors="ignore")
    apart = rows[rows["change"] > 0]
    if apart.empty:
        if len(rows):
            yield RuleHit(
                severity="info",
                sentence=f"none of {len(rows)} matrices differs from the other checkpoint's",
                advice="They are the same weights, or those that it would have in this precision.",
                value=0.0,
                threshold=0.0,
            )
        return
    top = peak(apart, "change")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: {top.row['matrix']} is {percent(top.value)} of its norm away from "
        f"the other checkpoint's, in {top.row['rank']:.0f} of {top.row['full_rank']:.0f} "
        f"directions; {len(apart)} of {len(rows)} matrices differ",
        advice="Few directions are what a merged adapter changes, all of them what full "
        "fine-tuning or quantization does. What predictions lose by it says --against without "
        "--weights.",
        threshold=0.0,
        kind=str(top.row["matrix"]),
    )


RULES = (
    Rule("dead", "matrices", "Own limit", _dead, "dead_rows", relative=True),
    Rule("steeptail", "matrices", "martin21; Own limit", _steep, "alpha"),
    Rule("heavytail", "matrices", "martin21; Own limit", _heavy, "alpha"),
    Rule("changed", "change", "Own", _changes, "change"),
    Rule("deficient", "matrices", "Own", _deficient, "rank", relative=True),
)
