"""Readings nearest to a threshold where none is crossed: even health has a first place."""

from collections.abc import Iterator
from dataclasses import dataclass

from layerlab.report.findings import attention, stability
from layerlab.report.findings.extremes import Peak, figure, peak
from layerlab.report.findings.rule import PictureKind, Rule, RuleData, RuleHit


@dataclass(frozen=True, kw_only=True)
class RuleThreshold:
    """A column, where a rule begins to speak about it, and how a sentence names it.

    Attributes:
        last: whether the rule reads the last layer alone, in the mean over texts.
    """

    measure: str
    column: str
    threshold: float
    name: str
    picture: PictureKind
    last: bool = False


LIMITS = (
    RuleThreshold(
        measure="attention",
        column="logit_max",
        threshold=attention.SCORE,
        name="largest attention score",
        picture="attention",
    ),
    RuleThreshold(
        measure="spectrum",
        column="uniform_ratio",
        threshold=attention.RATIO,
        name="attention norm over that of uniform causal attention",
        picture="attention",
    ),
    RuleThreshold(
        measure="stream",
        column="growth",
        threshold=stability.GROWTH,
        name="length of the stream over that of the embedding",
        picture="channels",
        last=True,
    ),
)


def _nearest(readings: RuleData) -> Iterator[RuleHit]:
    close = list(_peaks(readings))
    if not close:
        return
    limit, top = max(close, key=lambda entry: entry[1].value / entry[0].threshold)
    yield top.hit(
        severity="info",
        sentence=f"Nothing crosses a threshold. Nearest: the {limit.name}, "
        f"{figure(top.value)} of {figure(limit.threshold)} ({top.place})",
        advice="Nothing need be done. What this text does not provoke another may: give your own "
        "with --text.",
        threshold=limit.threshold,
        picture=limit.picture,
        measure=limit.measure,
        column=limit.column,
    )


def _peaks(readings: RuleData) -> Iterator[tuple[RuleThreshold, Peak]]:
    for limit in LIMITS:
        rows = readings.rows(limit.measure, limit.column)
        if limit.last and not rows.empty:
            last = rows[rows["layer"] == rows["layer"].max()]
            rows = readings.means(last, ["layer"], limit.column).reset_index()
        if not rows.empty and (found := peak(rows, limit.column)).value <= limit.threshold:
            yield limit, found


RULE = Rule("nearest", None, "Own", _nearest)
