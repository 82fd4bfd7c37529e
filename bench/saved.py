"""Bytes that a forward pass keeps for the backward pass, of every variant: `python bench/saved.py`.

Each beside its baseline, llama or gpt2: storages once, weights not. Layers are compiled one by one,
as training does it; which tensors they keep is decided before any code is written.

    --mode MODE      eager, eager-bf16, compiled or compiled-bf16; the last two if left out
    --variant NAME   this one; all of them if left out
    --width N        features of the models (default 256)
    --device NAME    cpu (default) or cuda
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAXTYPING_DISABLE", "1")

import torch

from layerlab.experiments.estimate.step_time import KeptBytes
from layerlab.model.build import build
from layerlab.variants.registry import variants

SIZES = {"layers": 6, "vocab": 8192, "context": 256}
BATCH = 8
MODES = ("eager", "eager-bf16", "compiled", "compiled-bf16")
# Of llama's bytes; what an equation needs beside them: tests/model/every_variant/.
WANTED = 1.2


@cache
def saved(name: str, mode: str, width: int, device: str) -> int:
    """Return bytes; the head and the loss, which all have in common, are left out."""
    model = build(name, **SIZES, width=width, heads=max(1, width // 64)).to(device).train()
    if mode.startswith("compiled"):
        torch._dynamo.reset()
        for layer in model.model.layers:
            layer.compile(dynamic=False, backend="aot_eager_decomp_partition")
    kept = KeptBytes(model)
    ids = torch.randint(0, SIZES["vocab"], (BATCH, SIZES["context"]), device=device)
    with torch.autocast(device, torch.bfloat16, enabled=mode.endswith("bf16")):
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
            model.model(ids, use_cache=False)
    return kept.bytes


def show(mode: str, names: Iterable[str], width: int, device: str) -> None:
    print(f" {mode}")
    for name in names:
        ours = saved(name, mode, width, device)
        base = saved(variants()[name].baseline, mode, width, device)
        beyond = "" if ours <= WANTED * base else f"above {WANTED} x"
        value = f"{ours / base:.2f} x ({ours / 1e6:.0f} MB over {base / 1e6:.0f} MB)"
        print(f"  {name:<34} {value:<36} {beyond}".rstrip(), flush=True)


def main() -> None:
    others = [name for name, one in variants().items() if one.baseline != name]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--variant", choices=others, action="append")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {given.device}, width {given.width}")
    for mode in given.mode or MODES[2:]:
        show(mode, given.variant or others, given.width, given.device)


if __name__ == "__main__":
    main()
