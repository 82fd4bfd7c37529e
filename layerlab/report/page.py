"""The report as one HTML file: no network, no other file, safe against what tokens contain.

Text from outside reaches the page in two ways only: through jinja2 with autoescape, and as JSON in
a script element whose `<`, `>` and `&` are escaped; the scripts write it with `textContent`. A
content security policy allows exactly the scripts below, by their hashes, and no connection at all.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from layerlab.report import card, plots, text
from layerlab.report.language import ENGLISH, Language, language
from layerlab.report.template import filled

_HERE = Path(__file__).parent
_SCRIPTS = (
    *("say.js", "figure.js", "element.js", "theme.js", "detail.js", "saliency.js", "features.js"),
    *("bound.js", "table.js", "glance.js", "jump.js", "page.js"),
)
# What the scripts say: say("...") and parts("...").
_SPOKEN = re.compile(r"\b(?:say|parts)\(\s*(\"(?:[^\"\\]|\\.)*\")")
_RANK = {"error": 0, "warning": 1, "info": 2}
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render(report: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """The whole page of a report dict (the content of `report.json`).

    Raises:
        UserError: there is no page in this language.
    """
    view = plots.compact(report)
    scripts = [_script(), plotly()]
    page = environment(lang).get_template("page.html")
    return page.render(
        report=report,
        view=view,
        findings=ranked(report["findings"], view),
        counts=severities(report["findings"]),
        lengths=card.lengths(report),
        cards=card.cards([model["card"] for model in report["models"]]),
        policy=policy(scripts),
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        data=Markup(embedded({**view, **spoken(scripts[0], view, lang)})),
        scripts=[Markup(script) for script in scripts],
    )


def embedded(data: Any) -> str:
    r"""JSON that can stand inside a script element, whatever its strings contain.

    Example:
        >>> embedded("</script>")
        '"\\u003c/script\\u003e"'
    """
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return written.translate(_UNSAFE)


def ranked(findings: list[dict[str, Any]], view: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The findings, worst first, with where each belongs on the page."""
    names = [model["name"] for model in view["models"]]
    measures = {measure["name"]: measure["title"] for measure in view["measures"]}
    ordered = sorted(findings, key=lambda f: _RANK.get(f["severity"], len(_RANK)))
    return [
        {
            **finding,
            "index": names.index(name) if (name := _name(finding["model"])) in names else None,
            "title": measures.get(finding["measure"]),
            "kind": view["details"].get(finding["detail"], {}).get("kind"),
        }
        for finding in ordered
    ]


def severities(findings: list[dict[str, Any]]) -> dict[str, int]:
    """How many findings there are of each severity, worst first."""
    return {rank: sum(f["severity"] == rank for f in findings) for rank in _RANK}


def policy(scripts: list[str]) -> str:
    """A content security policy that allows these scripts and nothing from anywhere else."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def spoken(script: str, view: Mapping[str, Any], lang: str) -> dict[str, Any]:
    """The words that a script says, and those of its data, in a language; none in English."""
    if lang == ENGLISH:
        return {}
    known = language(lang)
    columns, said = dict[str, str](), set[str]()
    for measure in view["measures"]:
        columns |= {name: known.column(name) for name in measure["columns"]}
        sources = {str(bound["source"]) for bound in measure["bounds"]}
        bands = {measure["band"]["label"]} if measure["band"] else set()
        said |= {measure["title"], *measure["kinds"], *bands, *sources}
    changed = {key: word for key, word in columns.items() if word != key}
    return {**words(script, said, lang), "columns": changed}


def words(script: str, said: Iterable[str], lang: str) -> dict[str, Any]:
    """What `say.js` reads: the words of a script, and texts of its data, in a language.

    Args:
        script: all the scripts of a page, as one text.
        said: texts of the data that the scripts hand to `translated`.
    """
    if lang == ENGLISH:
        return {}
    known = language(lang)
    used = {json.loads(message) for message in _SPOKEN.findall(script)}
    found = {message: known.label(message) for message in used}
    found |= {text: known.said(text) for text in said}
    return {"words": {key: word for key, word in found.items() if word != key}}


def _name(name: Any) -> str:
    return text.prose(str(name), 60)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


@cache
def plotly() -> str:
    """The library that draws, ready to stand in a script element."""
    # A script element ends at the first "</script", and a parser turns "\r\n" into "\n",
    # after which the hash of the policy would no longer match.
    return get_plotlyjs().replace("\r\n", "\n").replace("</script", "<\\/script")


def _script() -> str:
    parts = [(_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    return "\n".join(['"use strict";', "(() => {", *parts, "})();"])


@cache
def environment(lang: str = ENGLISH) -> Environment:
    """Templates, with autoescape, and how words, numbers and names are written in them.

    Raises:
        UserError: there is no page in this language.
    """
    known = language(lang)
    environment = Environment(
        autoescape=True,
        extensions=["jinja2.ext.i18n"],
        loader=FileSystemLoader(_HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["ext.i18n.trimmed"] = True
    environment.install_gettext_translations(known.catalogue, newstyle=True)  # type: ignore[attr-defined]
    environment.globals["lang"] = lang
    environment.filters |= {
        "said": lambda value: known.said(str(value)),
        "worded": known.word,
        "labelled": known.label,
        "names": known.names,
        "remark": known.remark,
        "column": known.column,
        "axis": known.axis,
        "prose": lambda value: text.prose(str(value)),
        "quoted": lambda value: text.quoted(str(value)),
        "marked": card.marked,
        "name": _name,
        "number": number,
        "moment": lambda value: moment(value, known),
        "option": option,
    }
    return environment


def number(value: Any) -> str:
    """A number for a reader: four significant digits, thousands apart, a dash where there is none.

    Example:
        >>> number(131.2471), number(812544), number(None)
        ('131.2', '812,544', '–')
    """
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else text.prose(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"


def option(value: Any) -> str:
    """An option as words: lists with commas, what has options of its own with them in brackets.

    Example:
        >>> option({"dimension": {"share": 0.8}, "stream": {}}), option(None)
        ('dimension (share=0.8), stream', '–')
    """
    if isinstance(value, Mapping):
        given = {k: ", ".join(f"{n}={o}" for n, o in v.items()) for k, v in value.items()}
        return text.prose(", ".join(f"{k} ({o})" if o else str(k) for k, o in given.items()))
    if isinstance(value, list):
        return text.prose(", ".join(str(entry) for entry in value))
    return "–" if value is None else text.prose(str(value))


def moment(value: str, known: Language | None = None) -> str:
    """A time stamp as a date and a time, or unchanged where it is not one.

    Example:
        >>> moment("2026-11-20T12:00:00Z")
        '20 November 2026, 12:00 UTC'
    """
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        return text.prose(value)
    zone = f" {when.tzname()}" if when.tzname() else ""
    if known is None or known.code == ENGLISH:
        return f"{when.day} {when:%B %Y, %H:%M}{zone}"
    parts = {"day": when.day, "month": when.month, "year": when.year, "time": f"{when:%H:%M}{zone}"}
    message = known.label("{day}/{month}/{year}, {time}")
    return filled(message, {name: str(part) for name, part in parts.items()})
