"""Plotly figures as files for papers: the one place where something is drawn outside a page.

Kaleido (the extra `figures`) hands them to Chromium, all of them to one, and asks no network.
"""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from layerlab.errors import UserError, describe_install
from layerlab.system.logs import silence
from layerlab.validation import short_repr

# As on a page: colours which readers with any colour vision tell apart.
COLOURS = ("#0072b2", "#d55e00", "#00805d", "#b8588f", "#bf7f00", "#2f93c8", "#1b1e23")
FONT = "Helvetica, Arial, sans-serif"
# Pixels of an SVG are printed at 3.5 inches for a column, so that letters stand at 7 points.
COLUMN, PAGE = 420, 860
LETTERS = 12
# Pixels of a PNG for each of an SVG: 360 on an inch of a column.
SCALE = 3
PATIENCE = 300
# What they say of a browser that ends is said here in a line.
NOISY = ("kaleido", "choreographer")
WHITE = {"paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff", "template": "none"}


class FigureKind(StrEnum):
    """As what a figure is written."""

    svg = "svg"
    png = "png"
    pdf = "pdf"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plotly figure with its size, in pixels of an SVG."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    width: int = COLUMN
    height: int = 300


def layout(**own: Any) -> dict[str, Any]:
    """Return the style of a figure for a paper: white, no title, letters legible in a column."""
    return {
        "font": {"family": FONT, "size": LETTERS, "color": "#1b1e23"},
        "margin": {"l": 58, "r": 12, "t": 12, "b": 46},
        "showlegend": False,
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        **own,
    }


def axis(title: str, **own: Any) -> dict[str, Any]:
    """Return the style of an axis of such a figure."""
    return {
        "title": {"text": title, "standoff": 8},
        "showline": True,
        "linecolor": "#1b1e23",
        "ticks": "outside",
        "ticklen": 4,
        "gridcolor": "#e6e6e6",
        "zeroline": False,
        "automargin": True,
        **own,
    }


def plain(text: str) -> str:
    """Escape a text so that plotly, which reads a little HTML, shows it letter by letter.

    Example:
        >>> plain("<b>")
        '&lt;b&gt;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def drawable() -> bool:
    """Return whether the extra `figures` is installed."""
    return importlib.util.find_spec("kaleido") is not None


def check_drawing(kind: str) -> None:
    """Report before any work what would keep figures from being drawn.

    Raises:
        UserError: an unknown format; kaleido or its browser is missing.
    """
    if kind not in list(FigureKind):
        raise UserError(f"figures are {short_repr(kind)}; expected one of {', '.join(FigureKind)}")
    if not drawable():
        raise UserError(
            f"figures as {kind} are drawn by kaleido, which is not installed; "
            f"{describe_install('figures')}"
        )
    from choreographer.browsers.chromium import Chromium

    browser = Chromium.find_browser(skip_local=False)
    if browser is None or not os.access(browser, os.X_OK):
        found = (
            "is not found" if browser is None else f"is not at BROWSER_PATH, {short_repr(browser)}"
        )
        raise UserError(
            f"figures as {kind} are drawn by Chromium or Chrome, which {found}; install one, or "
            "type plotly_get_chrome, or name one in the environment variable BROWSER_PATH"
        )


def draw(figures: Mapping[str, Figure], folder: Path, kind: str = "svg") -> None:
    """Write each figure as `NAME.kind` into an existing folder.

    Raises:
        UserError: a figure could not be drawn.
    """
    if not figures:
        return
    import kaleido

    try:
        with silence(*NOISY):
            kaleido.write_fig_from_object_sync(
                list(_orders(figures, folder, kind)),
                cancel_on_error=True,
                kopts={"mathjax": False, "timeout": PATIENCE},
            )
    except Exception as error:  # what drives a browser fails in its own ways
        # Some bring a page of advice along, one sentence each.
        first = error.args[0] if error.args else error
        message = " ".join(str(first).split())[:200] or type(error).__name__
        raise UserError(
            f"the figures were not drawn: {message}; leave them out, or try again"
        ) from error


def _orders(figures: Mapping[str, Figure], folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    for name, figure in figures.items():
        yield {
            "fig": {"data": figure.data, "layout": {**figure.layout, **WHITE}},
            "path": str(folder / f"{name}.{kind}"),
            "opts": {
                "format": kind,
                "width": figure.width,
                "height": figure.height,
                "scale": SCALE if kind == "png" else 1,
            },
        }
