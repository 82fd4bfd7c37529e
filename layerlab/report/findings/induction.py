"""Finding on induction: saliency at earlier places of the word that is due again."""

from collections.abc import Iterator

from layerlab.records.layer_names import EMBEDDING
from layerlab.report.findings.extremes import figure, percent
from layerlab.report.findings.rule import Location, Rule, RuleData, RuleHit


def _lookback(readings: RuleData) -> Iterator[RuleHit]:
    rows = readings.rows("saliency", "l1", "earlier")
    rows = rows[rows["layer"] == EMBEDDING]
    recurring = rows[rows["earlier"] > 0]
    total = float(rows["l1"].sum())
    if recurring.empty or total <= 0:
        return
    share, even = float(recurring["l1"].sum()) / total, len(recurring) / len(rows)
    yield RuleHit(
        severity="info",
        sentence=f"embedding: {percent(share)} of the saliency lies where the target came before, "
        f"{figure(share / even)} times what an even spread over {len(rows)} tokens would give",
        advice="Above 1 the model looks back at the word that it is due to repeat; the source's "
        "example is one name in one text. Ask several texts, and compare models.",
        value=share / even,
        threshold=1.0,
        place=Location(layer=EMBEDDING),
    )


RULES = (Rule("lookback", "saliency", "pangu23, section 5.2", _lookback, "l1", relative=True),)
