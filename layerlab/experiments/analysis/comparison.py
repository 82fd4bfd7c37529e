"""A comparison as a value: plain numbers and sentences, to print and to draw."""

import html
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from layerlab.errors import UserError
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

SCHEMA = 1
SHOWN = ("arm", "n", "nats", "difference", "low", "high", "verdict")  # in a notebook
# What has to be looked into; texts and whole numbers, most of all there is, need no look.
ComparisonPart = Literal["rows", "claims", "runs", "curves", "paired", "ladder"]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        content: plain JSON values: who was compared on what terms, a row for each arm with its
            verdict, every run, every curve, and what has to be known beside.
    """

    content: Mapping[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows, one for each arm in the order of the recipe."""
        return list(self.content["rows"])

    @property
    def failed(self) -> list[str]:
        """Runs that failed, each with its reason; they can be resumed."""
        return list(self.content.get("failed", ()))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `comparison.json`."""
        return deepcopy(dict(self.content))

    def row(self, arm: str) -> dict[str, Any]:
        """Return the row of an arm.

        Raises:
            UserError: there is no such arm.
        """
        for row in self.rows:
            if row["arm"] == arm:
                return dict(row)
        raise UserError(
            f"the comparison has no arm {arm!r}; expected one of {', '.join(self.content['arms'])}"
        )

    def frame(self, part: ComparisonPart = "rows") -> "pd.DataFrame":
        """Return a part of the comparison as a data frame; a row of curves is one point of a run.

        Raises:
            UserError: there is no such part.
        """
        import pandas as pd

        if part not in get_args(ComparisonPart):
            raise UserError(
                f"a comparison has no part {short_repr(part)}; expected one of "
                f'{", ".join(get_args(ComparisonPart))}: type frame("rows")'
            )

        if part == "ladder":
            return pd.DataFrame(rows_by_size(self.content))
        if part in ("rows", "runs"):
            return pd.DataFrame(self.content[part])
        if part == "claims":
            return pd.DataFrame(self.content.get(part, ())).drop(columns="pairs", errors="ignore")
        return pd.DataFrame(_points(self.content[part], part))

    def _repr_html_(self) -> str:
        """Show the rows and their sentences in a notebook; text only, so that nothing runs."""
        items = "".join(f"<li>{html.escape(str(row['said']))}</li>" for row in self.rows)
        kept = [name for name in SHOWN if any(name in row for row in self.rows)]
        return f"{self.frame()[kept].to_html(index=False)}<ul>{items}</ul>"

    def table(self, width: int = 100) -> "RenderableType":
        """Return the table for a terminal of this width."""
        from layerlab.experiments.analysis.table import table

        return table(self.content, width)


def rows_by_size(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each size of a ladder and each arm; none without a ladder."""
    return [
        {"size": size["parameters"], "tokens": size["tokens"], **row}
        for size in (content.get("ladder") or {}).get("sizes", ())
        for row in size["rows"]
    ]


def _points(curves: list[dict[str, Any]], part: ComparisonPart) -> list[dict[str, Any]]:
    if part == "paired":
        return [{"arm": one["arm"], **point} for one in curves for point in one["points"]]
    return [
        {
            **{name: one[name] for name in ("run", "arm", "seed", "rate", "chosen")},
            "kind": kind,
            **dict(zip(one[kind], point, strict=True)),
        }
        for one in curves
        for kind in ("train", "evaluation")
        for point in zip(*one[kind].values(), strict=True)
    ]
