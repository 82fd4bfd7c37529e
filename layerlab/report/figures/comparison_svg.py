"""Pictures of a comparison as SVG files that stand alone: no script, no style sheet, on white.

They are drawn here, number by number, so that they need no browser and no other library, and the
same comparison gives the same bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from layerlab.records.json_values import Json
from layerlab.report.views import curves as curve
from layerlab.report.views import forest_plot, text

WIDTH = 780
LINE = 26
NAME = 40
# About the width of a character, by which room is kept for words.
LETTER = 6.4
INK, MUTED, RULE, PALE = "#1b1e23", "#5c636e", "#d5d8dd", "#e8eaed"
TONES = {"better": "#00805d", "worse": "#d55e00", "unsure": "#5c636e", "baseline": "#1b1e23"}
COLOURS = ("#1b1e23", "#0072b2", "#d55e00", "#00805d", "#b8588f", "#c98600", "#3a9fd6")
DASHES = ("", "7 3", "2 3")
UNITS = {"nats": "nats per token", "bits_per_byte": "bits per byte"}
HEIGHT, TICKS = 400, 9

Number = int | float
Point = tuple[Number, Number]
CurveBand = list[tuple[Number, Number, Number, Number]]


def pictures(content: Json) -> dict[str, str]:
    """Return the pictures of a comparison by their file names; one without data is empty."""
    return {
        "forest.svg": forest_picture(content),
        "curves.svg": curve_picture(content),
        "gradients.svg": gradient_picture(content),
    }


def forest_picture(content: Json) -> str:
    """Draw the differences to the baseline with their intervals, the lowest loss first.

    Empty where there is nothing to show.
    """
    rows = list(content.get("rows") or ())
    if not rows:
        return ""
    names = [str(row["arm"]) for row in rows]
    base = str(content.get("baseline") or "")
    found = forest_plot.forest(rows, base, names)
    left = min(250.0, 30 + LETTER * max(len(_label(row, base)) for row in rows))
    lane = (left, WIDTH - 190.0)
    top, bottom = 64.0, 64.0 + LINE * len(rows)
    parts = [
        *_heading(content, f"difference in {_unit(content)}; left of zero is a lower loss"),
        *_scale(found, lane, top, bottom),
    ]
    for number, line in enumerate(found["lines"]):
        parts += _contest(line, base, lane, top + LINE * (number + 0.5))
    note = (
        f"Mean over seeds, {_percent(content)} interval; pale: what this many seeds can miss. "
        "▼ better, ▲ worse, ◇ not decided, ● baseline."
    )
    parts.append(_words(12, bottom + 44, note, size=11, fill=MUTED))
    return _whole(parts, bottom + 58, f"{_name(content)}: differences to {base}")


def curve_picture(content: Json) -> str:
    """Draw the held-out loss of each arm along the run, the mean and range of its seeds.

    Empty where there is none.
    """
    metric = str(content.get("metric") or "nats")
    bands = dict(_bands(content, metric))
    if not bands:
        return ""
    longest = max(point[0] for band in bands.values() for point in band)
    # The fall at the very beginning would flatten all that follows.
    late = [point for band in bands.values() for point in band if point[0] >= longest / 5]
    low, high = min(point[2] for point in late), max(point[3] for point in late)
    room = 0.04 * (high - low or abs(high) or 1.0)
    frame = _Frame((0.0, longest), (low - room, high + room), max(map(len, bands)))
    parts = [
        *_heading(content, f"{_unit(content)} on held-out text along the run, by updates"),
        *frame.axes("updates"),
        *_lines(frame, bands),
    ]
    return _whole(parts, HEIGHT, f"{_name(content)}: learning curves")


def gradient_picture(content: Json) -> str:
    """Draw the norm of the gradient by block, averaged over a run's readings; may be empty."""
    bands = dict(_blocks(content))
    if not bands:
        return ""
    last = max(band[-1][0] for band in bands.values())
    ends = [value for band in bands.values() for point in band for value in point[2:]]
    room = 0.04 * (max(ends) - min(ends) or 1.0)
    frame = _Frame((1.0, last), (min(ends) - room, max(ends) + room), max(map(len, bands)))
    words = "norm of the gradient by block in powers of ten, in the mean of a run's readings"
    parts = [
        *_heading(content, words),
        *frame.axes("block, the first one reads the embedding"),
        *_lines(frame, bands),
    ]
    return _whole(parts, HEIGHT, f"{_name(content)}: gradients by block")


def _lines(frame: "_Frame", bands: Mapping[str, CurveBand]) -> Iterator[str]:
    """Yield the line and band of each arm, its name behind its end, and a note on both."""
    ends = frame.spread({name: frame.y(band[-1][1]) for name, band in bands.items()})
    for number, (name, band) in enumerate(bands.items()):
        yield from _arm(frame, name, band, number, ends[name])
    note = "Line: mean of the seeds; band: the smallest to the largest of them."
    yield _words(12, HEIGHT - 10, note, size=11, fill=MUTED)


