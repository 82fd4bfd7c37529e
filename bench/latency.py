"""Time per token of PanGu-pi beside Llama under three accountings: `python bench/latency.py`.

At a twin of the source's 7B shape, with weights at random: its 29 and 32 layers at a smaller width,
and vocabularies scaled with the width, so that the head keeps its share of the weights.
One thread by default, whose processor time others do not lengthen. The source's own times stand in
the tables, labelled as published. A prediction counts the weights that a token reads; the target is
a median within 0.05 of it. At widths below about 1024 the calls of many small operations take
longer than the weights, and the prediction does not speak of them.

    --accounting NAME  one of them; all three if left out
    --width N          of the twin (default 1024)
    --shape NAME       7b (default) or 1b
    --repetitions N    of each comparison (default 10)
    --new N            tokens after the prompt (default 17)
    --context N        tokens of the prompt (default 32)
    --threads N        of a CPU (default 1)
    --device NAME      cpu (default) or cuda
    --dtype NAME       float32 on a CPU and bfloat16 on a GPU if left out
    --out FOLDER       a JSON file for each accounting
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAXTYPING_DISABLE", "1")

from rich.console import Console

from layerlab.latency.config import LatencyConfig, latency_config
from layerlab.latency.measure import measure_latency
from layerlab.latency.parameter_matching import ACCOUNTINGS, pair
from layerlab.latency.table import timetable
from layerlab.system.files import write_file

WITHIN = 0.05


def accounted(name: str, asked: argparse.Namespace, chosen: LatencyConfig) -> None:
    matched = pair(name, shape=asked.shape, width=asked.width)
    found = measure_latency([matched.pangu, matched.llama], chosen, pair=matched)
    print(f"\n{matched.about}", flush=True)
    Console(markup=False, highlight=False, width=160).print(timetable(found, 160))
    if found.decode is not None:
        off = found.decode.median - matched.predicted
        met = "met" if abs(off) <= WITHIN else "MISSED"
        print(f"  measured - predicted {off:+.3f}, target within {WITHIN}: {met}", flush=True)
    if asked.out is not None:
        write_file(asked.out / f"{name}.json", json.dumps(found.to_dict(), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--accounting", choices=ACCOUNTINGS, action="append")
    parser.add_argument("--shape", default="7b")
    parser.add_argument("--width", type=int, default=1024)
    sizes = {"repetitions": 10, "new": 17, "context": 32, "threads": 1}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    given = {name: getattr(asked, name) for name in sizes}
    chosen = latency_config(device=asked.device, dtype=asked.dtype, **given)
    for name in asked.accounting or ACCOUNTINGS:
        accounted(name, asked, chosen)


if __name__ == "__main__":
    main()
