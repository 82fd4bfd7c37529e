"""A report: what was read, what it means, and how to keep it.

The content is the dict that `report.json` holds, except that tables are pandas DataFrames here.
Nothing in it is a tensor, so a report loads without torch.
"""

import copy
import html
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group

from layerlab.errors import UserError
from layerlab.records.json_values import json_values
from layerlab.records.parse import DIGEST, check_digest, read_json, seal
from layerlab.report.figures.export import check_drawing, draw
from layerlab.report.findings.rule import Finding
from layerlab.report.i18n.language import ENGLISH
from layerlab.report.results import folder as place
from layerlab.report.results import older_report, saliency_summary, terminal_summary
from layerlab.report.results.schema import SCHEMA, check_schema, explain_damage
from layerlab.report.views.tables import decode_table, empty, encode_table, tidy, write_tables
from layerlab.system import files
from layerlab.system.own_page import is_own_page
from layerlab.validation import expand_home, short_repr, suggest

# A notebook keeps every page it shows in its own file; plotly.js alone is 0.7 MB of it.
NOTEBOOK_BYTES = 12_000_000


class Report:
    """Readings of one or several models, with what they mean.

    `report.frame("spectrum")` is a table, `report.findings` are sentences, `report.save("out")`
    writes a page, the readings as JSON, and the tables as CSV and Parquet.
    """

    def __init__(
        self, content: Mapping[str, Any], frames: Mapping[str, pd.DataFrame] | None = None
    ):
        """Take the dict of `report.json`; `frames` stands in for its entry of that name."""
        given = {name: value for name, value in content.items() if name != DIGEST}
        stored = given.pop("frames", {})
        if isinstance(given.get("findings"), list):
            given["findings"] = [
                entry.to_dict() if isinstance(entry, Finding) else entry
                for entry in given["findings"]
            ]
        self._content = {"schema": SCHEMA, **json_values(check_schema(json_values(given)))}
        tables = stored if frames is None else frames
        if not isinstance(tables, Mapping):
            raise UserError("this is not a layerlab report: 'frames' is damaged")
        self._frames = {
            str(name): tidy(table) if isinstance(table, pd.DataFrame) else decode_table(name, table)
            for name, table in tables.items()
        }
        for measure in self._content["measures"]:
            if not len(self._frames.get(measure["name"], ())):
                columns = measure.get("columns", {})
                self._frames[measure["name"]] = empty(measure.get("per", ()), columns)
        self._folder: Path | None = None
        self._file: Path | None = None  # that it was loaded from

    def frame(self, name: str) -> pd.DataFrame:
        """Return the readings of one measure; no rows where it is not applicable.

        Raises:
            UserError: there is no such measure in this report.
        """
        if isinstance(name, str) and name in self._frames:
            return self._frames[name].copy()
        near, names = suggest(name, self._frames), ", ".join(self._frames) or "none"
        raise UserError(f"this report has no table {short_repr(name)}; {near}it has: {names}")

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """Return every table by name."""
        return {name: frame.copy() for name, frame in self._frames.items()}

    @property
    def measures(self) -> dict[str, dict[str, Any]]:
        """Return what was measured, by name: unit, source, columns and inapplicable models."""
        return {one["name"]: copy.deepcopy(one) for one in self._content["measures"]}

    @property
    def findings(self) -> list[Finding]:
        """Return what is worth saying, the gravest first."""
        return [Finding.from_dict(entry) for entry in self._content["findings"]]

    @property
    def models(self) -> list[dict[str, Any]]:
        """Return one card per model."""
        return copy.deepcopy(self._content["models"])

    @property
    def text(self) -> dict[str, Any]:
        """Describe the text that the models read."""
        return copy.deepcopy(self._content["text"])

    @property
    def notes(self) -> list[dict[str, str]]:
        """Return the notes on where the sources are wrong, once each."""
        return copy.deepcopy(self._content["notes"])

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `report.json`: strict JSON values only."""
        tables = {name: encode_table(frame) for name, frame in self._frames.items()}
        return {**copy.deepcopy(self._content), "frames": tables}

    def to_json(self) -> str:
        """Return the text of `report.json`: the content, and a digest over it."""
        return json.dumps(seal(self.to_dict()), allow_nan=False, separators=(",", ":")) + "\n"

    def save(
        self,
        folder: str | Path,
        *,
        figures: str | None = None,
        lang: str = ENGLISH,
        before: files.Standing | None = None,
    ) -> Path:
        """Write report.html, report.json and tables/, all of it or nothing.

        An earlier report in that folder is replaced. Returns the folder.

        Args:
            figures: "svg", "png" or "pdf": also write every picture into figures/, for papers.
            lang: language of the page, "en" or "zh"; report.json, tables/ and figures/ stay
                English: an axis is called as the column whose numbers it shows.
            before: what stood there when the work began, as `check_folder` said: a report that
                another process wrote since then is not replaced. What stands there now where it is
                left out.

        Raises:
            UserError: the folder cannot be written, or holds something that is no report; the
                figures cannot be drawn, and all else is written; there is no page in this language.
        """
        undrawn: list[UserError] = []
        if figures is not None:
            check_drawing(figures)
        page, data = self._page(lang), self.to_json()

        def fill(empty_folder: Path) -> None:
            (empty_folder / place.PAGE).write_text(page, encoding="utf-8")
            (empty_folder / place.DATA).write_text(data, encoding="utf-8")
            write_tables(empty_folder / place.TABLES, self._frames)
            if figures is not None:
                try:
                    self._draw(empty_folder / place.FIGURES, figures)
                except UserError as error:  # what was measured is not lost with its pictures
                    shutil.rmtree(empty_folder / place.FIGURES)
                    undrawn.append(error)

        self._folder = place.write_folder(expand_home(folder), fill, before=before)
        if undrawn:
            raise UserError(f"{undrawn[0]}; all else is in {self._folder}")
        return self._folder

    def to_html(self, path: str | Path, *, lang: str = ENGLISH) -> Path:
        """Write the page alone, one file that needs no network.

        Raises:
            UserError: the file cannot be written, or is none of layerlab's pages; there is no page
                in this language.
        """
        page = expand_home(path)
        if os.path.isfile(page) and not is_own_page(page):  # noqa: PTH113 (of any name)
            raise UserError(
                f"{page} is there and is no page of layerlab; name another file: type "
                'report.to_html("report.html")'
            )
        return files.write_file(page, self._page(lang))

    def table(self) -> Group:
        """Return lines for a terminal: the models, what was found, and where the files are."""
        with explain_damage(self._file):
            asked = saliency_summary.saliency_answers(
                self._content, self._frames.get(saliency_summary.NAME)
            )
            return terminal_summary.summary(self._content, self.findings, self._folder, asked)

    def _draw(self, folder: Path, kind: str) -> None:
        from layerlab.report.figures.inspection import figures

        folder.mkdir()
        with explain_damage(self._file):
            found = figures(self.to_dict())
        draw(found, folder, kind)

    def _page(self, lang: str = ENGLISH) -> str:
        from layerlab.report.pages.inspection import render

        with explain_damage(self._file):
            return render(self.to_dict(), lang)

    def _repr_html_(self) -> str:
        page = self._page()
        if len(page) > NOTEBOOK_BYTES:
            lines = "\n".join(terminal_summary.lines(self._content, self.findings, self._folder))
            return (
                f"<pre>{html.escape(lines)}</pre><p>This page is too large for a notebook: "
                "<code>report.to_html('report.html')</code> writes it to a file.</p>"
            )
        return (
            '<iframe title="layerlab report" sandbox="allow-scripts" '
            'style="width:100%;height:48em;border:0" '
            f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
        )

    def __repr__(self) -> str:
        names = ", ".join(str(model["name"]) for model in self._content["models"])
        counts = ", ".join(f"{name} {len(frame)}" for name, frame in self._frames.items())
        findings = len(self._content["findings"])
        listed = terminal_summary.prose(names, 200)
        return f"Report({listed}; findings {findings}; rows: {counts})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # a report can be large, and is compared by content


def load_report(path: str | Path) -> Report:
    """Load the report in a folder, or in a `report.json`; one of layerlab 0.1 counts layers anew.

    Raises:
        UserError: there is none, or it is damaged, or a newer layerlab wrote it.
    """
    path = Path(path)  # an empty one is the folder that one is in
    file = path / place.DATA if path.is_dir() else path
    try:
        content = check_digest(read_json(file, parse_constant=_refuse_constant))
    except FileNotFoundError:
        raise UserError(
            f"no report at {path}: expected a folder with {place.DATA}, "
            f"as `layerlab inspect MODEL --out {path}` writes it"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error!s:.200}; inspect the model again") from error
    report = _read(content, file)
    report._folder, report._file = file.parent.resolve(), file
    return report


def _read(content: Any, file: Path) -> Report:
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise UserError(f"{file} is not a layerlab report: it names no schema")
    schema = content["schema"]
    if schema not in (older_report.OLDER, SCHEMA):
        way = "upgrade layerlab" if schema > SCHEMA else "inspect the model again"
        raise UserError(f"{file} has schema {schema}, and this layerlab reads {SCHEMA}: {way}")
    try:
        return Report(older_report.renumber(content) if schema == older_report.OLDER else content)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
