"""A comparison for a terminal; what came from outside is never read as markup."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from layerlab.terminal import plain
from layerlab.training.quantity import amount, duration
from layerlab.training.verdict import number

Row = Mapping[str, Any]
Value = int | float | None
STYLES = {
    "better": "green",
    "worse": "red",
    "identical": "cyan",
    "baseline": "bold",
    "too few seeds": "yellow",
    "no verdict": "yellow",
}
CLAIMS = {"holds": "green", "fails": "red"}
Column = tuple[str, int, Callable[[Row, str], str]]
# From this width on what runs cost stands beside what decides; else in a table below.
WIDE = 160
# From these widths on a column is shown; what decides comes first.
_COLUMNS: tuple[Column, ...] = (
    ("arm", 0, lambda row, _: str(row["arm"])),
    ("n", 60, lambda row, _: f"{row['n']}"),
    ("mean", 0, lambda row, metric: _short(row[metric], ".4f")),
    ("sd", 90, lambda row, _: _unsigned(row["sd"])),
    ("difference", 0, lambda row, _: _signed(row["difference"])),
    ("interval", 80, lambda row, _: _interval(row)),
    ("p (Holm)", 70, lambda row, _: _short(row["holm"], ".2g")),
    ("detectable", 110, lambda row, _: _unsigned(row["detectable"])),
    ("rate", 120, lambda row, _: _short(row["rate"], "g")),
    ("match %", WIDE + 10, lambda row, _: _short(row["mismatch"], "+.2f")),
)
_COST: tuple[Column, ...] = (
    ("parameters", 0, lambda row, _: _short(row["parameters"], ",.0f")),
    ("tokens/s", 0, lambda row, _: _short(row["tokens_per_second"], ",.0f")),
    ("memory", 0, lambda row, _: _memory(row["peak_memory_bytes"])),
    ("time a run", 0, lambda row, _: _time(row["seconds"])),
)
_VERDICT: Column = ("verdict", 0, lambda row, _: str(row["verdict"]))


def table(content: Mapping[str, Any], width: int) -> Group:
    """The rows, then each verdict in words, then what has to be known beside."""
    shown = [column for column in _COLUMNS if width >= column[1]]
    if width >= WIDE:
        tables: list[RenderableType] = [_grid(content, [*shown, *_COST, _VERDICT])]
    else:
        cost = _grid(content, [_COLUMNS[0], *_COST])
        tables = [_grid(content, [*shown, _VERDICT]), Text(), plain("Cost", "bold"), cost]
    return Group(*_above(content), *tables, Text(), *_below(content))


def _grid(content: Mapping[str, Any], columns: Sequence[Column]) -> Table:
    # One blank between columns: "not distinguishable" then breaks between its words at 80 columns.
    found = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name, _, _ in columns:
        left = name in ("arm", "verdict")
        found.add_column(
            plain(name),
            justify="left" if left else "right",
            no_wrap=not left,
            overflow="fold",
            min_width=max(map(len, "not distinguishable".split())) if name == "verdict" else None,
        )
    metric = str(content["metric"])
    for row in content["rows"]:
        style = STYLES.get(str(row["verdict"]), "")
        found.add_row(*(plain(cell(row, metric), style) for _, _, cell in columns))
    return found


def _above(content: Mapping[str, Any]) -> Iterator[Text]:
    unit = "bits per byte" if content["metric"] == "bits_per_byte" else "nats"
    rivals = ", ".join(dict.fromkeys(str(row["against"]) for row in content["rows"]))
    head = f"{content['name']}: {unit} on held-out text, lower is better; differences to {rivals}"
    yield plain(head, "bold")
    if content["about"]:
        yield plain(content["about"], "dim")
    if content["inferred"]:
        yield plain(f"Inferred: {content['inferred']}", "dim")


def _below(content: Mapping[str, Any]) -> Iterator[Text]:
    for row in content["rows"]:
        yield plain(row["said"], STYLES.get(str(row["verdict"]), ""))
    for claim in content.get("claims", ()):
        said = f"{claim['source']}: {claim['says'].rstrip('.')} - {claim['said']}"
        yield plain(said, CLAIMS.get(str(claim["verdict"]), ""))
    for remark in content["remarks"]:
        yield plain(f"- {remark}", "dim")


def _signed(value: Value) -> str:
    return "-" if value is None else number(value, sign=True)


def _unsigned(value: Value) -> str:
    return "-" if value is None else number(value)


def _interval(row: Row) -> str:
    if row["low"] is None or row["high"] is None:
        return "-"
    return f"{number(row['low'], True)} to {number(row['high'], True)}"


def _short(value: Value, style: str) -> str:
    return "-" if value is None else format(value, style)


def _time(value: Value) -> str:
    return "-" if value is None else duration(value)


def _memory(value: Value) -> str:
    return "-" if value is None else amount(value, "B")
