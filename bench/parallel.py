"""How many runs one device carries at once before they only share it: `python bench/parallel.py`.

Two shapes are tried as `run.max_parallel = "auto"` tries them: copies of one run, twice as many
each time, for as long as all together are a tenth faster. On a GPU 10 M and 50 M parameters, eager
and compiled; on a CPU two small ones, of which each core takes one. Printed are tokens a second of
all copies, their ratio to the fewest, and the number that would be chosen. There is no target;
stacking runs along a batch axis would have to make 16 runs of 10 M four times as fast as one.
"""

# ruff: noqa: E402
import argparse
import sys
import tempfile
from pathlib import Path

# This folder has modules called as others' are.
del sys.path[0]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from layerlab.builtin import SAMPLE
from layerlab.console.progress import NullProgress
from layerlab.experiments.executors.parallel_trial import choose_parallel
from layerlab.experiments.session import prepare

WIDTHS = {"cuda": (320, 640), "cpu": (64, 256)}  # 10 M and 50 M parameters on a GPU
LAYERS = {"cuda": 8, "cpu": 4}


def recipe(width: int, device: str, compiled: bool, runs: int) -> dict[str, object]:
    """A comparison of two arms, of which the trial copies one run."""
    gpu = device == "cuda"
    return {
        "name": f"width-{width}",
        "model": {"width": width, "layers": LAYERS[device], "heads": width // 32, "context": 256},
        "data": {"sources": [{"text": str(SAMPLE)}], "vocab_size": 512},
        "train": {
            "max_steps": 1000,
            "batch_size": 16,
            "mixed_precision": "bf16" if gpu else "fp32",
            "torch_compile": compiled,
        },
        "evaluate": {"max_eval_blocks": 4},
        "compare": {"arms": ["llama", "pangu-pi"], "seeds": list(range(1, runs // 2 + 1))},
        "run": {"device": device, "max_parallel": "auto", "save_model": False},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=16, help="of the comparison, at most so many")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{'width':>6} {'compiled':>8}  tokens/s of all copies, by their number  chosen")
    for width in WIDTHS[device]:
        for compiled in (False, True) if device == "cuda" else (False,):
            with tempfile.TemporaryDirectory() as folder:
                task = prepare(
                    recipe(width, device, compiled, given.runs), Path(folder), progress=False
                )
                found = choose_parallel(task.runs, task.recipe.run, NullProgress())
            told = "  ".join(
                f"{count}: {speed:,.0f} ({speed / found.speeds[min(found.speeds)]:.2f} x)"
                for count, speed in found.speeds.items()
            )
            print(f"{width:6} {str(compiled).lower():>8}  {told}  {found.count}")


if __name__ == "__main__":
    main()
