"""Pictures of a ladder as SVG: gain and best rate against size, loss against compute.

Each stands alone as a file; on a page, the classes of its lines take the page's colours.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from layerlab.records.json_values import Json
from layerlab.report.figures.comparison_svg import Point
from layerlab.report.i18n.language import Say, label
from layerlab.report.views import curves as curve
from layerlab.report.views import forest_plot, text

WIDTH, HEIGHT = 780, 340
LEFT, RIGHT, TOP, BOTTOM = 78.0, 190.0, 32.0, 48.0
NAME, TICKS, APART = 24, 6, 14.0
COLOURS = ("#0072b2", "#d55e00", "#00805d", "#b8588f", "#c98600", "#3a9fd6", "#1b1e23")
INK, MUTED, RULE = "#1b1e23", "#5c636e", "#d5d8dd"
GAIN, LOSS, RATE = (
    label("Gain over the baseline"),
    label("Held-out loss"),
    label("Best learning rate"),
)
SIZE, COMPUTE = label("parameters"), label("FLOPs of a run")


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The line of one arm.

    Attributes:
        index: of its colour.
        points: that are drawn through.
        band: its lower and its upper edge.
        marks: points with the ends of their interval.
        known: place up to which the line is measured; beyond, it is dashed.
    """

    name: str
    index: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    marks: Sequence[tuple[float, float, float, float]] = field(default=())
    known: float = math.inf


def ladder_pictures(content: Mapping[str, Any], say: Say = str) -> dict[str, str]:
    """Return the pictures of a ladder by their file names; one without data is empty.

    Args:
        say: translates what stands at the axes.
    """
    ladder, names = content.get("ladder"), [str(name) for name in content.get("arms") or ()]
    if not ladder:
        return {}
    unit = str(ladder.get("unit") or "nats")
    return {
        "ladder-gain.svg": _draw(
            list(_gains(ladder, names)), (say(SIZE), f"{say(GAIN)}, {say(unit)}"), zero=True
        ),
        "ladder-loss.svg": _draw(
            list(_losses(ladder, names, str(content.get("metric") or "nats"))),
            (say(COMPUTE), f"{say(LOSS)}, {say(unit)}"),
        ),
        "ladder-rate.svg": _draw(
            list(_rates(ladder, names)), (say(SIZE), say(RATE)), logarithmic=True
        ),
    }


def _gains(ladder: Json, names: Sequence[str]) -> Iterator[_Line]:
    last = max((float(size["parameters"]) for size in ladder["sizes"]), default=math.inf)
    for row in ladder["arms"]:
        found, band = [], row.get("band") or {}
        for one in row["gains"]:
            value = curve.short(one["gain"])
            if value is not None:
                ends = curve.short(one["low"]), curve.short(one["high"])
                low, high = (value if end is None else end for end in ends)
                found.append((_log(one["parameters"]), value, low, high))
        places = [_log(one) for one in band.get("parameters") or ()]
        columns = [band.get(key) or () for key in ("gain", "low", "high")]
        line = [one for one in zip(places, *columns, strict=False) if None not in one]
        yield _Line(
            name=str(row["arm"]),
            index=_place(row["arm"], names),
            points=[one[:2] for one in line] or [one[:2] for one in found],
            band=[(place, low, high) for place, _, low, high in line],
            marks=found,
            known=_log(last),
        )


def _losses(ladder: Json, names: Sequence[str], metric: str) -> Iterator[_Line]:
    for name in names:
        rows = [row for size in ladder["sizes"] for row in size["rows"] if row["arm"] == name]
        points = [
            (_log(row["flops"]), float(row[metric]))
            for row in rows
            if row.get("flops") and row.get(metric) is not None
        ]
        yield _Line(
            name=name,
            index=_place(name, names),
            points=points,
            marks=[(x, y, y, y) for x, y in points],
        )


def _rates(ladder: Json, names: Sequence[str]) -> Iterator[_Line]:
    for one in ladder["rates"]:
        if not any(at["swept"] > 1 for at in one["best"]):
            continue  # one declared rate says nothing
        points = [(_log(at["parameters"]), _log(at["rate"])) for at in one["best"] if at["rate"]]
        yield _Line(
            name=str(one["arm"]),
            index=_place(one["arm"], names),
            points=points,
            marks=[(x, y, y, y) for x, y in points],
        )


def _place(name: Any, names: Sequence[str]) -> int:
    return names.index(str(name)) if str(name) in names else 0


def _log(value: Any) -> float:
    return math.log10(float(value))


