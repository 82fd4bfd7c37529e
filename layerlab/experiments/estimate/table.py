"""An estimate as a table on the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from layerlab.console.units import amount, duration, durations

NARROW = 110  # columns of a terminal; below it, what the last lines say in sum is left out
BESIDE = {"embedding + head", "FLOP per run", "memory", "disk"}


def estimate_table(estimate: Any, width: int) -> Group:
    """Return a row per arm, and what all runs take together."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = _columns(estimate.sides)
    kept = [name for name in columns if width >= NARROW or name not in BESIDE]
    for name in kept:
        table.add_column(name, justify="left" if name == "arm" else "right", overflow="fold")
    for row in zip(*(columns[name] for name in kept), strict=True):
        table.add_row(*map(Text, row))
    return Group(table, *map(Text, _lines(estimate)))


def _columns(sides: Sequence[Any]) -> dict[str, list[str]]:
    parts = [side.parameters for side in sides]
    about = ["" if side.measured or side.update_seconds is None else "~" for side in sides]

    def times(seconds: Sequence[float | None]) -> list[str]:
        return [mark + text for mark, text in zip(about, durations(seconds), strict=True)]

    return {
        "arm": [side.arm for side in sides],
        "runs": [str(side.runs) for side in sides],
        "layers": [str(side.layers) for side in sides],
        "parameters": [amount(sum(one.values())) for one in parts],
        "embedding + head": [amount(one["embedding"] + one["head"]) for one in parts],
        "updates": [f"{side.updates:,}" for side in sides],
        "FLOP per run": [amount(side.flops) for side in sides],
        "per update": times([side.update_seconds for side in sides]),
        "MFU": [f"{side.mfu:.0%}" if side.measured and side.mfu else "" for side in sides],
        "per run": times([side.seconds for side in sides]),
        "memory": [amount(side.memory, "B") for side in sides],
        "disk": [amount(side.disk, "B") for side in sides],
    }


def _lines(estimate: Any) -> list[str]:
    lines = [
        f"{_together(estimate)}: {duration(estimate.seconds)} in all, "
        f"{amount(estimate.flops, 'FLOP')}, {amount(estimate.memory, 'B')} of memory "
        f"beside the processes, {amount(estimate.disk, 'B')} on disk",
        "FLOPs: forward and backward, attention with its full square; a causal mask saves "
        + _savings(estimate.sides),
    ]
    if (processes := estimate.processes) > 1:
        most = max(side.process_memory for side in estimate.sides)
        lines.append(f"each of the {processes} processes of a run takes {amount(most, 'B')} of it")
    matched = [side for side in estimate.sides if side.match is not None]
    if matched:
        each = "; ".join(f"{side.arm} {side.match.brief}" for side in matched)
        lines.append(f"matched on {matched[0].match.on}: {each}")
    lines += _parametrizations(estimate.sides)
    if estimate.peak is None:
        return [*lines, "times are unknown: there is no such device here"]
    return [*lines, *_conditions(estimate)]


def _parametrizations(sides: Sequence[Any]) -> list[str]:
    """Return from which width arms are scaled by muP; nothing where none is."""
    by_arm = {side.arm: _describe_base(side.base) for side in sides}
    if {*by_arm.values()} == {"standard"}:
        return []
    if len({*by_arm.values()}) == 1:
        return [f"parametrization: {by_arm[sides[0].arm]}"]
    return ["parametrization: " + ", ".join(f"{arm} {one}" for arm, one in by_arm.items())]


def _describe_base(base: Any) -> str:
    if base is None:
        return "standard"
    return f"muP from width {base.width}, heads of {base.head_width}"


def _conditions(estimate: Any) -> list[str]:
    """Return the conditions under which the times and the memory are what they are."""
    lines = [f"peak, by square matrix products: {amount(estimate.peak, 'FLOP/s')}"]
    if estimate.cluster:
        lines.append("times are those of this machine, and nothing waits in the cluster's queue")
    if estimate.start:
        often = "once for all runs of a process" if estimate.shared else "of each run"
        lines.append(f"{often}, its start: {duration(estimate.start)}")
        lines.append(f"of each run, its beginning and end: {duration(estimate.begin)}")
    if estimate.crowded > 1:
        lines.append(
            f"runs at once share cores or GPUs: each takes up to {estimate.crowded:.3g} times as "
            "long as alone, which the time in all counts and the time per run does not"
        )
    lines.append(f"left out: what it takes {', '.join(estimate.untimed)}")
    if estimate.compiled:
        lines.append(
            "train.torch_compile: times are those of eager models; compiling is not counted: "
            "minutes for the first run of an arm, seconds for those that find its code in the cache"
        )
    if estimate.room is not None and estimate.memory > estimate.room:
        fewer = "compare.lockstep = false" if estimate.lockstep else "fewer run.max_parallel"
        lines.append(
            f"MORE MEMORY than the {amount(estimate.room, 'B')} that are free here: "
            f"{fewer}, or a smaller train.micro_batch_size"
        )
    if not all(side.measured for side in estimate.sides):
        lines.append("~ by formula: 40 % of the peak")
    return lines


def _together(estimate: Any) -> str:
    """Return how many runs there are, and how they share their time."""
    if estimate.runs == 1:
        return "1 run"
    if estimate.lockstep:
        return f"{estimate.runs} runs in one process, in lockstep"
    return f"{estimate.runs} runs, {estimate.slots} at once"


def _savings(sides: Sequence[Any]) -> str:
    """Describe the share of FLOPs that causal attention saves, for all arms or by name."""
    by_arm = {side.arm: _save(side.token_flops) for side in sides}
    if len({*by_arm.values()}) == 1:
        return by_arm[sides[0].arm]
    return ", ".join(f"{share} ({arm})" for arm, share in list(by_arm.items())[:4])


def _save(flops: Any) -> str:
    share = 1 - flops.causal / flops.full
    return f"{share:.0%}".replace("%", " %") if share >= 0.005 else "less than 1 %"
