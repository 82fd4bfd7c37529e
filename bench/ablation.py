"""The loss without each head beside zeroing by hand: python bench/ablation.py [--whole-texts].

Model: the shape of GPT-2 small, random weights; four texts of 512 random tokens; two threads. The
peer is what a notebook does: a hook that zeroes one head before the output projection, a whole
forward for every head and text, the loss by transformers. It is timed on a few heads of one text
and extrapolated, because all cost the same. Times are wall seconds and processor seconds; of a
machine that others use at the same time, the processor seconds over two say what it takes alone.
"""

# ruff: noqa: E402

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

import layerlab

TEXTS, TOKENS, HEADS, THREADS = 4, 512, 144, 2
BY_HAND = ((0, 3), (6, 3), (11, 3))
TARGET = 240.0


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return wall seconds, processor seconds, and what the work gave."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - wall, time.process_time() - cpu, found


@torch.no_grad()
def by_hand(model: GPT2LMHeadModel, ids: torch.Tensor, layer: int, head: int) -> float:
    """Return the loss of one text without one head."""

    def zero(module: Any, args: Any) -> Any:
        joined = args[0].clone()
        joined[..., 64 * head : 64 * (head + 1)] = 0
        return (joined,)

    hook = model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(zero)
    try:
        return float(model(ids[None], labels=ids[None], use_cache=False).loss)
    finally:
        hook.remove()


def main(every: bool) -> None:
    logging.set_verbosity_error()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    ids = torch.randint(0, 50257, (TEXTS, TOKENS))
    print(f"load of the machine over a minute: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}")
    with torch.no_grad():
        _, _, own = timed(lambda: float(model(ids[:1], labels=ids[:1]).loss))
    wall, cpu, losses = timed(lambda: [by_hand(model, ids[0], *place) for place in BY_HAND])
    scale = HEADS * TEXTS / len(BY_HAND)
    theirs = cpu * scale / THREADS
    print(f"  by hand, extrapolated: {wall * scale:.0f} s wall, {theirs:.0f} s alone")
    for measure in ["ablation", *(["ablation(tokens=512, samples=511)"] if every else [])]:
        ours, ours_cpu, found = timed(
            lambda measure=measure: layerlab.inspect(model, input_ids=ids, measures=[measure])
        )
        print(
            f"  layerlab, {measure}, and {len(found.frames['ablation']) - HEADS} sublayers: "
            f"{ours:.0f} s wall, {ours_cpu / THREADS:.0f} s alone, "
            f"{cpu * scale / ours_cpu:.1f} x faster; target: at most {TARGET:.0f} s: "
            f"{'met' if ours_cpu / THREADS <= TARGET else 'missed'}"
        )
    rows = layerlab.inspect(
        model, input_ids=ids[:1], measures=["ablation(tokens=512, samples=511)"], progress=False
    ).frames["ablation"]
    heads = rows[rows.component == "head"].set_index(["layer", "head"]).change
    gap = max(abs(heads[place] - (loss - own)) for place, loss in zip(BY_HAND, losses, strict=True))
    print(f"  largest difference from zeroing by hand: {gap:.1e} nats")


if __name__ == "__main__":
    main("--whole-texts" in sys.argv[1:])
