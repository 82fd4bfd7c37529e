"""Everything that one GPU can show, beside its limits, in one line: `python bench/gpu.py`.

Sections go in the order of what is asked most; those that do not fit into the time are named as not
run. Each line stands beside what the GPU could do (a copy, a matrix product, a float32 forward) and
beside its target. `make gpu` also runs the tests with the marker `gpu`.

    --minutes M      time for all sections (default 8)
    --section NAME   limits, rounding, inspect, commands, emulation, errors, monitor, use,
                     kernels, long, large, peers, offload or formats
    --out FOLDER     where gpu.json and gpu.md go (default build/gpu)
    --small          tiny shapes on whatever device there is, to try the script itself
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from bench.on_gpu.device import Bench, Line, Section
from bench.on_gpu.peers import errors, offload, peers
from bench.on_gpu.sections import (
    commands,
    emulation,
    formats,
    inspect,
    kernels,
    large,
    limits,
    long,
    monitor,
    rounding,
    use,
)
from layerlab.system.files import write_file
from layerlab.system.hardware import device_name, versions

SECTIONS = {
    "limits": Section(limits, 5),
    "rounding": Section(rounding, 10),
    "inspect": Section(inspect, 25),
    "commands": Section(commands, 25),
    "emulation": Section(emulation, 20),
    "errors": Section(errors, 15),
    "monitor": Section(monitor, 25),
    "use": Section(use, 45),
    "kernels": Section(kernels, 15),
    "long": Section(long, 50),
    "large": Section(large, 75),
    "peers": Section(peers, 20),
    "offload": Section(offload, 30),
    "formats": Section(formats, 120),
}


@dataclass
class Table:
    """What was measured, and what was not."""

    device: str
    versions: dict[str, str | None]
    small: bool
    lines: list[Line] = field(default_factory=list)

    def markdown(self) -> str:
        head = [f"# One {self.device}", "", ", ".join(f"{k} {v}" for k, v in self.versions.items())]
        if self.small:
            head += ["", "Tiny shapes: the script was tried, nothing was measured."]
        rows = [
            "| section | what | value | limit | target | verdict |",
            "|---|---|---|---|---|---|",
        ]
        rows += [
            f"| {one.section} | {one.name} | {one.value} | {one.limit} | {one.target} "
            f"| {one.verdict(self.small)} |"
            for one in self.lines
        ]
        return "\n".join([*head, "", *rows]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--section", choices=SECTIONS, action="append")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    if not torch.cuda.is_available() and not given.small:
        raise SystemExit("no GPU is here; expected one that torch.cuda sees, or type --small")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = Table(device_name(device), versions(), given.small)
    end = time.monotonic() + 60 * given.minutes
    for name in given.section or SECTIONS:
        bench = Bench(torch.device(device), given.small, end, save=partial(_save, table, given.out))
        _run(name, bench, table)
    if any(line.failed for line in table.lines):
        raise SystemExit(1)


def _run(name: str, bench: "Bench", table: Table) -> None:
    """Run one section; what stops it becomes a line of the table."""
    section = SECTIONS[name]
    bench.section, bench.lines = name, table.lines
    if bench.left() < (0 if bench.small else section.seconds):
        bench.note(f"not run: it takes {section.seconds} s, and {bench.left():.0f} are left")
        return
    try:
        section.run(bench)
    except Exception as error:  # the next section goes on
        first = (str(error).splitlines() or [""])[0]
        bench.note(f"failed: {type(error).__name__}: {first}", failed=True)
    bench.free()


def _save(table: Table, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "gpu.json", json.dumps(asdict(table), indent=1) + "\n")
    write_file(folder / "gpu.md", table.markdown())


if __name__ == "__main__":
    main()
