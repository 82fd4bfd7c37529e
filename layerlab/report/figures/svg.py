"""Elements of SVG files: a frame of two scales, strokes, words and the whole drawing.

A file stands alone: no script, no style sheet, on white. On a page, the classes that its strokes
may carry take the page's colours.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from layerlab.report.figures.export import FONT
from layerlab.report.views import forest_plot

WIDTH = 780
INK, MUTED, RULE = "#1b1e23", "#5c636e", "#d5d8dd"

Number = int | float
Point = tuple[Number, Number]
# How a value is told at an axis, by its place there.
Ticks = Mapping[Number, str]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Two scales: where values stand in a drawing.

    Attributes:
        across: the values at the left and the right edge.
        up: the values at the lower and the upper edge.
        left: pixel of this edge, as of the other three.
    """

    across: Point
    up: Point
    left: Number
    right: Number
    top: Number
    bottom: Number

    def x(self, value: Number) -> Number:
        """Return the pixel of a value from the left."""
        start, end = self.across
        return self.left + (self.right - self.left) * (value - start) / ((end - start) or 1.0)

    def y(self, value: Number) -> Number:
        """Return the pixel of a value from the top, outside the frame where it is beyond."""
        low, high = self.up
        return self.bottom - (self.bottom - self.top) * (value - low) / ((high - low) or 1.0)

    def clamp(self, value: Number) -> Number:
        """Return the pixel of a value from the top, at the edge where it is beyond."""
        return min(self.bottom, max(self.top, self.y(value)))

    def place(self, point: Point) -> str:
        """Return a point as the corner of a polygon."""
        return f"{self.x(point[0]):.1f},{self.y(point[1]):.1f}"

    def axes(self, across: Ticks, up: Ticks, name: str, size: int = 11) -> Iterator[str]:
        """Yield the rules and words of both axes, the name below."""
        for value, text in up.items():
            y = self.y(value)
            yield draw_stroke((self.left, y), (self.right, y), RULE, kind="rule")
            yield draw_words(self.left - 7, y + 4, text, size, anchor="end", fill=MUTED)
        for value, text in across.items():
            yield draw_words(
                self.x(value), self.bottom + 17, text, size, anchor="middle", fill=MUTED
            )
        yield draw_stroke((self.left, self.bottom), (self.right, self.bottom), MUTED, kind="zero")
        middle = (self.left + self.right) / 2
        yield draw_words(middle, self.bottom + 34, name, size, anchor="middle", fill=MUTED)

    def spread(self, wanted: Mapping[str, Number], apart: Number = 13.0) -> dict[str, Number]:
        """Return where names stand beside the ends of their lines, so that none covers another."""
        order = sorted(wanted, key=lambda name: wanted[name])
        places: list[Number] = []
        for name in order:
            y = max(wanted[name], places[-1] + apart if places else self.top)
            places.append(y)
        over = max(0.0, places[-1] - self.bottom)
        for index in range(len(places) - 1, -1, -1):
            limit = places[index + 1] - apart if index + 1 < len(places) else places[index] - over
            places[index] = min(places[index], limit)
        return dict(zip(order, places, strict=True))


def round_ticks(low: Number, high: Number, most: int) -> list[Number]:
    """Return round numbers between two ends."""
    return forest_plot.ticks_of(low, high, most) if high > low else [low]


def draw_stroke(start: Point, end: Point, colour: str, width: Number = 1.0, kind: str = "") -> str:
    """Return a line, of a class that a page may colour."""
    named = f' class="{kind}"' if kind else ""
    return (
        f'<line{named} x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" '
        f'y2="{end[1]:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'
    )


def draw_words(x: Number, y: Number, text: str, size: int = 12, **style: str) -> str:
    """Return words in a line; style: anchor, weight, fill, kind (a class)."""
    named = {"anchor": "text-anchor", "weight": "font-weight", "fill": "fill", "kind": "class"}
    kept = "".join(f' {named[key]}="{value}"' for key, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{kept}>{escape(text)}</text>'


def draw_whole(parts: Iterable[str], height: Number, title: str) -> str:
    """Return the drawing as a file."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" role="img" font-family="{FONT}" '
        f'fill="{INK}">\n<title>{escape(title)}</title>\n'
        f'<rect class="paper" width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )
