"""Where the best learning rate lies at each width, standard and muP: `python bench/mup.py`.

Real runs of one recipe on the built-in text, one thread: every width learns with every rate, an
octave apart, and then with rates half an octave beside the best. The best rate of a curve is the
lowest point of a parabola through its five points nearest to the best, in octaves, of the loss on
held-out text; its drift is the slope over the widths, in octaves per doubling. At the base width
both parametrizations are the same runs. Target: muP drifts at most 0.25 octaves per doubling.

    --widths W ...   widths (default 64 128 256); the first is the base
    --variant NAME   default llama
    --layers N       default 2
    --updates N      updates of a run (default 200), of 8 x 64 tokens
    --seeds N        seeds (default 2); a point is their mean, and each gives a drift of its own
    --octaves A B    rates from 2^A to 2^B (default -11 -6)
    --optimizer NAME adamw (default) or muon
    --json FILE      keeps every loss, and goes on from it
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("JAXTYPING_DISABLE", "1")

import numpy as np

from layerlab.corpus.corpus import Corpus, extent, prepare
from layerlab.errors import UserError
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.training.trainer import train_run

TARGET = 0.25  # octaves per doubling of the width
NEAREST = 5  # points of a parabola
WAYS = ("standard", "mup")
Curve = dict[float, float]


def recipe(options: argparse.Namespace, width: int, way: str, rate: float, seed: int) -> Any:
    train: dict[str, Any] = {
        "max_steps": options.updates,
        "batch_size": 8,
        "learning_rate": rate,
        "seed": seed,
        "optimizer": options.optimizer,
    }
    if way == "mup":
        train |= {"parametrization": "mup", "mup_base_width": options.widths[0]}
    sizes = {"width": width, "layers": options.layers, "heads": 4, "context": 64}
    return make_recipe(
        {
            "model": {"variant": options.variant, **sizes},
            "data": {"vocab_size": 512},
            "train": train,
            "evaluate": {"max_eval_blocks": 256, "eval_steps": options.updates},
            "run": {"save_steps": options.updates, "save_model": False},
        }
    )


def loss(found: TrainingRecipe, corpus: Corpus) -> float:
    """Return the loss of a run on held-out text; that of nobody who diverged is finite."""
    run = plan(found, extent(corpus, found.model.context or 0))[0]
    with tempfile.TemporaryDirectory() as folder:
        try:
            return float(train_run(run, Path(folder) / run.name)["nats"])
        except UserError:
            return float("inf")


def best(curve: Mapping[float, float]) -> float | None:
    """Return the octave of the lowest point of a curve, by a parabola; None at its edge."""
    points = sorted((octave, found) for octave, found in curve.items() if np.isfinite(found))
    lowest = min(points, key=lambda one: one[1])[0]
    if lowest in (points[0][0], points[-1][0]):
        return None
    near = sorted(points, key=lambda one: abs(one[0] - lowest))[:NEAREST]
    bend, slope, _ = np.polyfit(*zip(*near, strict=True), 2)
    return float(-slope / (2 * bend)) if bend > 0 else lowest


def drift(widths: Iterable[int], octaves: Iterable[float | None]) -> float | None:
    """Return the slope of best octaves over doublings of the width."""
    found = list(octaves)
    if None in found:
        return None
    return float(np.polyfit(np.log2(list(widths)), found, 1)[0])


class Sweep:
    """Losses by parametrization, width, seed and octave, kept in a file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.file = options, options.json
        self.losses: dict[str, float] = {}
        if self.file and self.file.exists():
            self.losses = json.loads(self.file.read_text())
        self.corpus = prepare(recipe(options, options.widths[0], "standard", 1.0, 0).data)

    def loss(self, way: str, width: int, seed: int, octave: float) -> float:
        # At the base both are the same run.
        way = "standard" if width == self.options.widths[0] else way
        key = f"{way} {width} {seed} {octave:g}"
        if key not in self.losses:
            found = recipe(self.options, width, way, 2.0**octave, seed)
            self.losses[key] = loss(found, self.corpus)
            if self.file:
                self.file.write_text(json.dumps(self.losses, indent=1))
        return self.losses[key]

    def curve(self, way: str, width: int, seeds: Iterable[int]) -> Curve:
        """Return the mean loss over seeds by octave."""
        seeds, (first, last) = list(seeds), self.options.octaves

        def mean(octave: float) -> float:
            return sum(self.loss(way, width, seed, octave) for seed in seeds) / len(seeds)

        found = {float(octave): mean(octave) for octave in range(first, last + 1)}
        lowest = min(found, key=lambda octave: found[octave])
        return found | {octave: mean(octave) for octave in (lowest - 0.5, lowest + 0.5)}


def show(way: str, curves: Mapping[int, Curve]) -> None:
    octaves = sorted({octave for curve in curves.values() for octave in curve})
    print(f"\n{way}\n  log2 rate " + "".join(f"{octave:>8g}" for octave in octaves) + "    best")
    for width, curve in curves.items():
        cells = (f"{curve[octave]:8.4f}" if octave in curve else " " * 8 for octave in octaves)
        lowest = best(curve)
        end = "  at the edge" if lowest is None else f"{lowest:8.2f}"
        print(f"  {width:>9} " + "".join(cells) + end)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--variant", default="llama")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--octaves", type=int, nargs=2, default=[-11, -6])
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start, sweep, seeds = time.perf_counter(), Sweep(options), range(options.seeds)
    print(
        f"{options.variant}, {options.layers} layers, {options.optimizer}, {options.updates} "
        f"updates of 8 x 64 tokens, {options.seeds} seeds; base width {options.widths[0]}"
    )
    for way in WAYS:
        curves = {width: sweep.curve(way, width, seeds) for width in options.widths}
        show(way, curves)
        found = drift(options.widths, map(best, curves.values()))
        alone = [
            drift(options.widths, (best(sweep.curve(way, one, [seed])) for one in options.widths))
            for seed in seeds
        ]
        each = ", ".join("no minimum" if one is None else f"{one:+.2f}" for one in alone)
        told = "no minimum inside the rates" if found is None else f"{found:+.2f}"
        print(f"  drift of the best rate, octaves per doubling: {told} (each seed: {each})")
        if way == "mup" and found is not None:
            print(f"  target {TARGET}: " + ("met" if abs(found) <= TARGET else "MISSED"))
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
