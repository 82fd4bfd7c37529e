"""The result of an adaptation: its tables, its model, its summary."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.text import Text

from layerlab.console.tables import grids, printable
from layerlab.console.units import difference
from layerlab.errors import UserError
from layerlab.validation import short_repr

KINDS = ("scores", "changes", "stages", "texts", "samples", "differences", "left_out")
# Rows of scores, and other lines, that a terminal shows.
ROWS, LINES = 12, 3


@dataclass(frozen=True)
class AdaptationResult:
    """The result of an adaptation.

    Attributes:
        content: all of it, as result.json has it.
        page: of the report.
        models: the last model of each arm, as a folder or a name.
    """

    content: Mapping[str, Any] = field(repr=False)
    page: Path
    models: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `result.json`."""
        return deepcopy(dict(self.content))

    def model(self, arm: str | None = None) -> Any:
        """Return the last model of an arm, as transformers loads it.

        Args:
            arm: which; the first if left out.

        Raises:
            UserError: there is no such arm, or its weights are not those that were saved.
        """
        from layerlab.loading.folders import find_folder
        from layerlab.loading.weights.saved import load_saved

        name = next(iter(self.models)) if arm is None else arm
        if name not in self.models:
            raise UserError(
                f"there is no arm {short_repr(name)}; expected {', '.join(self.models)}"
            )
        return load_saved(find_folder(self.models[name], with_weights=True))

    def frame(self, kind: str = "scores") -> pd.DataFrame:
        """Return one table of the result.

        Raises:
            UserError: there is no such table.
        """
        if kind not in KINDS:
            raise UserError(
                f"there is no table {short_repr(kind)}; expected one of {', '.join(KINDS)}"
            )
        return pd.DataFrame(self.content.get(kind) or [])

    def table(self, width: int = 100) -> RenderableType:
        """Return a table for a terminal.

        It shows the vocabulary, the scores before and after, and what was forgotten.

        Args:
            width: of the terminal in characters.
        """
        parts: list[RenderableType] = [*map(Text, self._vocabulary()), self._scores(width)]
        if (more := len(self.content["table"]["rows"]) - ROWS) > 0:
            parts.append(Text(f"... and {more} more scores, on the page"))
        parts += map(Text, [*self._alone(), *self._missing_remarks(), *self._changes()])
        left = [f"{one['what']}: {one['why']}" for one in self.content["left_out"]]
        parts += [Text(f"Left out: {printable(one, 300)}") for one in left[:LINES]]
        if len(left) > LINES:
            parts.append(Text(f"... and {len(left) - LINES} more, on the page"))
        return Group(*parts)

    def summary(self, width: int = 100) -> str:
        """Return the table as plain text, and where the page is."""
        console = Console(width=width, markup=False, highlight=False, color_system=None)
        with console.capture() as caught:
            console.print(self.table(width))
        return f"{caught.get()}The page: {self.page}"

    def __str__(self) -> str:
        return self.summary()

    def _vocabulary(self) -> list[str]:
        found = []
        for one in self.content["vocabulary"]:
            held = [text for text in one["texts"] if "held out" in text["name"]]
            ratios = ", ".join(f"{printable(text['name'])} {text['ratio']:.3f}" for text in held)
            verdict = "proved" if one["holds"] else "NOT proved"
            size = f"{one['entries_base']:,} entries are now {one['entries']:,}"
            found.append(f"Vocabulary: {size}; tokens against the base: {ratios}; {verdict}")
        return found

    def _scores(self, width: int) -> RenderableType:
        content = self.content["table"]
        rows = [
            [row["title"], "%" if row["unit"] == "score" else "bits/byte", *_cells(row)]
            for row in content["rows"][:ROWS]
        ]
        return grids(["", " ", *content["columns"]], rows, ["", " "], width)

    def _alone(self) -> list[str]:
        """Return a remark on the texts that have no standard error, and why."""
        found = [
            printable(row["title"])
            for row in self.content["table"]["rows"]
            if row["unit"] != "score" and any(one and _is_alone(one) for one in row["cells"])
        ]
        remark = f"{' and '.join(found)}: one document is held out, and one has no standard error"
        return [remark] if found else []

    def _missing_remarks(self) -> list[str]:
        """Return a remark on the texts of which a model has no bits per byte, and why."""
        found = [
            printable(row["title"])
            for row in self.content["table"]["rows"]
            if row["unit"] != "score"
            and any(one is not None and one["score"] is None for one in row["cells"])
        ]
        remark = f"{' and '.join(found)}: no bits per byte where a tokenizer does not give it back"
        return [remark] if found else []

    def _changes(self) -> list[str]:
        found = []
        for one in self.content["changes"]:
            word = "forgetting" if one["kind"] == "general" else f"{one['kind']} text"
            line = f"{printable(one['arm'])}, {word}: {difference(one['value'], 4)} bits per byte"
            if one["against"] != "before":
                line += f" against {printable(one['against'])}"
            if one["low"] is not None:
                ends = f"[{difference(one['low'], 4)}, {difference(one['high'], 4)}]"
                line += f" {ends} over {one['n']} {one['over']}"
            found.append(line)
        return found


def _is_alone(cell: Mapping[str, Any]) -> bool:
    return cell["score"] is not None and cell["error"] is None and cell["n"] == 1


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return the scores of a row with their standard errors."""
    scale, digits = (100, 1) if row["unit"] == "score" else (1, 3)
    found = []
    for cell in row["cells"]:
        if cell is None or cell["score"] is None:
            found.append("-")
            continue
        # Questions that all score alike have no spread to tell an error from.
        error = f" ± {scale * cell['error']:.{digits}f}" if cell["error"] else ""
        found.append(f"{scale * cell['score']:.{digits}f}{error}")
    return found
