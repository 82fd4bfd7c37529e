"""The page of a study: claim, verdicts, pictures, tables, settings; one file, no network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from layerlab.report import page

_HERE = Path(__file__).parent
ROWS = 200
TONES = {"holds": "info", "fails": "error", "not decided": "warning"}


def render(study: Mapping[str, Any]) -> str:
    """The whole page of a study dict (the content of `study.json`)."""
    scripts = [(_HERE / "study.js").read_text(encoding="utf-8"), page.plotly()]
    return (
        page.environment()
        .get_template("study.html")
        .render(
            study=study,
            tones=TONES,
            tables={name: _rows(frame) for name, frame in study["frames"].items()},
            most=ROWS,
            policy=page.policy(scripts),
            style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
            data=Markup(page.embedded(study["pictures"])),
            scripts=[Markup(script) for script in scripts],
        )
    )


def _rows(frame: Mapping[str, Any]) -> dict[str, Any]:
    """The head of a table, row by row."""
    columns = [frame["data"][name] for name in frame["columns"]]
    rows = list(zip(*columns, strict=True))
    return {"columns": frame["columns"], "rows": rows[:ROWS], "count": len(rows)}