def _draw(
    lines: Sequence[_Line],
    axes: tuple[str, str],
    *,
    zero: bool = False,
    logarithmic: bool = False,
) -> str:
    """Draw lines over a logarithmic axis; empty where no line has two points."""
    drawn = [line for line in lines if len(line.points) > 1]
    if not drawn:
        return ""
    across = [x for line in drawn for x, _ in line.points]
    # How uncertain a forecast is does not set the scale.
    up = [
        value
        for line in drawn
        for value in (
            *(y for _, y in line.points),
            *(end for _, *ends in line.marks for end in ends),
        )
    ]
    up += [0.0] if zero else []
    room = 0.06 * (max(up) - min(up) or 1.0)
    frame = _LadderFrame((min(across), max(across)), (min(up) - room, max(up) + room))
    parts = [*frame.axes(axes, logarithmic)]
    if zero:
        parts.append(_stroke((LEFT, frame.y(0.0)), (frame.right, frame.y(0.0)), MUTED, "zero"))
    wanted = {line.name: frame.y(line.points[-1][1]) for line in drawn}
    for name, y in _spread(wanted, frame.bottom).items():
        line = next(one for one in drawn if one.name == name)
        parts += [*_shape(frame, line), _name(frame.right + 8, y + 4, line)]
    return _whole(parts, axes[1])


class _LadderFrame:
    """Places on a picture of what is measured."""

    def __init__(self, across: Point, up: Point) -> None:
        self.across, self.up = across, up
        self.right, self.bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(self, value: float) -> float:
        start, end = self.across
        return LEFT + (self.right - LEFT) * (value - start) / ((end - start) or 1.0)

    def y(self, value: float) -> float:
        """Return the height of a value, at the edge where it is beyond."""
        low, high = self.up
        place = self.bottom - (self.bottom - TOP) * (value - low) / (high - low)
        return min(self.bottom, max(TOP, place))

    def axes(self, names: tuple[str, str], logarithmic: bool) -> Iterator[str]:
        for value in forest_plot.ticks_of(*self.up, TICKS):
            told = f"{10**value:.2g}" if logarithmic else f"{value:g}"
            yield _stroke((LEFT, self.y(value)), (self.right, self.y(value)), RULE, "rule")
            yield _words(LEFT - 8, self.y(value) + 4, told, "end")
        for value in self._steps():
            yield _words(self.x(value), self.bottom + 18, _amount(10**value), "middle")
        yield _stroke((LEFT, self.bottom), (self.right, self.bottom), MUTED, "zero")
        yield _words((LEFT + self.right) / 2, HEIGHT - 8, names[0], "middle")
        yield _words(LEFT, 16, names[1], "start")

    def _steps(self) -> list[float]:
        """Return places of 1, 3, 10 and so on; ends where they say more."""
        low, high = self.across
        found = [
            power + step
            for power in range(math.floor(low), math.ceil(high) + 1)
            for step in (0.0, math.log10(3))
            if low - 1e-9 <= power + step <= high + 1e-9
        ]
        return found if len(found) > 1 else [low, high]


def _shape(frame: _LadderFrame, line: _Line) -> Iterator[str]:
    """Yield the band, the line and the marks of an arm."""
    colour = COLOURS[line.index % len(COLOURS)]
    kind = f"s{line.index % len(COLOURS)}"
    if line.band:
        above = [_at(frame, (x, high)) for x, _, high in line.band]
        below = [_at(frame, (x, low)) for x, low, _ in reversed(line.band)]
        yield (
            f'<polygon class="{kind} area" points="{" ".join([*above, *below])}" fill="{colour}" '
            'fill-opacity="0.14"/>'
        )
    inside = [one for one in line.points if one[0] <= line.known + 1e-9]
    outside = [*inside[-1:], *(one for one in line.points if one[0] > line.known + 1e-9)]
    for points, dash in ((inside, ""), (outside, ' stroke-dasharray="5 4"')):
        if len(points) > 1:
            yield (
                f'<polyline class="{kind}" points="{" ".join(_at(frame, one) for one in points)}" '
                f'fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'
            )
    for x, y, low, high in line.marks:
        if low != high:
            place = frame.x(x)
            yield _stroke((place, frame.y(low)), (place, frame.y(high)), colour, kind)
        yield (
            f'<circle class="{kind} dot" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.6" '
            f'fill="{colour}"/>'
        )


def _at(frame: _LadderFrame, point: Point) -> str:
    return f"{frame.x(point[0]):.1f},{frame.y(point[1]):.1f}"


def _spread(wanted: Mapping[str, float], most: float) -> dict[str, float]:
    """Return the heights of names, so that none covers another."""
    found: dict[str, float] = {}
    last = -math.inf
    for name in sorted(wanted, key=lambda one: wanted[one]):
        last = max(wanted[name], last + APART)
        found[name] = last
    over = max(0.0, last - most)
    return {name: place - over for name, place in found.items()}


def _amount(value: float) -> str:
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g}"


def _stroke(start: Point, end: Point, colour: str, kind: str) -> str:
    return (
        f'<line class="{kind}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" '
        f'y2="{end[1]:.1f}" stroke="{colour}"/>'
    )


def _words(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" '
        f'fill="{MUTED}">{escape(words)}</text>'
    )


def _name(x: float, y: float, line: _Line) -> str:
    colour, name = COLOURS[line.index % len(COLOURS)], escape(text.prose(line.name, NAME))
    kind = f"s{line.index % len(COLOURS)}"
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" font-size="13" fill="{colour}">{name}</text>'
    )


def _whole(parts: Sequence[str], title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="Helvetica, Arial, sans-serif" '
        f'fill="{INK}">\n<title>{escape(title)}</title>\n'
        f'<rect class="paper" width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )
