"""An examination as a line of docs/families.md, and the reasons that go with it."""

import math
import re
from dataclasses import dataclass

from tests.families.examination import Examination

COLUMNS = (
    "family",
    "class",
    "heard through",
    "run with",
    "largest error of a norm",
    "logits",
    "sublayers",
    "weights in heads",
    "bounded gain",
)
NOTHING = "–"
YES = "yes"
_PLACE = re.compile(r" (?:of|to) (?:layer \d+|layers \d+(?:, \d+)*|every layer)| \(layer \d+\)")
# The last digits of a rounding error may differ on another machine.
_NUMBER = re.compile(r"\d\.\de[-+]\d+")
_DETAIL = "not applicable"


@dataclass(frozen=True)
class Row:
    """One family: a cell per column, and (what is not applicable, why) for all that is not."""

    cells: tuple[str, ...]
    reasons: frozenset[tuple[str, str]]

    def masked(self) -> "Row":
        """The same row without rounding errors."""
        return Row(
            tuple(_NUMBER.sub("#", cell) for cell in self.cells),
            frozenset((what, _NUMBER.sub("#", why)) for what, why in self.reasons),
        )


def row(examination: Examination) -> Row:
    """What docs/families.md says about a family."""
    one = examination
    traced = any(passage.refused is None for passage in one.passages.values())
    cells = (
        one.family,
        one.owner,
        _heard(one),
        ", ".join(one.passages),
        NOTHING if one.error is None else f"{one.error:.1e} ({one.source})",
        "identical" if traced else NOTHING,
        _listed(set.union(*(passage.places for passage in one.passages.values()))),
        _weights(one),
        _listed({str(line["sublayer"]) for line in _finite(one, "gain", "bound")}),
    )
    return Row(cells, frozenset(_reasons(one)))


def _heard(one: Examination) -> str:
    """By which way the probe learnt what attention multiplied."""
    if isinstance(one.stack, str):
        return NOTHING
    ways = set()
    for passage in one.passages.values():
        for record in passage.records:
            own = "softmax" if record.scores is not None else "fused"
            ways.add("interface" if one.stack.attention(record.name).interface else own)
    return _listed(ways)


def _weights(one: Examination) -> str:
    if "querykey" not in one.readings.rows:
        return NOTHING
    return YES if _finite(one, "querykey", "norm") else "scores only"


def _finite(one: Examination, measure: str, column: str) -> list[dict[str, object]]:
    lines = one.readings.rows.get(measure, [])
    return [line for line in lines if math.isfinite(line.get(column, math.nan))]


def _listed(words: set[str]) -> str:
    return ", ".join(sorted(words)) or NOTHING


def _reasons(one: Examination) -> set[tuple[str, str]]:
    """What is refused altogether, and what single columns say about themselves."""
    found: dict[str, list[str]] = {}
    for measure, why in one.readings.refused.items():
        found.setdefault(_PLACE.sub("", why), []).append(measure)
    refused = {(", ".join(measures), why) for why, measures in found.items()}
    notes = {
        (f"{measure}: {what}", why)
        for measure, texts in one.readings.notes.items()
        for text in texts
        for what, separator, why in [_PLACE.sub("", text).partition(f": {_DETAIL}, because ")]
        if separator
    }
    bounds = {
        (f"{measure}: {what} to {place}", _PLACE.sub("", why))
        for measure, texts in one.readings.notes.items()
        for text in texts
        for what, place, why in re.findall(
            rf"^(\w+): {_DETAIL} to (?!layer|every)(\w+).*?, because (.*)$", text
        )
    }
    return refused | notes | bounds
