"""The worst of many places, and the rest of them in a few words."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from layerlab.records.layer_names import EMBEDDING
from layerlab.report.findings.rule import Location, RuleHit

MOST_RUNS = 4


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The worst row of a table.

    Attributes:
        row: every column of that row.
        value: its reading.
        place: where it was taken.
        more: the other places in words that follow a clause, or nothing.
    """

    row: dict[str, Any]
    value: float
    place: Location
    more: str

    def hit(self, **fields: Any) -> RuleHit:
        """Return the finding of a rule that speaks of this value at this place."""
        return RuleHit(value=self.value, place=self.place, **fields)


def figure(number: float) -> str:
    """Write a number as a reader wants it: three digits, no exponent where none is needed."""
    size = abs(number)
    if size and (size >= 1e6 or size < 1e-3):
        return f"{number:.2e}"
    return f"{number:,.0f}" if size >= 1000 else f"{number:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def runs(numbers: list[int]) -> str:
    """Write layers as runs, as embedding, 3-5, 9; one wide span where the runs would be too many.

    Example:
        >>> runs([EMBEDDING, 0, 1, 4])
        'embedding, 0-1, 4'
    """
    ordered = sorted({number for number in numbers if number != EMBEDDING})
    spans: list[list[int]] = []
    for number in ordered:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    names = ["embedding"] if EMBEDDING in numbers else []
    if len(spans) > MOST_RUNS:
        return ", ".join([*names, f"between {ordered[0]} and {ordered[-1]}"])
    return ", ".join([*names, *(str(a) if a == b else f"{a}-{b}" for a, b in spans)])


def peak(rows: pd.DataFrame, column: str, *, lowest: bool = False) -> Peak:
    """Find the row where `column` is largest (or lowest), and count the other places in `rows`."""
    spot = rows[column].argmin() if lowest else rows[column].argmax()
    row = {str(name): entry for name, entry in rows.iloc[int(spot)].items()}
    location = Location(**{name: _whole(row.get(name)) for name in ("layer", "head", "sequence")})
    keys = [name for name in ("layer", "head") if name in rows.columns]
    places = rows[keys].drop_duplicates()
    rest = places[~(places == pd.Series({key: row[key] for key in keys})).all(axis=1)]
    return Peak(
        row=row,
        value=float(row[column]),
        place=location,
        more=_more(rest, "head" in keys),
    )


def _whole(entry: Any) -> int | None:
    return None if entry is None or pd.isna(entry) else int(entry)


def _more(rest: pd.DataFrame, heads: bool) -> str:
    if rest.empty:
        return ""
    layers = [int(layer) for layer in rest["layer"]]
    noun = "layer" if len(set(layers)) == 1 else "layers"
    if not heads:
        return f", and {len(rest)} more {noun} ({runs(layers)})"
    word = "head" if len(rest) == 1 else "heads"
    return f", and {len(rest)} more {word} in {noun} {runs(layers)}"
