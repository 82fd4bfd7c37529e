"""Pictures of a ladder as SVG: gain and best rate against size, loss against compute and rate.

Each stands alone as a file; on a page, the classes of its lines take the page's colours.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from layerlab.records.json_values import Json
from layerlab.report.figures.export import COLOURS
from layerlab.report.figures.svg import (
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
from layerlab.report.views import curves as curve
from layerlab.report.views import text

HEIGHT = 340
EDGES = {"left": 78.0, "right": WIDTH - 190.0, "top": 32.0, "bottom": HEIGHT - 48.0}
NAME, TICKS, APART = 24, 6, 14.0
# Of the loss against the rate: a panel for each size, with a heading and an axis.
PANEL, HEAD, FOOT, PANEL_TICKS = 230.0, 24.0, 48.0, 4
LABEL_ROOM = 44.0  # pixels of a rate at the axis
CROSS, RING = 4.0, 7.0
FAR = 4.0  # a loss is off the scale from so many times the middle one's distance to the best
GAIN, LOSS, RATE = labels("Gain over the baseline", "Held-out loss", "Best learning rate")
SIZE, COMPUTE, SWEPT = labels("parameters", "FLOPs of a run", "learning rate")
SWEEP = label("Held-out loss against the learning rate, by size")


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The line of one arm.

    Attributes:
        index: of its colour.
        points: that are drawn through.
        band: its lower and its upper edge.
        marks: points with the ends of their interval.
        known: place up to which the line is measured; beyond, it is dashed.
        best: place of the best learning rate; None where there is none.
    """

    name: str
    index: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    marks: Sequence[tuple[float, float, float, float]] = field(default=())
    known: float = math.inf
    best: float | None = None


def ladder_pictures(content: Mapping[str, Any], say: Say = str) -> dict[str, str]:
    """Return the pictures of a ladder by their file names; one without data is empty.

    Args:
        say: translates what stands at the axes.
    """
    ladder, names = content.get("ladder"), [str(name) for name in content.get("arms") or ()]
    if not ladder:
        return {}
    unit, metric = str(ladder.get("unit") or "nats"), str(content.get("metric") or "nats")
    return {
        "ladder-gain.svg": _draw(
            list(_gains(ladder, names)), (say(SIZE), f"{say(GAIN)}, {say(unit)}"), zero=True
        ),
        "ladder-loss.svg": _draw(
            list(_losses(ladder, names, metric)),
            (say(COMPUTE), f"{say(LOSS)}, {say(unit)}"),
        ),
        "ladder-rate.svg": _draw(
            list(_rates(ladder, names)), (say(SIZE), say(RATE)), logarithmic=True
        ),
        "ladder-sweep.svg": _draw_sweeps(
            [
                (
                    f"{curve.quantity(size['parameters'])} {say(SIZE)}",
                    list(_sweeps(size, names, metric)),
                )
                for size in ladder["sizes"]
            ],
            (say(SWEPT), f"{say(LOSS)}, {say(unit)}"),
            say(SWEEP),
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
            band=[(size, low, high) for size, _, low, high in line],
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


def _sweeps(size: Json, names: Sequence[str], metric: str) -> Iterator[_Line]:
    """Yield the losses of each arm by rate; a rate at which a run diverged has an infinite one."""
    for row in size["rows"]:
        losses = {_log(one["rate"]): one.get(metric) for one in row.get("rates") or ()}
        if len(losses) < 2:
            continue
        yield _Line(
            name=str(row["arm"]),
            index=_place(row["arm"], names),
            points=[(x, math.inf if y is None else float(y)) for x, y in sorted(losses.items())],
            best=_log(row["rate"]) if row.get("rate") else None,
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
    frame = Frame(across=(min(across), max(across)), up=(min(up) - room, max(up) + room), **EDGES)
    rising = _steps(*frame.up) if logarithmic else round_ticks(*frame.up, TICKS)
    parts = [
        draw_words(frame.left, 16, axes[1], anchor="start", fill=MUTED),
        *frame.axes(
            {value: curve.quantity(10**value) for value in _steps(*frame.across)},
            {value: f"{10**value:.2g}" if logarithmic else f"{value:g}" for value in rising},
            axes[0],
            size=12,
        ),
    ]
    if zero:
        level = frame.y(0.0)
        parts.append(draw_stroke((frame.left, level), (frame.right, level), MUTED, kind="zero"))
    ends = frame.spread({line.name: frame.y(line.points[-1][1]) for line in drawn}, APART)
    for line in drawn:
        parts += [*_shape(frame, line), _name(frame.right + 8, ends[line.name] + 4, line)]
    return draw_whole(parts, HEIGHT, axes[1])


def _draw_sweeps(
    panels: Sequence[tuple[str, Sequence[_Line]]], axes: tuple[str, str], title: str
) -> str:
    """Draw a panel for each size below the others, over one axis; empty without a sweep.

    Args:
        panels: the heading and the lines of each size.
        axes: names of the rate and of the loss.
        title: of the whole.
    """
    drawn = [
        (head, lines)
        for head, lines in panels
        if any(math.isfinite(y) for line in lines for _, y in line.points)
    ]
    if not drawn:
        return ""
    rates = sorted({x for _, lines in drawn for line in lines for x, _ in line.points})
    names = APART * max(len(lines) for _, lines in drawn)
    height = max(PANEL, HEAD + names + FOOT)
    parts = [draw_words(EDGES["left"], 16, axes[1], anchor="start", fill=MUTED)]
    for number, (head, lines) in enumerate(drawn):
        top = HEAD + height * number
        parts.append(draw_words(EDGES["left"], top + 16, head, 13, weight="600"))
        parts += _panel(lines, rates, axes[0], (top + HEAD, top + height - FOOT))
    return draw_whole(parts, HEAD + height * len(drawn), title)


def _panel(
    lines: Sequence[_Line], rates: Sequence[float], name: str, place: tuple[float, float]
) -> Iterator[str]:
    """Yield the losses of one size by rate.

    Args:
        rates: of all sizes, rising.
        name: of the axis of rates.
        place: its upper and lower edge.
    """
    losses = sorted(y for line in lines for _, y in line.points if math.isfinite(y))
    # What diverged, or nearly, would flatten all the rest.
    reach = FAR * max(1e-3, losses[len(losses) // 2] - losses[0])
    most = max(one for one in losses if one <= losses[0] + reach)
    room, wide = 0.1 * (most - losses[0] or 1.0), 0.04 * (rates[-1] - rates[0])
    frame = Frame(
        across=(rates[0] - wide, rates[-1] + wide),
        up=(losses[0] - room, most + 1.5 * room),
        left=EDGES["left"],
        right=EDGES["right"],
        top=place[0],
        bottom=place[1],
    )
    rising = round_ticks(*frame.up, PANEL_TICKS)
    yield from frame.axes(
        _rate_labels(frame, rates), {one: f"{one:g}" for one in rising}, name, size=12
    )
    ends = frame.spread({line.name: frame.clamp(line.points[-1][1]) for line in lines}, APART)
    for line in lines:
        yield from _curve(frame, line, most)
        yield _name(frame.right + 8, ends[line.name] + 4, line)


def _rate_labels(frame: Frame, rates: Sequence[float]) -> dict[Number, str]:
    """Return the rates that are written at the axis: as many as do not touch."""
    found: dict[Number, str] = {}
    for rate in rates:
        if not found or frame.x(rate) - frame.x(list(found)[-1]) >= LABEL_ROOM:
            found[rate] = f"{10**rate:.2g}"
    return found


def _curve(frame: Frame, line: _Line, most: float) -> Iterator[str]:
    """Yield the losses of an arm by rate; one above `most` is a cross at the top."""
    for inside, some in groupby(line.points, lambda point: point[1] <= most):
        points = list(some)
        if inside:
            marks = [(x, y, y, y) for x, y in points]
            yield from _shape(frame, replace(line, points=points, marks=marks))
            yield from (_ring(frame, point, line) for point in points if point[0] == line.best)
        else:
            for x, _ in points:
                yield from _cross(frame.x(x), frame.top + CROSS, line)


def _ring(frame: Frame, point: Point, line: _Line) -> str:
    kind, colour = _look(line)
    return (
        f'<circle class="{kind} ring" cx="{frame.x(point[0]):.1f}" cy="{frame.y(point[1]):.1f}" '
        f'r="{RING:g}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
    )


def _cross(x: float, y: float, line: _Line) -> Iterator[str]:
    kind, colour = _look(line)
    for turn in (CROSS, -CROSS):
        yield draw_stroke((x - CROSS, y - turn), (x + CROSS, y + turn), colour, 1.8, kind)


def _steps(low: Number, high: Number) -> list[Number]:
    """Return places of 1, 3, 10 and so on; ends where they say more."""
    found = [
        power + step
        for power in range(math.floor(low), math.ceil(high) + 1)
        for step in (0.0, math.log10(3))
        if low - 1e-9 <= power + step <= high + 1e-9
    ]
    return found if len(found) > 1 else [low, high]


def _shape(frame: Frame, line: _Line) -> Iterator[str]:
    """Yield the band, the line and the marks of an arm; the band ends at the frame."""
    kind, colour = _look(line)
    if line.band:
        above = [(x, min(high, frame.up[1])) for x, _, high in line.band]
        below = [(x, max(low, frame.up[0])) for x, low, _ in reversed(line.band)]
        corners = " ".join(map(frame.place, [*above, *below]))
        yield (
            f'<polygon class="{kind} area" points="{corners}" fill="{colour}" fill-opacity="0.14"/>'
        )
    inside = [one for one in line.points if one[0] <= line.known + 1e-9]
    outside = [*inside[-1:], *(one for one in line.points if one[0] > line.known + 1e-9)]
    for points, dash in ((inside, ""), (outside, ' stroke-dasharray="5 4"')):
        if len(points) > 1:
            yield (
                f'<polyline class="{kind}" points="{" ".join(map(frame.place, points))}" '
                f'fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'
            )
    for x, y, low, high in line.marks:
        if low != high:
            at = frame.x(x)
            yield draw_stroke((at, frame.y(low)), (at, frame.y(high)), colour, kind=kind)
        yield (
            f'<circle class="{kind} dot" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.6" '
            f'fill="{colour}"/>'
        )


def _name(x: float, y: float, line: _Line) -> str:
    kind, colour = _look(line)
    return draw_words(x, y, text.prose(line.name, NAME), 13, kind=kind, fill=colour)


def _look(line: _Line) -> tuple[str, str]:
    """Return the class and the colour of an arm: those of its curves on the page."""
    index = line.index % len(COLOURS)
    return f"s{index}", COLOURS[index]
