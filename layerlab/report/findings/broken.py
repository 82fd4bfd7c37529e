"""Findings of broken models: NaN and Inf, a theorem's bound that is passed, mere guessing."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from layerlab.report.findings.extremes import figure, peak
from layerlab.report.findings.rule import Location, Rule, RuleData, RuleHit
from layerlab.report.views.inspection.bounds import excess, violations


def _nonfinite(readings: RuleData) -> Iterator[RuleHit]:
    for kind in ("weights", "stream"):
        faults = [one for one in readings.card.get("faults") or () if one["kind"] == kind]
        if not faults:
            continue
        first = min(faults, key=_depth)
        named = len({str(one["name"]) for one in faults}) - 1
        more = f", and so it is with {named} more" if named else ""
        layer = first.get("layer")
        location = Location(layer=None if layer is None else int(layer))
        where = str(location) or "outside the layers"
        yield RuleHit(
            severity="error",
            sentence=f"{where}: {first['name']} holds {first['what']}{more}",
            advice=_mending(kind, readings.card),
            value=float(len(faults)),
            threshold=0.0,
            place=location,
            mark=kind,
        )


def _depth(fault: Mapping[str, Any]) -> float:
    layer = fault.get("layer")
    return -math.inf if layer is None else float(layer)


def _mending(kind: str, card: Mapping[str, Any]) -> str:
    void = ""
    if any(fault["kind"] == "stream" for fault in card["faults"]):
        void = "There is no reading from the first layer on that they reach. "
    elif card.get("loss_nats") is not None:  # where weights alone were read, there is none
        void = "The stream of this text stayed finite, so the readings hold for it. "
    if kind == "weights":
        return (
            f"{void}Load the checkpoint again; where the file itself holds them, go back to the "
            "last checkpoint without."
        )
    return (
        f"{void}Where the weights are finite, the numbers overflowed on the way: run with --dtype "
        "float32, and if that is finite, keep this layer out of fp16."
    )


def _guess(readings: RuleData) -> Iterator[RuleHit]:
    loss, vocab = readings.card.get("loss_nats"), readings.card.get("vocab")
    if loss is None or not vocab or not float(loss) >= math.log(vocab):
        return
    yield RuleHit(
        severity="warning",
        sentence=f"the loss on this text is {figure(float(loss))} nats, and guessing among "
        f"{vocab:,} tokens costs {figure(math.log(vocab))}",
        advice="The weights are untrained, or the tokenizer or the text does not belong to this "
        "model; the other findings then describe noise.",
        value=float(loss),
        threshold=math.log(vocab),
    )


def _bound(readings: RuleData) -> Iterator[RuleHit]:
    for name, measure in readings.measures.items():
        for bound in measure.get("bounds", ()):
            if bound["side"] == "beside":
                continue
            broken = _violations(readings, name, bound)
            if broken.empty:
                continue
            top = peak(broken, "excess")
            above = bound["side"] == "upper"
            yield RuleHit(
                severity="error",
                sentence=f"{top.place}: {name} {bound['column']}{_part(top.row)} is "
                f"{figure(top.row[bound['column']])}, {'above' if above else 'below'} its "
                f"{bound['side']} bound {figure(top.row[bound['limit']])}{top.more}",
                advice="A theorem cannot be violated: either the model breaks one of its premises "
                "or layerlab misreads it. Please report the model and this line.",
                value=float(top.row[bound["column"]]),
                threshold=float(top.row[bound["limit"]]),
                place=top.place,
                mark=f"{name}-{bound['column']}-{bound['limit']}",
                measure=name,
                column=bound["column"],
                kind=_kind(top.row),
                source=str(bound["source"]),
            )


def _part(row: Mapping[str, Any]) -> str:
    kind = _kind(row)
    return "" if kind is None else f" ({kind})"


def _kind(row: Mapping[str, Any]) -> str | None:
    return next(
        (str(row[name]) for name in ("sublayer", "statement", "place", "format") if name in row),
        None,
    )


def _violations(readings: RuleData, name: str, bound: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows on the wrong side of a bound, with their relative `excess` over it."""
    column, limit = bound["column"], bound["limit"]
    rows = readings.rows(name, column, limit)
    rows = rows.assign(excess=excess(rows, bound))
    return rows[violations(rows, bound, readings.card.get("dtype"))]


RULES = (
    Rule("nonfinite", None, "Own", _nonfinite),
    Rule("bound", None, "Own", _bound, relative=True),
    Rule("guess", None, "Own: log of the vocabulary", _guess),
)
