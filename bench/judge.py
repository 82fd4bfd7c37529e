"""How long it takes to judge a thousand logs: type python bench/judge.py.

Prints seconds and the most memory for 1,000 logs of 10,000 readings each, as CSV and as JSONL; at
most 60 s on two cores is asked for.
"""

import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

# Beside this file lies an inspect.py, which the standard library would find.
del sys.path[0]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

import layerlab  # noqa: E402

RUNS, READINGS, ARMS, MOST = 1000, 10_000, 20, 60.0


def write(folder: Path, kind: str) -> None:
    """Write logs of twenty arms with fifty seeds each."""
    steps = np.arange(10, 10 * READINGS + 1, 10)
    for number in range(RUNS):
        arm, seed = f"arm-{number % ARMS}", number // ARMS
        draw = np.random.default_rng(seed)
        losses = 3 + 4 * np.exp(-steps / 2e4) + draw.normal(0, 0.02, READINGS) + 0.01 * seed
        rows = zip(steps.tolist(), losses.tolist(), strict=True)
        if kind == "csv":
            text = "step,loss\n" + "".join(f"{step},{loss:.6f}\n" for step, loss in rows)
        else:
            text = "".join(f'{{"step": {step}, "loss": {loss:.6f}}}\n' for step, loss in rows)
        (folder / f"{arm}-s{seed}.{kind}").write_text(text)


def main() -> None:
    """Judge both kinds and print what it took."""
    for kind in ("csv", "jsonl"):
        with TemporaryDirectory() as name:
            write(Path(name), kind)
            start = time.perf_counter()
            found = layerlab.judge(name, baseline="arm-0")
            seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{kind}: {len(found.content['runs'])} logs of {READINGS:,} readings in {seconds:.1f} s"
            f" ({seconds / MOST:.2f} of what is asked for), {peak:,.0f} MiB at most"
        )


if __name__ == "__main__":
    main()
