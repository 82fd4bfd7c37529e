"""The report of an inspection as one HTML file."""

from collections.abc import Iterable, Mapping
from typing import Any

from layerlab.report.i18n.language import ENGLISH, label, language
from layerlab.report.pages.shell import DRAWING, fill_page
from layerlab.report.views import command, model_cards, sources
from layerlab.report.views.inspection import frames as inspection

_SCRIPTS = (
    *(
        DRAWING,
        "figure.js",
        "labels.js",
        "gaps.js",
        "detail.js",
        "head.js",
        "saliency.js",
        "features.js",
    ),
    *("density.js", "bound.js", "values.js", "glance.js", "jump.js", "page.js"),
)
_RANK = {"error": 0, "warning": 1, "info": 2}


def render(report: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """Render the whole page of a report dict (the content of `report.json`).

    Raises:
        UserError: there is no page in this language.
    """
    view = inspection.compact(report)
    return fill_page(
        "page.html",
        ["page.css"],
        lang,
        report=report,
        view=view,
        findings=rank_findings(report, view),
        counts=severities(report["findings"]),
        lengths=model_cards.lengths(report),
        losses=model_cards.losses(report),
        names=[model["name"] for model in report["models"]],
        cards=model_cards.cards([model["card"] for model in report["models"]]),
        command=command.inspect(report),
        sources=sources.find_sources(report),
        groups=group_columns,
        scripts=_SCRIPTS,
        data=view,
        texts=_texts(view),
        columns=_columns(view, lang),
    )


def rank_findings(report: Mapping[str, Any], view: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rank the findings, worst first, and add where each belongs on the page."""
    places = {model["name"]: index for index, model in enumerate(report["models"])}
    measures = {measure["name"]: measure for measure in view["measures"]}
    ordered = sorted(report["findings"], key=lambda f: _RANK.get(f["severity"], len(_RANK)))
    return [
        {
            **finding,
            "index": places.get(finding["model"]),
            "title": measures.get(finding["measure"], {}).get("title"),
            "curve": _curve(finding, measures.get(finding["measure"])),
            "picture": view["details"].get(finding["detail"], {}).get("kind"),
        }
        for finding in ordered
    ]


def _curve(finding: Mapping[str, Any], measure: Mapping[str, Any] | None) -> tuple[str, int] | None:
    """Return the quantity and the kind of the plot that shows what a finding speaks of."""
    if measure is None or finding.get("column") not in (*measure["plot"], *measure["more"]):
        return None
    return str(finding["column"]), inspection.curve_kind(finding, measure["kinds"])


def group_columns(
    names: Iterable[str], measure: Mapping[str, Any]
) -> list[tuple[str | None, list[str]]]:
    """Group columns into readings and bounds, each under its title; without bounds, under none.

    Example:
        >>> bound = {"limit": "most", "side": "upper"}
        >>> group_columns(["norm", "most"], {"bounds": [bound]})
        [('Readings', ['norm']), ('Bounds', ['most'])]
    """
    columns = list(names)
    limits = {bound["limit"] for bound in measure["bounds"] if bound["side"] != "beside"}
    limits |= set(measure.get("limits", ()))
    inside = [name for name in columns if name in limits]
    if not inside:
        return [(None, columns)]
    readings = [name for name in columns if name not in limits]
    return [(label("Readings"), readings), (label("Bounds"), inside)]


def severities(findings: list[dict[str, Any]]) -> dict[str, int]:
    """Count the findings of each severity, worst first."""
    return {rank: sum(f["severity"] == rank for f in findings) for rank in _RANK}


def _texts(view: Mapping[str, Any]) -> list[str]:
    """Return the texts of the data that scripts show."""
    texts = set[str]()
    for measure in view["measures"]:
        bands = {measure["band"]["label"]} if measure["band"] else set()
        texts |= {measure["title"], *measure["kinds"], *bands}
        texts |= {str(bound["source"]) for bound in measure["bounds"]}
    return sorted(texts)


def _columns(view: Mapping[str, Any], lang: str) -> dict[str, str]:
    """Return what names of columns are called in another language."""
    known = language(lang)
    names = {name for measure in view["measures"] for name in measure["columns"]}
    tables = (measure["table"] for measure in view["measures"] if "table" in measure)
    names |= {group["bar"] for table in tables for group in table["groups"] if group["bar"]}
    return {name: word for name in names if (word := known.column(name)) != name}
