"""A comparison for a terminal; what came from outside is never read as markup."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from layerlab.console.tables import WORDS, grids, plain
from layerlab.console.units import amount, difference, duration
from layerlab.experiments.analysis.ladder_table import ladder_table
from layerlab.experiments.analysis.verdict import number
from layerlab.records.json_values import Record

Value = int | float | None
LOGGED = "loss"  # the metric of logs of other trainers
STYLES = {
    "better": "green",
    "worse": "red",
    "identical": "cyan",
    "baseline": "bold",
    "too few seeds": "yellow",
    "no verdict": "yellow",
}
CLAIMS = {"holds": "green", "fails": "red"}
ArmColumn = tuple[str, Callable[[Record, str], str]]
_ARM: ArmColumn = ("arm", lambda row, _: str(row["arm"]))
_VERDICT: ArmColumn = ("verdict", lambda row, _: str(row["verdict"]))
# What decides, the most telling first: on a narrow terminal the last of them go below.
_DECISIVE = ("difference", "mean", "interval", "p (Holm)", "detectable")
_BESIDE = ("sd", "n", "start", "rate", "match %")
_COST = ("parameters", "tokens/s", "memory", "time a run")
# In the order that they stand in.
_COLUMNS: dict[str, Callable[[Record, str], str]] = {
    "n": lambda row, _: f"{row['n']}",
    "mean": lambda row, metric: _short(row[metric], ".4f"),
    "sd": lambda row, _: _number(row["sd"]),
    "difference": lambda row, _: _number(row["difference"], sign=True),
    "interval": lambda row, _: _interval(row),
    "p (Holm)": lambda row, _: _short(row["holm"], ".2g"),
    "detectable": lambda row, _: _range(row["detectable"]),
    "start": lambda row, _: _number(row["start"], sign=True),
    "rate": lambda row, _: _short(row["rate"], "g"),
    "match %": lambda row, _: "-" if row["mismatch"] is None else difference(row["mismatch"], 2),
    "parameters": lambda row, _: _short(row["parameters"], ",.0f"),
    "tokens/s": lambda row, _: _short(row["tokens_per_second"], ",.0f"),
    "memory": lambda row, _: _memory(row["peak_memory_bytes"]),
    "time a run": lambda row, _: _time(row["seconds"]),
}
_MATCHED = {"flops": "FLOPs", "time": "time"}
# Columns whose cells may go on in the next line, in the order in which they do.
_FOLDING = ("verdict", "interval", "detectable", "arm")


def table(content: Mapping[str, Any], width: int) -> Group:
    """Return the rows, then each verdict in words, then the remarks.

    No column is left out: what finds no room beside the verdicts has a table below them.
    """
    titles = _name_columns(content)
    main = [name for name in _choose(content, width) if name in titles]
    drawn: list[RenderableType] = [_main(content, _columns(main), width)]
    for title, names in (("Details", (*_DECISIVE, *_BESIDE)), ("Cost", _COST)):
        left = [one for one in _columns(names) if one[0] in titles and one[0] not in main]
        if left:
            columns = [_ARM, *left]
            rows = [[cell for _, cell in _cells(row, columns, content)] for row in content["rows"]]
            below = grids([name for name, _ in columns], rows, {"arm"}, width)
            drawn += [Text(), plain(title, "bold"), below]
    return Group(
        *_above(content),
        *ladder_table(content, width),
        *drawn,
        plain(_legend(content, titles), "dim"),
        Text(),
        *_differs(content),
        *_by_seed(content, width),
        *_below(content),
    )


def _legend(content: Mapping[str, Any], titles: Collection[str]) -> str:
    """Return what the columns are that are shown, as this comparison asked for them."""
    confidence, power = (100 * content[name] for name in ("confidence", "power"))
    matched = _MATCHED.get(content["match"], "parameters")
    meanings = {
        "mean": f"mean, sd: {_loss(content)} over the seeds",
        "difference": "difference: less that of the baseline, by seed where both have it",
        "interval": f"interval: {confidence:g} %",
        "p (Holm)": "p (Holm): corrected for all tests",
        "detectable": f"detectable: what these seeds find with a probability of {power:g} %",
        "start": "start: difference before the first update",
        "rate": "rate: learning rate",
        "match %": f"match %: {matched} beyond the baseline's",
        "time a run": "time a run: without the start of its process",
    }
    return "; ".join(words for name, words in meanings.items() if name in titles) + "."


def _loss(content: Mapping[str, Any]) -> str:
    if content.get("higher_is_better"):
        return "score"
    return "loss" if content["metric"] == LOGGED else "held-out loss"


def _name_columns(content: Mapping[str, Any]) -> list[str]:
    """Return the columns that say something of an arm; all, but for logs of other trainers."""
    if content["metric"] != LOGGED:
        return list(_COLUMNS)
    rows = content["rows"]
    return [
        name for name, cell in _COLUMNS.items() if any(cell(row, LOGGED) != "-" for row in rows)
    ]


def differences(rows: Sequence[Record]) -> list[str]:
    """Return how each arm differs from its baseline, one line an arm."""
    return [
        f"{row['arm']} against {row['against']}: {_departure(row.get('differs'))}"
        for row in rows
        if row["arm"] != row["against"]
    ]


def _columns(names: Collection[str]) -> list[ArmColumn]:
    return [(name, cell) for name, cell in _COLUMNS.items() if name in names]


def _choose(content: Mapping[str, Any], width: int) -> list[str]:
    """Choose the columns that fit between the arm and its verdict.

    What decides may fold the words of others for it; what costs stands together or not at all.
    """
    natural = _widths(content, _columns(_COLUMNS))
    least = {**natural, **{name: _least(name, natural[name], content) for name in _FOLDING}}

    def fits(names: Collection[str], wide: Mapping[str, int]) -> bool:
        return sum(wide[name] + 1 for name in ("arm", "verdict", *names)) <= width + 1

    columns: list[str] = []
    for name in _DECISIVE:
        if not fits([*columns, name], least):
            return columns
        columns.append(name)
    for group in (*((name,) for name in _BESIDE), _COST):
        if not fits([*columns, *group], natural):
            break
        columns += group
    return columns


def _main(content: Mapping[str, Any], columns: Sequence[ArmColumn], width: int) -> Table:
    wide = _widths(content, columns)
    for name in _FOLDING:
        excess = sum(wide.values()) + len(wide) - 1 - width
        if name in wide and excess > 0:
            wide[name] = max(_least(name, wide[name], content), wide[name] - excess)
    # One blank between columns: "not distinguishable" then breaks between its words at 80 columns.
    found = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name, most in wide.items():
        left, folds = name in ("arm", "verdict"), name in _FOLDING
        found.add_column(
            plain(name),
            justify="left" if left else "right",
            no_wrap=not folds,
            overflow="fold",
            width=most,
        )
    for row in content["rows"]:
        style = STYLES.get(str(row["verdict"]), "")
        cells = _cells(row, [_ARM, *columns, _VERDICT], content)
        found.add_row(*(plain(cell, style) for _, cell in cells))
    return found


def _cells(
    row: Record, columns: Sequence[ArmColumn], content: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    metric = str(content["metric"])
    return ((name, cell(row, metric)) for name, cell in columns)


def _widths(content: Mapping[str, Any], columns: Sequence[ArmColumn]) -> dict[str, int]:
    """Return the width that each column asks for, the arm and its verdict included."""
    every = [_ARM, *columns, _VERDICT]
    found = {name: len(name) for name, _ in every}
    for row in content["rows"]:
        for name, cell in _cells(row, every, content):
            found[name] = max(found[name], plain(cell).cell_len)
    return found


def _least(name: str, natural: int, content: Mapping[str, Any]) -> int:
    """Return the least width of a column: names fold anywhere, others before their last word."""
    if name == "arm":
        return min(natural, WORDS)
    cell = _VERDICT[1] if name == "verdict" else _COLUMNS[name]
    parts = [len(part) for row in content["rows"] for part in cell(row, "").rpartition(" ")]
    return max([len(name), *parts])


def _above(content: Mapping[str, Any]) -> Iterator[Text]:
    unit = {"bits_per_byte": "bits per byte on held-out text", LOGGED: "loss"}.get(
        str(content["metric"]), "nats on held-out text"
    )
    baselines = ", ".join(dict.fromkeys(str(row["against"]) for row in content["rows"]))
    unit, side = ("score", "higher") if content.get("higher_is_better") else (unit, "lower")
    head = f"{content['name']}: {unit}, {side} is better; differences to {baselines}"
    yield plain(head, "bold")
    if content["about"]:
        yield plain(content["about"], "dim")
    if content["inferred"]:
        yield plain(f"Inferred: {content['inferred']}", "dim")


def _differs(content: Mapping[str, Any]) -> Iterator[Text]:
    lines = [] if content["metric"] == LOGGED else differences(content["rows"])
    if lines:
        yield plain("Differs", "bold")
        yield from (plain(line) for line in lines)
        yield Text()


def _by_seed(content: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    """Yield a table for each measure beside the loss: arms, then how they differ, seed by seed."""
    measures = content.get("measures", ())
    for measure in dict.fromkeys(row["measure"] for row in measures):
        rows = [row for row in measures if row["measure"] == measure]
        seeds = [str(one["seed"]) for one in rows[0]["seeds"]]
        cells = {row["against"]: _line(row, row["against"], "baseline") for row in rows}
        for row in rows:
            less = f"{row['arm']} less {row['against']}"
            cells[row["arm"]] = _line(row, row["arm"], "value")
            cells[less] = _line(row, less, "difference")
        yield plain(f"{measure} by seed", "bold")
        yield grids(["arm", *seeds, "mean"], cells.values(), {"arm"}, width)
        yield Text()


def _line(row: Record, name: str, key: str) -> list[str]:
    """Return a line of such a table: what stands under this key at each seed, and its mean."""
    sign = key == "difference"
    mean = row[{"value": "mean", "baseline": "against_mean"}.get(key, key)]
    cells = [at[key] for at in row["seeds"]]
    if all(one is None or float(one).is_integer() for one in cells):  # counts, as of loss spikes
        digits = "+.0f" if sign else ".0f"
        written = ["-" if one is None else f"{one:{digits}}" for one in cells]
    else:
        written = [_number(one, sign) for one in cells]
    return [name, *written, _number(mean, sign)]


def _below(content: Mapping[str, Any]) -> Iterator[Text]:
    for row in content["rows"]:
        yield plain(row["said"], STYLES.get(str(row["verdict"]), ""))
    for one in (*content.get("interactions", ()), *content.get("measures", ())):
        yield plain(one["said"])
    for claim in content.get("claims", ()):
        line = f"{claim['source']}: {claim['says'].rstrip('.')} - {claim['said']}"
        yield plain(line, CLAIMS.get(str(claim["verdict"]), ""))
    for remark in content["remarks"]:
        yield plain(f"- {remark}", "dim")
    if elsewhere := content.get("elsewhere"):
        counted = ", ".join(f"{name} ({count})" for name, count in elsewhere.items())
        yield plain(f"Beside these lie runs of arms that are not compared here: {counted}", "dim")


def _number(value: Value, sign: bool = False) -> str:
    return "-" if value is None else number(value, sign)


def _range(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else " to ".join(map(number, ends))


def _interval(row: Record) -> str:
    if row["low"] is None or row["high"] is None:
        return "-"
    return f"{number(row['low'], True)} to {number(row['high'], True)}"


def _short(value: Value, style: str) -> str:
    return "-" if value is None else format(value, style)


def _time(value: Value) -> str:
    return "-" if value is None else duration(value)


def _memory(value: Value) -> str:
    return "-" if value is None else amount(value, "B")


def _departure(differs: Mapping[str, Any] | None) -> str:
    if differs is None:
        return "not known: one of the two has no run, or names a part that is not loaded"
    found: dict[str, list[str]] = {}
    for one in differs["factors"]:
        found.setdefault(one["place"], []).append(_change(one))
    what = "; ".join(f"{setting}: {', '.join(changes)}" for setting, changes in found.items())
    counts = (("parameters", differs["parameters"]), ("FLOPs a token", differs["flops"]))
    sizes = [_more(count, name) for name, count in counts if count is not None]
    return "; ".join(filter(None, [what or "the same model", ", ".join(sizes)]))


def _change(one: Mapping[str, Any]) -> str:
    option = "" if one["option"] is None else f"{one['option']} "
    if one["arm"] is None:  # of another part
        return f"without {option}{one['against']}"
    return (
        f"{option}{one['arm']}"
        if one["against"] is None
        else (f"{option}{one['against']} -> {one['arm']}")
    )


def _more(count: Mapping[str, Any], name: str) -> str:
    if not count["difference"]:
        return f"as many {name}"
    share = "" if count["percent"] is None else f" ({difference(count['percent'], 2)} %)"
    return f"{count['difference']:+,.0f} {name}{share}"
