"""Pictures of a campaign as SVG: what is left to spend, and the p of each idea beside its level.

Each stands alone as a file; on a page, the classes of its marks take the page's colours.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from layerlab.records.json_values import Json
from layerlab.report.figures.export import COLOURS
from layerlab.report.figures.svg import (
    INK,
    MUTED,
    WIDTH,
    Frame,
    Number,
    Point,
    draw_stroke,
    draw_whole,
    draw_words,
    round_ticks,
)
from layerlab.report.i18n.language import Say, label, labels
from layerlab.report.views.text import prose

PICTURES = ("wealth.svg", "levels.svg")
HEIGHT = 300
EDGES = {"left": 78.0, "right": WIDTH - 20.0, "top": 32.0, "bottom": HEIGHT - 48.0}
TICKS = 6
SMALLEST = -12.0  # power of ten below which every p is drawn at the edge
IDEAS, WEALTH, EVIDENCE = labels("ideas", "Wealth left", "p of each idea")
WORDS = {"adopted": label("adopted"), "refuted": label("refuted"), "undecided": label("undecided")}
KINDS = {"adopted": 2, "refuted": 1, "undecided": 0}  # of colours, as better and worse have them


def campaign_pictures(content: Mapping[str, Any], say: Say = str) -> dict[str, str]:
    """Return the pictures of a campaign by their file names; none before its first idea.

    Args:
        say: translates what stands at the axes.
    """
    if not content["ideas"]:
        return {}
    drawn = (_draw_wealth(content, say), _draw_levels(content["ideas"], say))
    return dict(zip(PICTURES, drawn, strict=True))


def _draw_wealth(content: Mapping[str, Any], say: Say) -> str:
    """Draw what was left over the ideas, down by each confirmation and up by each adoption."""
    count = len(content["ideas"])
    left = float(content["alpha"])
    line: list[Point] = [(0, left)]
    adopted: list[tuple[Number, Number, str]] = []
    for step in content["spending"]:
        line.append((step["tried"], line[-1][1]))
        line.append((step["tried"], step["wealth"]))
        if step["kind"] == "adopted":
            adopted.append((step["tried"], step["wealth"], step["idea"]))
    line.append((count, line[-1][1]))
    top = 1.06 * max(y for _, y in line)
    frame = Frame(across=(0, count), up=(0.0, top), **EDGES)
    parts = [
        *_axes(frame, say(WEALTH), {y: f"{y:g}" for y in round_ticks(0.0, top, TICKS)}, say),
        _trace(frame, line, 0),
        *(
            mark
            for x, y, idea in adopted
            for mark in _mark(frame.x(x), frame.y(y), "adopted", idea)
        ),
    ]
    return draw_whole(parts, HEIGHT, say(WEALTH))


def _draw_levels(ideas: Sequence[Json], say: Say) -> str:
    """Draw the p of each idea's last runs, and the level that it had to reach as a short rule."""
    rows = [(rank, one, one["trials"][-1]) for rank, one in enumerate(ideas, start=1)]
    found = [_log(last["verdict"]["p"]) for _, _, last in rows if last["verdict"]]
    low = min([*found, *(_log(last["level"]) for _, _, last in rows)])
    frame = Frame(across=(0.5, len(rows) + 0.5), up=(min(-2.0, low), 0.0), **EDGES)
    apart = max(1, math.ceil(-frame.up[0] / TICKS))
    powers = [-power for power in range(0, math.floor(-frame.up[0]) + 1, apart)]
    parts = list(_axes(frame, say(EVIDENCE), {y: f"{10.0**y:g}" for y in powers}, say))
    for rank, idea, last in rows:
        level = frame.y(_log(last["level"]))
        ends = frame.x(rank - 0.4), frame.x(rank + 0.4)
        parts.append(draw_stroke((ends[0], level), (ends[1], level), INK, 2.0, kind="zero"))
        if last["verdict"]:
            at = frame.x(rank), frame.y(_log(last["verdict"]["p"]))
            parts += _mark(*at, str(idea["verdict"]), str(idea["idea"]))
    return draw_whole([*parts, *_key(say)], HEIGHT, say(EVIDENCE))


def _axes(frame: Frame, name: str, up: Mapping[Number, str], say: Say) -> Iterator[str]:
    across = [x for x in round_ticks(*frame.across, TICKS) if float(x).is_integer()]
    yield draw_words(frame.left, 16, name, anchor="start", fill=MUTED)
    yield from frame.axes({x: f"{x:g}" for x in across}, up, say(IDEAS), size=12)


def _log(value: Any) -> float:
    return max(SMALLEST, math.log10(value)) if value > 0 else SMALLEST


def _trace(frame: Frame, points: Sequence[Point], kind: int) -> str:
    places = " ".join(map(frame.place, points))
    return (
        f'<polyline class="s{kind}" points="{places}" fill="none" stroke="{COLOURS[kind]}" '
        'stroke-width="1.8"/>'
    )


def _mark(x: Number, y: Number, word: str, idea: str = "") -> Iterator[str]:
    """Yield the mark of a verdict, told by its form as by its colour, named where one points."""
    kind = KINDS[word]
    style = f'class="s{kind}" fill="none" stroke="{COLOURS[kind]}" stroke-width="1.8"'
    named = f"<title>{escape(prose(idea))}</title>" if idea else ""
    if word == "adopted":
        yield (
            f'<circle class="s{kind} dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5" '
            f'fill="{COLOURS[kind]}">{named}</circle>'
        )
    elif word == "refuted":
        for rise in (4, -4):
            ends = f"{x - 4:.1f},{y - rise:.1f} {x + 4:.1f},{y + rise:.1f}"
            yield f'<polyline {style} points="{ends}">{named}</polyline>'
    else:
        corners = [(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y), (x, y - 5)]
        ends = " ".join(f"{one:.1f},{other:.1f}" for one, other in corners)
        yield f'<polyline {style} points="{ends}">{named}</polyline>'


def _key(say: Say) -> Iterator[str]:
    """Yield what the marks mean, in a row above the frame."""
    for row, (word, words) in enumerate(WORDS.items()):
        x = EDGES["right"] - 110 * (len(WORDS) - row)
        yield from _mark(x, 12, word)
        yield draw_words(x + 11, 16, say(words), fill=MUTED)