class _Frame:
    """A scale for places and values, with room for names at its right."""

    def __init__(self, across: Point, up: Point, longest: int) -> None:
        self.across, self.up = across, up
        self.left, self.right = 62.0, WIDTH - min(220.0, 24 + LETTER * longest)
        self.top, self.bottom = 60.0, HEIGHT - 62.0

    def x(self, value: Number) -> Number:
        start, end = self.across
        return self.left + (self.right - self.left) * (value - start) / ((end - start) or 1.0)

    def y(self, value: Number) -> Number:
        low, high = self.up
        return self.bottom - (self.bottom - self.top) * (value - low) / (high - low)

    def axes(self, across: str) -> Iterator[str]:
        yield (
            f'<clipPath id="frame"><rect x="{self.left:g}" y="{self.top:g}" '
            f'width="{self.right - self.left:.1f}" height="{self.bottom - self.top:.1f}"/>'
            "</clipPath>"
        )
        for value in _round(*self.up):
            place = self.y(value)
            yield _stroke((self.left, place), (self.right, place), RULE)
            yield _words(self.left - 6, place + 4, f"{value:g}", anchor="end", size=11, fill=MUTED)
        for value in _round(*self.across):
            place = self.x(value)
            words = f"{value:,.0f}" if value == int(value) else f"{value:g}"
            yield _words(place, self.bottom + 16, words, anchor="middle", size=11, fill=MUTED)
        yield _stroke((self.left, self.bottom), (self.right, self.bottom), MUTED)
        middle = (self.left + self.right) / 2
        yield _words(middle, self.bottom + 32, across, anchor="middle", size=11, fill=MUTED)

    def spread(self, wanted: Mapping[str, Number], apart: Number = 13.0) -> dict[str, Number]:
        """Return where names stand beside the ends of their lines, so that none covers another."""
        order = sorted(wanted, key=lambda name: wanted[name])
        places: list[Number] = []
        for name in order:
            place = max(wanted[name], places[-1] + apart if places else self.top)
            places.append(place)
        over = max(0.0, places[-1] - self.bottom)
        for index in range(len(places) - 1, -1, -1):
            limit = places[index + 1] - apart if index + 1 < len(places) else places[index] - over
            places[index] = min(places[index], limit)
        return dict(zip(order, places, strict=True))


def _bands(content: Json, metric: str) -> Iterator[tuple[str, CurveBand]]:
    """Yield each arm with its updates and the mean, least and largest value over its seeds."""
    done = {str(run.get("run")) for run in content.get("runs") or () if run.get("finished")}
    curves = [one for one in content.get("curves") or () if one.get("chosen")]
    # A run that is under way would end the band of its arm where it stands.
    ended = {str(one.get("arm")) for one in curves if str(one.get("run")) in done}
    curves = [one for one in curves if str(one["arm"]) not in ended or str(one["run"]) in done]
    drawn = curve.curve_columns(curves, "evaluation", (metric,))["runs"]
    for name in dict.fromkeys([*(content.get("arms") or ()), *(one["arm"] for one in curves)]):
        own = [
            {u: v for u, v in zip(one["update"], one[metric], strict=True) if v is not None}
            for index, one in drawn.items()
            if curves[int(index)]["arm"] == name
        ]
        own = [points for points in own if points]
        # Where a seed is missing, the band would jump.
        shared = sorted(set.intersection(*map(set, own))) if own else []
        band = [(u, *_spread([points[u] for points in own])) for u in shared]
        if band:
            yield text.prose(str(name), NAME), band


def _blocks(content: Json) -> Iterator[tuple[str, CurveBand]]:
    """Yield each arm with its blocks and the mean, least and largest log gradient over seeds."""
    read = [one for one in content.get("gradients") or () if isinstance(one, Mapping)]
    for name in dict.fromkeys(str(one["arm"]) for one in read):
        own = [one["mean"] for one in read if one["arm"] == name]
        blocks = enumerate(zip(*own, strict=True), start=1)
        band: CurveBand = [(number, *_spread(each)) for number, each in blocks]
        yield text.prose(name, NAME), band


def _spread(values: Sequence[Number]) -> tuple[Number, Number, Number]:
    return sum(values) / len(values), min(values), max(values)


def _arm(frame: _Frame, name: str, band: CurveBand, number: int, end: Number) -> Iterator[str]:
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    style = (
        f'stroke={quoteattr(colour)} stroke-dasharray="{dash}"' if dash else f'stroke="{colour}"'
    )
    above = [f"{frame.x(u):.1f},{frame.y(high):.1f}" for u, _, _, high in band]
    below = [f"{frame.x(u):.1f},{frame.y(low):.1f}" for u, _, low, _ in reversed(band)]
    middle = [f"{frame.x(u):.1f},{frame.y(mean):.1f}" for u, mean, _, _ in band]
    yield (
        f'<g clip-path="url(#frame)"><polygon points="{" ".join([*above, *below])}" '
        f'fill="{colour}" fill-opacity="0.13"/><polyline points="{" ".join(middle)}" fill="none" '
        f'{style} stroke-width="1.6"/></g>'
    )
    height = min(frame.bottom, max(frame.top, frame.y(band[-1][1])))
    last = (frame.x(band[-1][0]), height)
    yield _stroke(last, (frame.right + 8, end), colour, 0.6)
    yield _words(frame.right + 11, end + 4, name, fill=colour)


