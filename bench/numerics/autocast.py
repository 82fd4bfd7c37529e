"""Emulated autocast beside torch's own: `python bench/numerics/autocast.py`.

For each model and format one line: the error of the logits under torch.autocast, against float64,
and what part of it an emulated run makes, the median token of each. On a machine with CUDA the real
run is there, and two are emulated: on the GPU, and on the CPU by CUDA's rules.

    --rows N      sequences of 128 tokens (default 16)
    --threads N   threads of torch (default 1)
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn

from bench.numerics.emulation import FAR, NEAR, subjects
from layerlab.numerics.emulation.emulate import emulate, reference

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {place}; asked of every ratio: {NEAR} to {FAR}")
    for name, model, ids in subjects(given.rows):
        with reference(model):
            true = model(ids).logits
        for format in DTYPES:
            print(
                f"  {name + ', ' + format:<28}", told(model, ids, true, format, device), flush=True
            )


def told(model: nn.Module, ids: Tensor, true: Tensor, format: str, device: str) -> str:
    """Return the real error, and the ratio of each emulated one to it, in a line."""
    with torch.no_grad(), torch.autocast(device, dtype=DTYPES[format]):
        real = error(model.to(device)(ids.to(device)).logits, true)
    found = {}
    if device == "cuda":
        with emulate(model, format, "autocast"):
            found["autocast on the GPU"] = error(model(ids.to(device)).logits, true)
    model.cpu()
    with emulate(model, format, "autocast", device=device):
        found["autocast"] = error(model(ids).logits, true)
    with emulate(model, format):
        found["as-run"] = error(model(ids).logits, true)
    ratios = {name: value / real for name, value in found.items()}
    missed = any(not NEAR <= one <= FAR for name, one in ratios.items() if name != "as-run")
    parts = (f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    return f"torch {real:.2e}; {', '.join(parts)}  {'MISSED' if missed else 'met'}"


def error(seen: Tensor, true: Tensor) -> float:
    """Return ||seen - true|| / ||true|| of the median token."""
    apart = (seen.double().cpu() - true).norm(dim=-1) / true.norm(dim=-1)
    return float(apart.median())


if __name__ == "__main__":
    main()
