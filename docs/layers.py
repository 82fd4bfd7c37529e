"""Picture of the layers, with the modules of each part that four commands reach."""

import runpy
from collections.abc import Iterator
from pathlib import Path

from layerlab.report.figures.svg import WIDTH, draw_whole, draw_words

ROOT = Path(__file__).resolve().parents[1]
RULE = runpy.run_path(str(ROOT / "tests" / "house" / "test_imports.py"))
# A command, and the file that it begins in.
COMMANDS = {
    "inspect": "layerlab.cli.inspect",
    "compare": "layerlab.cli.train",
    "evaluate": "layerlab.cli.evaluate",
    "adapt": "layerlab.cli.adapt.group",
}
# By command: on light paper under white numbers, on dark paper under dark ones.
LIGHT = ("#1f5fbf", "#b04a08", "#0f766e", "#7c3aed")
DARK = ("#8ab4f8", "#f2a968", "#5fd3c4", "#c4a7fb")
LEFT, TOP = 40, 56
BOX, GAP, HIGH, PITCH = 140, 7, 42, 50
CHIP, CHIP_HIGH, BETWEEN = 29, 15, 3
INSET = (BOX - 4 * CHIP - 3 * BETWEEN) / 2
STYLE = """<style>
.band { fill: #f2f4f7 } .box { fill: #ffffff; stroke: #b9c0ca }
.none { fill: none; stroke: #c4cad3 } .number { fill: #ffffff } .quiet { fill: #5c636e }
text.name { font-family: ui-monospace, Menlo, Consolas, monospace }
LIGHT
@media (prefers-color-scheme: dark) {
.paper { fill: #14171c } text { fill: #e6e9ee } .band { fill: #1d2128 }
.box { fill: #2a3039; stroke: #4a5362 } .none { stroke: #4a5362 }
text.number { fill: #14171c } text.quiet { fill: #a3acba }
DARK
}
</style>"""


def layers() -> str:
    """Draw every layer, the last at the top: a command begins there and reaches down."""
    edges = RULE["graph"]()
    reached = [RULE["reached"](edges, start) for start in COMMANDS.values()]
    rows = [row.split() for row in RULE["ROWS"]]
    parts = [STYLE.replace("LIGHT", _colours(LIGHT)).replace("DARK", _colours(DARK)), *_legend()]
    for number, row in enumerate(rows, 1):
        top = TOP + PITCH * (len(rows) - number)
        parts.append(_rect("band", 0, top, WIDTH, PITCH - 3, 6))
        parts.append(draw_words(20, top + 28, str(number), 12, anchor="middle", kind="quiet"))
        for place, name in enumerate(row):
            counts = [sum(RULE["part"](one) == name for one in found) for found in reached]
            parts += _box(LEFT + place * (BOX + GAP), top + 2.5, name, counts)
    return draw_whole(parts, TOP + PITCH * len(rows) + 5, "Layers, and what four commands reach")


def _colours(fills: tuple[str, ...]) -> str:
    return " ".join(f".c{place} {{ fill: {fill} }}" for place, fill in enumerate(fills))


def _legend() -> Iterator[str]:
    x = float(LEFT)
    for place, name in enumerate(COMMANDS):
        yield _rect(f"c{place}", x, 14, CHIP, CHIP_HIGH, 4)
        yield draw_words(x + CHIP + 6, 26, f"layerlab {name}", 12)
        x += 160
    words = "modules of a part that each command reaches, in this order; empty: none"
    yield draw_words(LEFT, 46, words, 11, kind="quiet")


def _box(x: float, y: float, name: str, counts: list[int]) -> Iterator[str]:
    """Draw a part with a chip for each command, in the order of the legend."""
    yield _rect("box", x, y, BOX, HIGH, 5)
    style = {"anchor": "middle", "weight": "600"} if any(counts) else {"anchor": "middle"}
    yield draw_words(x + BOX / 2, y + 16, name, 12, kind="name", **style)
    for place, count in enumerate(counts):
        left = x + INSET + place * (CHIP + BETWEEN)
        yield _rect(f"c{place}" if count else "none", left, y + 22.5, CHIP, CHIP_HIGH, 4)
        if count:
            middle = left + CHIP / 2
            yield draw_words(middle, y + 34, str(count), 11, anchor="middle", kind="number")


def _rect(kind: str, x: float, y: float, width: float, height: float, corner: float) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'rx="{corner:g}"/>'
    )