def _contest(line: Json, base: str, lane: Point, y: Number) -> Iterator[str]:
    """Yield an arm's name, its smallest detectable difference, interval, mark and number."""
    tone = "baseline" if line["verdict"] == "baseline" else line["tone"]
    colour = TONES[tone]
    yield _words(12, y + 4, _label(line, base), weight="600" if tone == "baseline" else "400")

    def at(percent: Number) -> Number:
        return lane[0] + (lane[1] - lane[0]) * percent / 100

    if line["blind"]:
        start, end = map(at, line["blind"])
        yield (
            f'<rect x="{start:.1f}" y="{y - 6:.1f}" width="{end - start:.1f}" height="12" rx="2" '
            f'fill="{PALE}"/>'
        )
    if line["from"] is not None:
        start, end = at(line["from"]), at(line["to"])
        yield _stroke((start, y), (end, y), colour, 2)
        for place in (start, end):
            yield _stroke((place, y - 4), (place, y + 4), colour, 1.5)
    if line["at"] is not None:
        yield _mark(tone, at(line["at"]), y)
    yield _words(WIDTH - 12, y + 4, _number(line, tone), anchor="end", fill=colour)


def _number(line: Json, tone: str) -> str:
    if tone == "baseline":
        return "baseline"
    if line["difference"] is None:
        return "no result"
    said = forest_plot.format_signed(line["difference"], line["width"])
    if line["from"] is None:
        return said
    ends = (forest_plot.format_signed(line[key], line["width"]) for key in ("low", "high"))
    return f"{said}  [{', '.join(ends)}]"


def _mark(tone: str, x: Number, y: Number) -> str:
    corners = {
        "better": ((-5, -4), (5, -4), (0, 5)),
        "worse": ((-5, 4), (5, 4), (0, -5)),
        "unsure": ((-5, 0), (0, -5), (5, 0), (0, 5)),
    }
    if tone == "baseline":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{INK}"/>'
    points = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners[tone])
    fill = "#ffffff" if tone == "unsure" else TONES[tone]
    return f'<polygon points="{points}" fill="{fill}" stroke="{TONES[tone]}" stroke-width="1.5"/>'


def _scale(found: Json, lane: Point, top: Number, bottom: Number) -> Iterator[str]:
    for tick in found["ticks"]:
        place = lane[0] + (lane[1] - lane[0]) * tick["at"] / 100
        yield _stroke((place, top), (place, bottom), MUTED if tick["text"] == "0" else RULE)
        yield _words(place, bottom + 16, tick["text"], anchor="middle", size=11, fill=MUTED)


def _label(row: Json, base: str) -> str:
    arm, baseline = str(row["arm"]), str(row.get("against") or base)
    name = text.prose(arm, NAME)
    return name if baseline in (arm, base) else f"{name} (to {text.prose(baseline, NAME)})"


def _heading(content: Json, words: str) -> Iterator[str]:
    seeds = len(content.get("seeds") or ())
    told = f"{words}; {seeds} {'seed' if seeds == 1 else 'seeds'} an arm" if seeds else words
    if any(row.get("missing") for row in content.get("rows") or ()):
        told += ", not all of them finished"
    yield _words(12, 24, _name(content), size=16, weight="600")
    yield _words(12, 44, told[:1].upper() + told[1:], fill=MUTED)


def _name(content: Json) -> str:
    return text.prose(str(content.get("name") or "comparison"), 2 * NAME)


def _unit(content: Json) -> str:
    metric = str(content.get("metric") or "nats")
    return UNITS.get(metric, text.prose(metric, NAME))


def _percent(content: Json) -> str:
    given = content.get("confidence")
    return f"{100 * given if isinstance(given, float) else 95:g} %"


def _round(low: Number, high: Number) -> list[Number]:
    """Return round numbers between two ends."""
    return forest_plot.ticks_of(low, high, TICKS) if high > low else [low]


def _stroke(start: Point, end: Point, colour: str, width: Number = 1.0) -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width:g}"/>'
    )


def _words(x: Number, y: Number, words: str, size: int = 12, **style: str) -> str:
    named = {"anchor": "text-anchor", "weight": "font-weight", "fill": "fill"}
    kept = "".join(f' {named[key]}="{value}"' for key, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{kept}>{escape(words)}</text>'


def _whole(parts: Iterable[str], height: Number, title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" role="img" font-family="Helvetica, Arial, sans-serif" '
        f'fill="{INK}">\n<title>{escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )
