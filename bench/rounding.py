"""Rounding, emulation and prediction beside their peers: `python bench/rounding.py`.

One process, all contestants in turns, each line with its ratio and its target. Times are processor
seconds of one thread, or wall seconds of several, and a ratio is that of the best of all rounds:
what disturbs a round can only make it longer. pychop, gfloat and ml_dtypes run where they are
installed.

    --section NAME   throughput, emulation, long, agreement, predictor or figure; all if left out
    --rounds N       rounds of each comparison (default 7)
    --threads N      threads of torch and of the kernel (default 1)
    --count N        numbers in the section throughput (default 10 million)
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import os
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAXTYPING_DISABLE", "1")

import numpy as np
import torch
from torch import Tensor

from bench.numerics.emulation import agreement, emulation, long_emulation
from bench.numerics.figure import figure
from bench.numerics.predictor import predictor
from layerlab.numerics.formats.kernel import kernel
from layerlab.numerics.formats.round import rounder

FUSED, PURE = 0.9, 0.07
# As torch, ml_dtypes, pychop (bits of exponent and fraction) and gfloat call a format.
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
STORED = {
    "bf16": "bfloat16",
    "fp8_e4m3:nan": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "fp6_e2m3": "float6_e2m3fn",
    "fp6_e3m2": "float6_e3m2fn",
    "fp4_e2m1": "float4_e2m1fn",
}
PYCHOP = {"bf16": (8, 7), "fp16": (5, 10), "fp8_e5m2": (5, 2)}
GFLOAT = {
    "bf16": "format_info_bfloat16",
    "fp16": "format_info_binary16",
    "fp8_e4m3": "format_info_ocp_e4m3",
    "fp8_e5m2": "format_info_ocp_e5m2",
}
# Emulators in Python take so long that fewer numbers say as much.
FEW = 200_000

Step = Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """What the command line asked for."""

    rounds: int
    threads: int
    count: int


def line(name: str, value: str, target: str = "", met: bool | None = None) -> None:
    verdict = "" if met is None else ("met" if met else "MISSED")
    print(f"  {name:<34} {value:<44} {target:<22} {verdict}", flush=True)


def seconds(step: Step, threads: int) -> float:
    """Return the processor seconds of one thread, or the wall seconds of several."""
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    step()
    return clock() - start


def in_turns(steps: Mapping[str, Step], rounds: int, threads: int) -> dict[str, float]:
    """Return the best time of each contestant, once per round after a warm-up; the order turns."""
    for step in steps.values():
        step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            taken[name].append(seconds(steps[name], threads))
    return {name: min(all_of_it) for name, all_of_it in taken.items()}


@contextmanager
def without_kernel() -> Any:
    before = os.environ.get("LAYERLAB_KERNEL")
    os.environ["LAYERLAB_KERNEL"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LAYERLAB_KERNEL"]
        else:
            os.environ["LAYERLAB_KERNEL"] = before


def optional(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def contestants(name: str, x: Tensor, out: Tensor) -> dict[str, tuple[Step, int]]:
    """Return the steps that round to a format, and how many numbers each rounds."""
    count, few = x.numel(), x[:FEW]
    fused = rounder(name)
    with without_kernel():
        pure = rounder(name)
        pure(few)  # looks the kernel up, and finds that it is turned off
    found: dict[str, tuple[Step, int]] = {
        "copy_": (lambda: out.copy_(x), count),
        "fused": (lambda: fused(x, out), count),
        "pure torch": (lambda: pure(x, out), count),
    }
    if name in DTYPES:
        found["torch casts"] = (lambda: out.copy_(x.to(DTYPES[name])), count)
    peer, array = optional("ml_dtypes"), x.numpy()
    stored = getattr(peer, STORED.get(name, STORED.get(f"{name}:nan", "")), None)
    if peer is not None and stored is not None:
        found["ml_dtypes"] = (lambda: array.astype(stored).astype(np.float32), count)
    peer = optional("pychop")
    if peer is not None and name in PYCHOP:
        peer.backend("torch")
        exponent, significand = PYCHOP[name]
        chop = peer.Chop(exp_bits=exponent, sig_bits=significand)
        found["pychop"] = (lambda: chop(few), FEW)
    peer = optional("gfloat")
    if peer is not None and name in GFLOAT:
        info = getattr(import_module("gfloat.formats"), GFLOAT[name])
        small = few.numpy()
        found["gfloat"] = (lambda: peer.round_ndarray(info, small), FEW)
    return found


def throughput(given: Setting) -> None:
    print(
        f"\nRounding {given.count:,} float32, preallocated; {kernel().reason or 'kernel compiled'}"
    )
    x = torch.randn(given.count, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(x)
    for name in ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "t11"):
        found = contestants(name, x, out)
        best = in_turns(
            {one: step for one, (step, _) in found.items()}, given.rounds, given.threads
        )
        speed = {one: found[one][1] / taken / 1e9 for one, taken in best.items()}
        for one in found:
            share = speed[one] / speed["copy_"]
            target = {"fused": FUSED, "pure torch": PURE}.get(one)
            value = f"{speed[one]:.4f} G/s, {share:.4f} of copy_"
            line(
                f"{name} {one}",
                value,
                "" if target is None else f">= {target}",
                None if target is None else share >= target,
            )
    calls(given)
    mismatches()


def calls(given: Setting) -> None:
    """Print what one call costs beyond the rounding itself."""
    x = torch.randn(16)
    rounding = rounder("bf16")

    def many(step: Step) -> Step:
        return lambda: [step() for _ in range(2000)]

    steps = {"call": many(lambda: rounding(x)), "empty_like": many(lambda: torch.empty_like(x))}
    best = in_turns(steps, given.rounds, given.threads)
    microseconds = {name: taken / 2000 * 1e6 for name, taken in best.items()}
    line(
        "one call, 16 numbers",
        f"{microseconds['call']:.1f} us, empty_like {microseconds['empty_like']:.1f} us",
    )


def awkward(count: int) -> Tensor:
    """Return random bits, halfway points and neighbours, many sizes: 20 times `count` numbers."""
    draw = np.random.default_rng(0)
    bits = torch.from_numpy(draw.integers(-(2**31), 2**31, count)).to(torch.int32)
    ties = torch.cat([bits >> drop << drop | 1 << (drop - 1) for drop in (13, 16, 20, 21, 22)])
    near = torch.cat([bits, ties, ties + 1, ties - 1]).view(torch.float32)
    sizes = torch.exp2(torch.arange(4 * count).remainder(60) - 40.0)
    return torch.cat([near, torch.from_numpy(draw.normal(size=4 * count)).float() * sizes])


def mismatches() -> None:
    peer = optional("ml_dtypes")
    if peer is None:
        line("mismatches against ml_dtypes", "ml_dtypes is not installed")
        return
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    inputs = torch.cat(
        [awkward(125_000), every.view(torch.float16).float(), every.view(torch.bfloat16).float()]
    )
    for name, stored in {"fp16": "float16", **STORED}.items():
        x = inputs[inputs.isfinite()] if name.startswith(("fp6", "fp4")) else inputs
        dtype = np.float16 if stored == "float16" else getattr(peer, stored)
        with np.errstate(over="ignore", invalid="ignore"):
            theirs = torch.from_numpy(x.numpy().astype(dtype).astype(np.float32))
        wrong = [_differ(rounder(name)(x), theirs)]
        with without_kernel():
            wrong.append(_differ(rounder(name)(x), theirs))
        line(
            f"{name} mismatches, {len(x):,}",
            f"fused {wrong[0]}, pure torch {wrong[1]}",
            "0 (ml_dtypes)",
            wrong == [0, 0],
        )


def _differ(ours: Tensor, theirs: Tensor) -> int:
    same = (ours == theirs) & (ours.signbit() == theirs.signbit())
    return int((~(same | (ours.isnan() & theirs.isnan()))).sum())


SECTIONS: dict[str, Callable[[Setting], None]] = {
    "throughput": throughput,
    "emulation": lambda given: emulation(given, line, in_turns),
    "long": lambda given: long_emulation(given, line, in_turns),
    "agreement": lambda given: agreement(line),
    "predictor": lambda given: predictor(line),
    "figure": lambda given: figure(line, optional),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--section", choices=SECTIONS, action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000_000)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {given.threads} threads, load {os.getloadavg()[0]:.1f}")
    for name in given.section or SECTIONS:
        SECTIONS[name](Setting(given.rounds, given.threads, given.count))


if __name__ == "__main__":
    main()
