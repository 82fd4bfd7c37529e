"""Weights alone, beside WeightWatcher and the package powerlaw: `python bench/weights.py`.

Model: the shape of GPT-2 small, random weights, saved as a folder. Ours is layerlab.inspect of the
folder with weights=True, read from the disk. The peers read the same model in memory:
WeightWatcher's `analyze` of all layers, and `powerlaw.Fit` on the eigenvalues of one matrix, timed
on a few and extrapolated. Two threads; processor seconds over two say what an idle machine takes.
"""

# ruff: noqa: E402
import contextlib
import io
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

import layerlab

THREADS, TARGET, FEW = 2, 60.0, 2
PLACES = ("attn.c_attn", "mlp.c_proj")


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return wall seconds, processor seconds, and what the work gave; what it prints is dropped."""
    wall, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = work()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def main() -> None:
    logging.set_verbosity_error()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    print(f"load of the machine over a minute: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours, ours_cpu, found = timed(
            lambda: layerlab.inspect(folder, weights=True, progress=False)
        )
    rows = found.frames["matrices"]
    print(
        f"  layerlab, {len(rows)} matrices and querykey: {ours:.1f} s wall, "
        f"{ours_cpu / THREADS:.1f} s alone; target: at most {TARGET:.0f} s: "
        f"{'met' if ours_cpu / THREADS <= TARGET else 'missed'}"
    )
    powerlaws(model, rows, ours_cpu)
    watched(model, ours_cpu)


def powerlaws(model: GPT2LMHeadModel, rows: Any, ours: float) -> None:
    """Time `powerlaw.Fit` on the singular values by NumPy, and compare its exponents with ours."""
    import numpy as np
    import powerlaw

    spent, gap = 0.0, 0.0
    for layer in range(FEW):
        for name in PLACES:
            weight = model.transformer.h[layer].get_submodule(name).weight.detach().double()
            _, cpu, fit = timed(
                lambda weight=weight: powerlaw.Fit(
                    np.linalg.svd(weight.numpy(), compute_uv=False) ** 2,
                    verbose=False,
                    parameter_ranges={"alpha": [1, 100]},
                )
            )
            spent += cpu
            own = rows[(rows.layer == layer) & (rows.matrix == name)].alpha.iloc[0]
            gap = max(gap, abs(fit.alpha - own) / own)
    theirs = spent * len(rows) / (FEW * len(PLACES))
    print(
        f"  NumPy and powerlaw, extrapolated: {theirs / THREADS:.1f} s alone, "
        f"{theirs / ours:.1f} x of ours; largest relative difference of an exponent: {gap:.1e}"
    )


def watched(model: GPT2LMHeadModel, ours: float) -> None:
    """Time WeightWatcher's analysis of all layers."""
    import weightwatcher

    wall, cpu, table = timed(lambda: weightwatcher.WeightWatcher(model=model).analyze(plot=False))
    print(
        f"  WeightWatcher, {len(table)} matrices: {wall:.1f} s wall, {cpu / THREADS:.1f} s alone, "
        f"{cpu / ours:.1f} x of ours"
    )


if __name__ == "__main__":
    main()
