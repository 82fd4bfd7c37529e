"""An estimate as a table on the terminal."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from layerlab.training.quantity import amount, duration

NARROW = 110  # columns of a terminal; below it, what the last lines say in sum is left out
BESIDE = {"embedding + head", "FLOP per run", "memory", "disk"}


def quote(estimate: Any, width: int) -> Group:
    """A row per arm, and what all runs take together."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    rows = [_cells(side) for side in estimate.sides]
    kept = [name for name in rows[0] if width >= NARROW or name not in BESIDE]
    for name in kept:
        table.add_column(name, justify="left" if name == "arm" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[name]) for name in kept))
    return Group(table, *map(Text, _lines(estimate)))


def _cells(side: Any) -> dict[str, str]:
    parts = side.parameters
    about = "" if side.measured or side.update_seconds is None else "~"
    return {
        "arm": side.arm,
        "runs": str(side.runs),
        "layers": str(side.layers),
        "parameters": amount(sum(parts.values())),
        "embedding + head": amount(parts["embedding"] + parts["head"]),
        "updates": f"{side.updates:,}",
        "FLOP per run": amount(side.flops),
        "per update": about + duration(side.update_seconds),
        "MFU": f"{side.mfu:.0%}" if side.measured and side.mfu is not None else "",
        "per run": about + duration(side.seconds),
        "memory": amount(side.memory, "B"),
        "disk": amount(side.disk, "B"),
    }


def _lines(estimate: Any) -> list[str]:
    runs = "1 run" if estimate.runs == 1 else f"{estimate.runs} runs"
    lines = [
        f"{runs}, {estimate.slots} at once: {duration(estimate.seconds)} in all, "
        f"{amount(estimate.flops, 'FLOP')}, {amount(estimate.memory, 'B')} of memory "
        f"beside the processes, {amount(estimate.disk, 'B')} on disk",
        "FLOPs: forward and backward, attention with its full square; under a causal mask "
        + ", ".join(
            f"{side.token_flops.causal / side.token_flops.full - 1:+.0%} ({side.arm})"
            for side in estimate.sides[:4]
        ),
    ]
    matched = [side for side in estimate.sides if side.match is not None]
    if matched:
        each = "; ".join(f"{side.arm} {side.match.brief}" for side in matched)
        lines.append(f"matched on {matched[0].match.on}: {each}")
    if estimate.peak is None:
        return [*lines, "times are unknown: there is no such device here"]
    lines.append(f"peak, by square matrix products: {amount(estimate.peak, 'FLOP/s')}")
    if estimate.start:
        lines.append(f"of each run, the start of its process: {duration(estimate.start)}")
    if estimate.compiled:
        lines.append("train.compile: times are those of eager models, without compiling")
    if estimate.room is not None and estimate.memory > estimate.room:
        lines.append(
            f"MORE MEMORY than the {amount(estimate.room, 'B')} that are free here: "
            "fewer run.slots, or a smaller train.micro_batch"
        )
    if not all(side.measured for side in estimate.sides):
        lines.append("~ by formula: 40 % of the peak")
    return lines
