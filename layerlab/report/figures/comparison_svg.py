"""Pictures of a comparison as SVG files that stand alone: no script, no style sheet, on white.

They are drawn here, number by number, so that they need no browser and no other library, and the
same comparison gives the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence

from layerlab.records.json_values import Json
from layerlab.report.figures.export import COLOURS
from layerlab.report.figures.svg import (
    INK,
    MUTED,
    RULE,
    WIDTH,
    Frame,
    Number,
    Point,
    draw_stroke,
    draw_whole,
    draw_words,
    round_ticks,
)
from layerlab.report.views import curves as curve
from layerlab.report.views import forest_plot, text

LINE = 26
NAME = 40
# About the width of a character, by which room is kept for words.
LETTER = 6.4
PALE = "#e8eaed"
TONES = {"better": "#00805d", "worse": "#d55e00", "unsure": "#5c636e", "baseline": "#1b1e23"}
DASHES = ("", "7 3", "2 3")
UNITS = {"nats": "nats per token", "bits_per_byte": "bits per byte"}
HEIGHT, TICKS = 400, 9

CurveBand = list[tuple[Number, Number, Number, Number]]


def pictures(content: Json) -> dict[str, str]:
    """Return the pictures of a comparison by their file names; one without data is empty."""
    return {
        "forest.svg": forest_picture(content),
        "curves.svg": curve_picture(content),
        "gradients.svg": gradient_picture(content),
    }


def forest_picture(content: Json) -> str:
    """Draw the differences to the baseline with their intervals, the best first.

    Empty where there is nothing to show.
    """
    rows = list(content.get("rows") or ())
    if not rows:
        return ""
    names = [str(row["arm"]) for row in rows]
    base = str(content.get("baseline") or "")
    higher = bool(content.get("higher_is_better"))
    side = "a lower score, which is worse" if higher else "a lower loss"
    found = forest_plot.forest(rows, base, names, higher=higher)
    left = min(250.0, 30 + LETTER * max(len(_label(row, base)) for row in rows))
    lane = (left, WIDTH - 190.0)
    top, bottom = 64.0, 64.0 + LINE * len(rows)
    parts = [
        *_heading(content, f"difference in {_unit(content)}; left of zero is {side}"),
        *_scale(found, lane, top, bottom),
    ]
    for number, line in enumerate(found["lines"]):
        parts += _contest(line, base, lane, top + LINE * (number + 0.5))
    note = (
        f"Mean over seeds, {_percent(content)} interval; pale: what this many seeds can miss. "
        "▼ better, ▲ worse, ◇ not decided, ● baseline."
    )
    parts.append(draw_words(12, bottom + 44, note, size=11, fill=MUTED))
    return draw_whole(parts, bottom + 58, f"{_name(content)}: differences to {base}")


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
    frame = _frame((0.0, longest), (low - room, high + room), max(map(len, bands)))
    parts = [
        *_heading(content, f"{_unit(content)} on held-out text along the run, by updates"),
        *_axes(frame, "updates"),
        *_lines(frame, bands),
    ]
    return draw_whole(parts, HEIGHT, f"{_name(content)}: learning curves")


def gradient_picture(content: Json) -> str:
    """Draw the norm of the gradient by block, averaged over a run's readings; may be empty."""
    bands = dict(_blocks(content))
    if not bands:
        return ""
    last = max(band[-1][0] for band in bands.values())
    ends = [value for band in bands.values() for point in band for value in point[2:]]
    room = 0.04 * (max(ends) - min(ends) or 1.0)
    frame = _frame((1.0, last), (min(ends) - room, max(ends) + room), max(map(len, bands)))
    title = "norm of the gradient by block in powers of ten, in the mean of a run's readings"
    parts = [
        *_heading(content, title),
        *_axes(frame, "block, the first one reads the embedding"),
        *_lines(frame, bands),
    ]
    return draw_whole(parts, HEIGHT, f"{_name(content)}: gradients by block")


def _lines(frame: Frame, bands: Mapping[str, CurveBand]) -> Iterator[str]:
    """Yield the line and band of each arm, its name behind its end, and a note on both."""
    ends = frame.spread({name: frame.y(band[-1][1]) for name, band in bands.items()})
    for number, (name, band) in enumerate(bands.items()):
        yield from _arm(frame, name, band, number, ends[name])
    note = "Line: mean of the seeds; band: the smallest to the largest of them."
    yield draw_words(12, HEIGHT - 10, note, size=11, fill=MUTED)


