"""Shell of every page: templates, policy, scripts and how values are written in it.

A page is one HTML file: no network, no other file, safe against what tokens contain. Text from
outside reaches it in two ways only: through jinja2 with autoescape, and as JSON in a script element
whose `<`, `>` and `&` are escaped; the scripts write it with `textContent`. A content security
policy allows exactly the scripts of the page, by their hashes, and no connection at all.

The library that draws is plotly.js without maps and without three dimensions, 1.5 MB. It stands in
the page packed, as 0.66 MB of text, and is unpacked by the browser itself: so a page stays one file
that can be mailed. The policy names the hash of what it unpacks to.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from layerlab.console.units import difference
from layerlab.report.i18n.language import ENGLISH, Language, language
from layerlab.report.i18n.template import fill
from layerlab.report.views import model_cards, sources, text

_REPORT = Path(__file__).parents[1]
_TEMPLATES, _STATIC = _REPORT / "templates", _REPORT / "static"
# What the scripts say: say("...") and parts("...").
_SPOKEN = re.compile(r"\b(?:say|parts)\(\s*(\"(?:[^\"\\]|\\.)*\")")
# Of npm's plotly.js-cartesian-dist-min 4.1.1, packed by `gzip -9 -n`; tests check its hash.
_DRAWING = "plotly-cartesian.min.js.gz"
DRAWING = "drawing.js"
# What every page does: its words, its colours, its buttons to copy, and its tables.
_SHARED = ("data.js", "say.js", "element.js", "theme.js", "copy.js", "tables.js")
# Infinities as report.json writes them, and as a reader is shown them.
_INFINITE = {"Infinity": "∞", "-Infinity": "−∞"}
# No line ends between a number and its % or behind ≈ and ±. Scripts, styles and code are no
# sentences.
_TIED = re.compile(r"<(script|style|pre|code)\b.*?</\1>|(?<=\d) (?=%)|(?<=[≈±]) (?=\d)", re.DOTALL)
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def read_static(*names: str) -> str:
    """Read style sheets or scripts, one after the other."""
    return "\n".join((_STATIC / name).read_text("utf-8") for name in names)


def fill_page(
    template: str,
    styles: Iterable[str],
    lang: str,
    *,
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] = MappingProxyType({}),
    texts: Iterable[str] = (),
    columns: Mapping[str, str] | None = None,
    names: Iterable[str] = (),
    **values: Any,
) -> str:
    """Fill a template, and give it style, script, data, and the policy that allows them.

    Args:
        template: name of its file.
        styles: names of style sheets.
        scripts: names of scripts; one that draws brings the library along.
        data: what the scripts read.
        texts: of the data that the scripts hand to `translated`.
        columns: what names of columns are called in this language.
        names: of arms and models, which a user gave: no sentence translates them.
        values: what else the template takes.

    Raises:
        UserError: there is no page in this language.
    """
    # One that leaves no name behind.
    script = "\n".join(['"use strict";', "(() => {", read_static(*_SHARED, *scripts), "})();"])
    draws = DRAWING in scripts
    page = (
        environment(lang, frozenset(() if lang == ENGLISH else names))
        .get_template(template)
        .render(
            **values,
            names=names,
            style=Markup(read_static(*styles)),
            script=Markup(script),
            data=Markup(embed_json({**data, **_words(script, texts, columns, lang)})),
            drawing=Markup(_packed_plotly()) if draws else "",
            policy=policy([script, *([plotly()] if draws else [])]),
        )
    )
    return _TIED.sub(lambda found: found[0] if found[1] else "\N{NO-BREAK SPACE}", page)


def embed_json(data: Any) -> str:
    r"""Write data as JSON that can stand inside a script element, whatever its strings contain.

    Example:
        >>> embed_json("</script>")
        '"\\u003c/script\\u003e"'
    """
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return written.translate(_UNSAFE)


def policy(scripts: list[str]) -> str:
    """Return a content security policy that allows these scripts and nothing from anywhere else."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _words(
    script: str, texts: Iterable[str], columns: Mapping[str, str] | None, lang: str
) -> dict[str, Any]:
    """Return what `say.js` reads: the translated words of a script and of its data."""
    if lang == ENGLISH:
        return {}
    translator = language(lang)
    # In the order of the script: the same content gives the same bytes.
    used = map(json.loads, _SPOKEN.findall(script))
    found = {message: translator.label(message) for message in used}
    found |= {text: translator.translate(text) for text in texts}
    changed = {key: word for key, word in found.items() if word != key}
    return {"words": changed, **({} if columns is None else {"columns": columns})}


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


@cache
def plotly() -> str:
    """Return the plotting library as the browser unpacks it."""
    return gzip.decompress((_STATIC / _DRAWING).read_bytes()).decode("utf-8")


@cache
def _packed_plotly() -> str:
    return base64.b64encode((_STATIC / _DRAWING).read_bytes()).decode("ascii")


@lru_cache(maxsize=8)
def environment(lang: str, names: frozenset[str]) -> Environment:
    """Return the templates' environment, which escapes text and formats words and numbers.

    Raises:
        UserError: there is no page in this language.
    """
    translator = language(lang, names)
    environment = Environment(
        autoescape=True,
        extensions=["jinja2.ext.i18n"],
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["ext.i18n.trimmed"] = True
    environment.install_gettext_translations(translator.catalogue, newstyle=True)  # type: ignore[attr-defined]
    environment.globals["lang"] = lang
    environment.filters |= {
        "said": lambda value: translator.translate(str(value)),
        "worded": translator.word,
        "labelled": translator.label,
        "names": translator.names,
        "remark": translator.remark,
        "column": translator.column,
        "axis": translator.axis,
        "prose": lambda value: text.prose(str(value)),
        "quoted": lambda value: text.quote_text(str(value)),
        "marked": model_cards.mark_code,
        "cited": sources.link_sources,
        "name": lambda value: text.prose(str(value), 60),
        "number": number,
        "digits": digits,
        "signed": difference,
        "whole": whole,
        "moment": lambda value: moment(value, translator),
        "option": option,
    }
    return environment


def number(value: Any) -> str:
    """Write a number for a reader: four digits, thousands apart, a dash where there is none.

    Example:
        >>> number(131.2471), number(812544), number(-0.0), number(None), number("Infinity")
        ('131.2', '812,544', '0', '–', '∞')
    """
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else _INFINITE.get(str(value)) or text.prose(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value + 0:.4g}"  # plus 0: no zero has a sign


def digits(value: Any) -> str:
    """Write a number with four digits, zeros at its end too: those of a column are compared.

    Example:
        >>> digits(1.29999), digits(2), digits(None)
        ('1.300', '2', '–')
    """
    return f"{value:#.4g}".removesuffix(".") if isinstance(value, float) else number(value)


def whole(value: Any) -> str:
    """Return the attribute that holds a number as the files have it; "" for what is none.

    Example:
        >>> whole(0.123456), whole("a")
        (Markup(' data-value="0.123456"'), '')
    """
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric and str(value) not in _INFINITE:
        return ""
    return Markup(' data-value="{}"').format(value)


def option(value: Any) -> str:
    """Write an option in words: lists with commas, options of its own in brackets.

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
    """Write a time stamp as a date and a time, or unchanged where it is not one.

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
    return fill(message, {name: str(part) for name, part in parts.items()})
