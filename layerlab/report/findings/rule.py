"""Rules, and the findings that they make.

A rule looks at the readings of one model and yields verdicts; `findings.find` turns them into
findings. A rule speaks at most once per model: it names the worst place and counts the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from layerlab.records.layer_names import layer_name
from layerlab.report.views.inspection.bars import TOKENS, count_tokens, merge_texts

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
PictureKind = Literal["attention", "channels"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence about one model.

    Attributes:
        id: unique in a report, safe as an anchor.
        measure: frame that the number is from, or None for what concerns the model as a whole.
        column: the quantity of that frame that the sentence speaks of.
        kind: of a measure with several curves (of a place, a format), the one it speaks of.
        relative: the threshold is a ratio, a count, or that of one place: no level of `column`.
        value: the number at the worst place.
        threshold: what `value` was held against.
        source: where the threshold is from.
        sentence: what is so.
        advice: what can be done, or why nothing need be.
        detail: key of the picture that a report shows for it.
    """

    id: str
    severity: Severity
    model: str
    sentence: str
    advice: str
    source: str
    measure: str | None = None
    column: str | None = None
    kind: str | None = None
    relative: bool = False
    value: float | None = None
    threshold: float | None = None
    layer: int | None = None
    head: int | None = None
    sequence: int | None = None
    detail: str | None = None

    @property
    def text(self) -> str:
        """Return the sentence with the model that it is about and the source of its threshold."""
        return f"{self.model}: {self.sentence} [{self.source}]"

    @property
    def wanted(self) -> tuple[str, str, int, int] | tuple[str, str, int, int, int] | None:
        """Return what must be fetched from the model to show this finding; `detail` is its key."""
        if self.detail is None or self.layer is None:
            return None
        kind, sequence = self.detail.partition("/")[0], self.sequence or 0
        if kind == "attention" and self.head is not None:
            return (kind, self.model, sequence, self.layer, self.head)
        return (kind, self.model, sequence, self.layer)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Finding":
        """Restore the finding that `to_dict` wrote, also after a pass through JSON."""
        values = {field.name: entry[field.name] for field in fields(cls) if field.name in entry}
        for name in ("value", "threshold"):
            if values.get(name) is not None:
                values[name] = float(values[name])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Location:
    """The place where a reading was taken."""

    layer: int | None = None
    head: int | None = None
    sequence: int | None = None

    def __str__(self) -> str:
        if self.layer is None:
            return "" if self.head is None else f"head {self.head}"
        if self.head is None:
            return layer_name(self.layer)
        return f"layer {self.layer} head {self.head}"

    def key(self, picture: PictureKind | None, model: str) -> str | None:
        """Return the name of the picture of this place."""
        numbers = [self.sequence or 0, self.layer]
        if picture == "attention":
            numbers.append(self.head)
        if picture is None or None in numbers:
            return None
        return "/".join([picture, model, *map(str, numbers)])


@dataclass(frozen=True, kw_only=True)
class RuleHit:
    """The finding of one rule about one model."""

    severity: Severity
    sentence: str
    advice: str
    value: float | None = None
    threshold: float | None = None
    place: Location = Location()
    picture: PictureKind | None = None
    mark: str = ""
    measure: str | None = None
    column: str | None = None
    kind: str | None = None
    relative: bool = False
    source: str | None = None


@dataclass(frozen=True)
class RuleData:
    """The readings of one model.

    Attributes:
        card: the entry of `models`.
        frames: every frame, the rows of this model only.
        measures: the declarations of what was measured, by name.
        sequences: the entries of the text's `sequences`.
    """

    card: Mapping[str, Any]
    frames: Mapping[str, pd.DataFrame]
    measures: Mapping[str, Mapping[str, Any]]
    sequences: Sequence[Mapping[str, Any]] = ()

    def rows(self, frame: str, *columns: str) -> pd.DataFrame:
        """Return the rows where each of `columns` has a reading; none where a column is absent."""
        table = self.frames.get(frame)
        if table is None or table.empty or not set(columns) <= set(table.columns):
            return pd.DataFrame(columns=["sequence", "layer", "head", *columns], dtype=float)
        mask = np.logical_and.reduce([table[column].notna().to_numpy() for column in columns])
        return table if mask.all() else table[mask]

    @cached_property
    def tokens(self) -> dict[int, int]:
        """Return the number of tokens of each sequence, as this model reads it."""
        return count_tokens(self.card, self.sequences)

    def means(self, rows: pd.DataFrame, by: Sequence[str], *columns: str) -> pd.DataFrame:
        """Return the means of columns over all tokens, as the page has them."""
        counts = rows["sequence"].map(self.tokens) if "sequence" in rows else np.nan
        return merge_texts(rows.assign(**{TOKENS: counts}), by, columns)


@dataclass(frozen=True)
class Rule:
    """One thing worth saying.

    Attributes:
        source: where its threshold is from.
        column: the quantity of `measure` that it judges, or None where a hit says which.
        relative: as a finding has it, of every hit.
    """

    name: str
    measure: str | None
    source: str
    judge: Callable[[RuleData], Iterable[RuleHit]]
    column: str | None = None
    relative: bool = False
