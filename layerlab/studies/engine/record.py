"""The result of a study: verdicts, tables, pictures, and how to keep and repeat it."""

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group
from rich.text import Text

from layerlab.console.tables import wrap_lines
from layerlab.errors import UserError
from layerlab.records.json_values import json_values
from layerlab.records.parse import DIGEST, digest_of, read_json, seal
from layerlab.report.figures.export import Figure, check_drawing, draw
from layerlab.report.i18n.language import ENGLISH
from layerlab.report.pages.study import language_of, render
from layerlab.report.results import folder as disk
from layerlab.report.views.tables import decode_table, encode_table, tidy
from layerlab.report.views.text import prose
from layerlab.system.csv_text import csv_of
from layerlab.system.files import from_here, write_file
from layerlab.validation import suggest

SCHEMA = 1
WIDTH = 600
COLOURS = {
    "holds": "green",
    "smaller than asked": "cyan",
    "fails": "bold red",
    "not decided": "yellow",
}
# Of the words, with a space behind the longest that most studies have.
INDENT = 12
LOOKED = "its threshold or number of draws was set after a first result"


class StudyResult:
    """The stored outcome of a study.

    `record.verdict` is a `Word`, as "holds" or "not decided", `record.number` what decides it,
    `record.frame()` the readings, `record.save("out")` writes page, tables and settings.
    """

    def __init__(
        self, content: Mapping[str, Any], frames: Mapping[str, pd.DataFrame] | None = None
    ) -> None:
        """Take the dict of `study.json`; `frames` stands in for its entry of that name."""
        given = dict(content)
        stored = given.pop("frames", {})
        given.pop(DIGEST, None)
        self._content: dict[str, Any] = {"schema": SCHEMA, **json_values(given)}
        self._frames = (
            {name: decode_table(name, entry) for name, entry in stored.items()}
            if frames is None
            else {name: tidy(frame) for name, frame in frames.items()}
        )
        self.folder: Path | None = None

    @property
    def name(self) -> str:
        return str(self._content["study"])

    @property
    def verdict(self) -> str:
        """Return the word of the claim: whether it holds, fails, or is not decided."""
        return str(self._content["verdicts"][0]["word"])

    @property
    def number(self) -> float:
        """Return the number that decides the claim; NaN where it is none."""
        found = self._content["verdicts"][0]["number"]
        return math.nan if found is None else float(found)

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """Return every claim that was judged, as `StudyVerdict` has it; the study's own first."""
        return copy.deepcopy(self._content["verdicts"])

    @property
    def settings(self) -> dict[str, Any]:
        """Return what the study was run with: draws, seed and options."""
        return copy.deepcopy(self._content["settings"])

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """Return every table by name."""
        return {name: frame.copy() for name, frame in self._frames.items()}

    def frame(self, name: str | None = None) -> pd.DataFrame:
        """Return one table of readings; the first if no name is given.

        Raises:
            UserError: there is no such table.
        """
        if name is None:
            return next(iter(self._frames.values())).copy()
        if name in self._frames:
            return self._frames[name].copy()
        hint = suggest(name, self._frames)
        raise UserError(
            f"this study has no table {name!r}; {hint}it has: {', '.join(self._frames)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `study.json`: strict JSON values only."""
        tables = {name: encode_table(frame) for name, frame in self._frames.items()}
        return {**copy.deepcopy(self._content), "frames": tables}

    def to_json(self) -> str:
        """Return the text of `study.json`."""
        return json.dumps(seal(self.to_dict()), allow_nan=False, separators=(",", ":")) + "\n"

    def save(self, folder: str | Path, *, figures: str | None = None, lang: str = ENGLISH) -> Path:
        """Write study.html, study.json, tables/ and, where they are asked for, pictures.

        All of it or nothing; an earlier study in that folder is replaced. Returns the folder.

        Args:
            figures: "svg", "png" or "pdf": each picture as a file of its own for a paper.
            lang: language of the page, "en" or "zh"; study.json and tables/ stay English.

        Raises:
            UserError: the folder cannot be written, or holds something that is no study; the
                figures that were asked for cannot be drawn; there is no page in this language.
        """
        if figures is not None:
            check_drawing(figures)
        page, data = render(self.to_dict(), lang), self.to_json()

        def fill(empty: Path) -> None:
            (empty / disk.STUDY_PAGE).write_text(page, encoding="utf-8")
            (empty / disk.STUDY_DATA).write_text(data, encoding="utf-8")
            tables = empty / disk.TABLES
            tables.mkdir()
            for name, frame in self._frames.items():
                (tables / f"{name}.csv").write_text(csv_of(frame), encoding="utf-8", newline="")
            if figures is not None:
                draw(_figures(self._content["pictures"]), empty, figures)

        self.folder = disk.write_folder(Path(folder), fill, "study")
        return self.folder

    def translate(self, lang: str) -> None:
        """Write the page in its folder again, if it is missing or in another language.

        Raises:
            UserError: there is no page in this language, or it cannot be written.
        """
        if self.folder is not None and language_of(page := self.folder / disk.STUDY_PAGE) != lang:
            write_file(page, render(self.to_dict(), lang))

    def lines(self) -> list[list[tuple[str, str]]]:
        """Return what a terminal shows, as pieces of text with their styles."""
        found = []
        wide = max(INDENT, *(len(one["word"]) + 2 for one in self._content["verdicts"]))
        for verdict in self._content["verdicts"]:
            word = str(verdict["word"])
            found += [
                [(f"{word:<{wide}}", COLOURS.get(word, "")), (prose(verdict["claim"]), "")],
                *([(" " * wide + prose(line), "dim")] for line in _describe(verdict)),
            ]
        found += [[(prose(remark), "dim")] for remark in self._content["remarks"]]
        if self.folder is not None:
            page = from_here(self.folder / disk.STUDY_PAGE)
            found += [[("The page: ", ""), (prose(page), "bold")]]
        return found

    def table(self, width: int | None = None) -> Group:
        """Return the verdicts for a terminal.

        Args:
            width: at which lines are wrapped; nowhere where it is left out.
        """
        return Group(*(_wrap(pieces, width) for pieces in self.lines()))

    def __repr__(self) -> str:
        return f"StudyResult({self.name}: {self.verdict}; {prose(self.verdicts[0]['said'], 200)})"


def _wrap(pieces: list[tuple[str, str]], width: int | None) -> Text:
    """Return a line with its styles, wrapped below where its content begins."""
    line = Text.assemble(*pieces)
    if width is None:
        return line
    # A break takes the place of one space, so that the first piece, which is a word, stays put.
    (first, style), rest = pieces[0], pieces[1:]
    wrapped = Text(wrap_lines(line.plain, width), rest[0][1] if rest else style)
    wrapped.stylize(style or "none", 0, len(first))
    return wrapped


def load_record(folder: Path, *, sealed: bool = False) -> StudyResult | None:
    """Load the study in a folder, or None where there is none that can be read.

    Args:
        sealed: take none without its digest, as 0.1 wrote them.

    Raises:
        UserError: it was changed since it was written.
    """
    file = folder / disk.STUDY_DATA
    try:
        content = read_json(file)
        if content["schema"] != SCHEMA or (sealed and DIGEST not in content):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if content.get(DIGEST, "") not in ("", digest_of(content)):
        raise UserError(
            f"{file} was changed since it was written: its digest is not that of its content; "
            "delete it, or type --restart to compute the study again"
        )
    try:
        record = StudyResult(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError):
        return None
    record.folder = folder.resolve()
    return record


def _describe(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentence of a verdict with its place, then what it was judged on."""
    source = verdict.get("source")
    yield f"{verdict['said']} ({source})" if source else str(verdict["said"])
    judged = [verdict.get("scale"), verdict.get("unit"), LOOKED if verdict.get("looked") else ""]
    if any(judged):
        yield f"on {'; '.join(filter(None, judged))}"


def _figures(pictures: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    return {
        picture["name"]: Figure(
            data=picture["data"],
            layout=picture["layout"],
            width=WIDTH,
            height=picture["layout"].get("height", 500),
        )
        for picture in pictures
    }
