"""The sources that a page cites: its keys as links, and what each of them stands for.

`static/sources.json` is the table of docs/sources.md; `make docs` writes it.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

REGISTRY = Path(__file__).parents[1] / "static" / "sources.json"
_KEY = re.compile(r"\b[a-z]+\d\d\b")


@cache
def read_registry() -> dict[str, list[str]]:
    """Read title, authors, year and place of every source by its key."""
    return {key: entry for key, *entry in json.loads(REGISTRY.read_text("utf-8"))}


def find_sources(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Find the sources that findings, measures and notes of a report name, by their keys."""
    text = json.dumps([report[part] for part in ("findings", "measures", "notes")])
    registry = read_registry()
    names = ("title", "authors", "year", "place")
    return [
        {"key": key, **dict(zip(names, registry[key], strict=True))}
        for key in sorted(set(_KEY.findall(text)) & set(registry))
    ]


def link_sources(value: Any) -> Markup:
    """Escape a text, unless it is marked up already, and link its keys of sources.

    Example:
        >>> link_sources("Own limit; he24")
        Markup('Own limit; <a href="#source-he24">he24</a>')
    """
    return Markup(_KEY.sub(_link, str(escape(value))))


def _link(found: re.Match[str]) -> str:
    key = found[0]
    return f'<a href="#source-{key}">{key}</a>' if key in read_registry() else key