def _frame(across: Point, up: Point, longest: int) -> Frame:
    """Return a frame with room for names at its right."""
    right = WIDTH - min(220.0, 24 + LETTER * longest)
    return Frame(across=across, up=up, left=62.0, right=right, top=60.0, bottom=HEIGHT - 62.0)


def _axes(frame: Frame, name: str) -> Iterator[str]:
    """Yield the axes, and what clips a line that begins above the frame."""
    yield (
        f'<clipPath id="frame"><rect x="{frame.left:g}" y="{frame.top:g}" '
        f'width="{frame.right - frame.left:.1f}" height="{frame.bottom - frame.top:.1f}"/>'
        "</clipPath>"
    )
    places = round_ticks(*frame.across, TICKS)
    across = {one: f"{one:,.0f}" if one == int(one) else f"{one:g}" for one in places}
    up = {one: f"{one:g}" for one in round_ticks(*frame.up, TICKS)}
    yield from frame.axes(across, up, name)


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


def _arm(frame: Frame, name: str, band: CurveBand, number: int, end: Number) -> Iterator[str]:
    colour = COLOURS[(number - 1) % len(COLOURS)]  # the baseline is black, which is the last
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    above = [frame.place((u, high)) for u, _, _, high in band]
    below = [frame.place((u, low)) for u, _, low, _ in reversed(band)]
    middle = [frame.place((u, mean)) for u, mean, _, _ in band]
    yield (
        f'<g clip-path="url(#frame)"><polygon points="{" ".join([*above, *below])}" '
        f'fill="{colour}" fill-opacity="0.13"/><polyline points="{" ".join(middle)}" fill="none" '
        f'stroke="{colour}"{dashed} stroke-width="1.6"/></g>'
    )
    last = (frame.x(band[-1][0]), frame.clamp(band[-1][1]))
    yield draw_stroke(last, (frame.right + 8, end), colour, 0.6)
    yield draw_words(frame.right + 11, end + 4, name, fill=colour)


def _contest(line: Json, base: str, lane: Point, y: Number) -> Iterator[str]:
    """Yield an arm's name, its smallest detectable difference, interval, mark and number."""
    tone = "baseline" if line["verdict"] == "baseline" else line["tone"]
    colour = TONES[tone]
    yield draw_words(12, y + 4, _label(line, base), weight="600" if tone == "baseline" else "400")

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
        yield draw_stroke((start, y), (end, y), colour, 2)
        for x in (start, end):
            yield draw_stroke((x, y - 4), (x, y + 4), colour, 1.5)
    if line["at"] is not None:
        yield _mark(tone, at(line["at"]), y)
    yield draw_words(WIDTH - 12, y + 4, _number(line, tone), anchor="end", fill=colour)


def _number(line: Json, tone: str) -> str:
    if tone == "baseline":
        return "baseline"
    if line["difference"] is None:
        return "no result"
    number = forest_plot.format_signed(line["difference"], line["width"])
    if line["from"] is None:
        return number
    ends = (forest_plot.format_signed(line[key], line["width"]) for key in ("low", "high"))
    return f"{number}  [{', '.join(ends)}]"


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
        x = lane[0] + (lane[1] - lane[0]) * tick["at"] / 100
        yield draw_stroke((x, top), (x, bottom), MUTED if tick["text"] == "0" else RULE)
        yield draw_words(x, bottom + 16, tick["text"], anchor="middle", size=11, fill=MUTED)


def _label(row: Json, base: str) -> str:
    arm, baseline = str(row["arm"]), str(row.get("against") or base)
    name = text.prose(arm, NAME)
    return name if baseline in (arm, base) else f"{name} (to {text.prose(baseline, NAME)})"


def _heading(content: Json, title: str) -> Iterator[str]:
    seeds = len(content.get("seeds") or ())
    line = f"{title}; {seeds} {'seed' if seeds == 1 else 'seeds'} an arm" if seeds else title
    if any(row.get("missing") for row in content.get("rows") or ()):
        line += ", not all of them finished"
    yield draw_words(12, 24, _name(content), size=16, weight="600")
    yield draw_words(12, 44, line[:1].upper() + line[1:], fill=MUTED)


def _name(content: Json) -> str:
    return text.prose(str(content.get("name") or "comparison"), 2 * NAME)


def _unit(content: Json) -> str:
    metric = "score" if content.get("higher_is_better") else str(content.get("metric") or "nats")
    return UNITS.get(metric, text.prose(metric, NAME))


def _percent(content: Json) -> str:
    given = content.get("confidence")
    return f"{100 * given if isinstance(given, float) else 95:g} %"
