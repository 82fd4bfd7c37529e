"""Heads that harm, heads that hardly matter, and parts without which the loss rises the most."""

from collections.abc import Iterator

import pandas as pd

from layerlab.report.findings.extremes import figure, peak
from layerlab.report.findings.rule import Rule, RuleData, RuleHit

CHANCE = 0.05  # Own: that a fall is named where no head of all has one (Student's t, Bonferroni)
ERRORS = 3.0  # Own: standard errors above 0, over texts, from which on a rise counts
TEXTS = 3  # Own: with fewer texts a rise is named whatever its standard error
SPARE = 1e-3  # Own: nats; michel19 count heads whose removal changes the score by next to nothing
DOMINANT = 3.0  # Own: times the median over the sublayers
PARTS = {"attention": "attention", "ffn": "feed-forward"}


def _component(readings: RuleData, *components: str) -> pd.DataFrame:
    rows = readings.rows("ablation", "change")
    return rows[rows["component"].isin(components)] if len(rows) else rows


def _harmful(readings: RuleData) -> Iterator[RuleHit]:
    from scipy.special import stdtrit  # late: it takes a third of a second

    rows = _component(readings, "head")
    if rows.empty:
        return
    limit = -float(stdtrit(rows["texts"].min() - 1, CHANCE / len(rows)))
    fallen = rows[rows["change"] < -limit * rows["error"]]
    if fallen.empty:
        return
    top = peak(fallen, "change", lowest=True)
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: without it the loss falls by {figure(-top.value)} nats, more than "
        f"{figure(limit)} standard errors{top.more}; {len(rows)} heads were tried",
        advice="Where no head harms, chance makes one of all heads fall as far in one inspection "
        "of twenty at most (Student's t, Bonferroni). Each was taken out alone: see before it is "
        "pruned whether the others make up for one another (michel19).",
        threshold=-limit * float(top.row["error"]),
        kind="head",
        picture="attention",
    )


def _spare(readings: RuleData) -> Iterator[RuleHit]:
    rows = _component(readings, "head")
    spare = rows[rows["change"].abs() < SPARE] if len(rows) else rows
    if spare.empty:
        return
    yield RuleHit(
        severity="info",
        sentence=f"the loss changes by less than {SPARE} nats without {len(spare)} of "
        f"{len(rows)} heads, each taken out alone",
        advice="The others do without each of them on these texts (michel19). Taken out together "
        "they may matter: prune step by step, and measure the loss after each step.",
        value=float(spare["change"].abs().min()),
        threshold=SPARE,
        kind="head",
    )


def _vital(readings: RuleData) -> Iterator[RuleHit]:
    rows = _component(readings, "attention", "ffn")
    if rows.empty:
        return
    limit = DOMINANT * float(rows["change"].median())
    sure = (rows["texts"] < TEXTS) | (rows["change"] > ERRORS * rows["error"])
    above = rows[(rows["change"] > limit) & sure]
    if limit <= 0 or above.empty:
        return
    top = peak(above.drop(columns="head"), "change")
    heads = _component(readings, "head")
    yield top.hit(
        severity="info",
        sentence=f"{top.place}: without its {PARTS[str(top.row['component'])]} the loss rises by "
        f"{figure(top.value)} nats, more than {figure(DOMINANT)} times the median of the "
        f"sublayers{top.more}",
        advice=f"Quantize or prune these parts last.{_best(heads)}",
        threshold=limit,
        kind=str(top.row["component"]),
    )


def _best(heads: pd.DataFrame) -> str:
    """Return which head matters the most, where there are heads."""
    if heads.empty:
        return ""
    top = peak(heads, "change")
    return f" Of single heads, {top.place} matters the most: {figure(top.value)} nats."


RULES = (
    Rule("vital", "ablation", "Own limit", _vital, "change"),
    Rule("harmful", "ablation", "Own limit; michel19", _harmful, "change", relative=True),
    Rule("spare", "ablation", "Own limit; michel19", _spare, "change", relative=True),
)
