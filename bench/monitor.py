"""What watching costs: `python bench/monitor.py`.

One model twice, with and without a monitor, update by update in turns, in processor seconds on one
thread. Width 128, 6 layers, 4 heads, context 128, batch 16, a reading every 100 updates. Of several
rounds of 100 updates the best of each side counts; the time of a reading alone is given beside it,
because the noise of a shared machine is larger than what is measured.

    --updates N  per round    --rounds N    --every N
"""

# ruff: noqa: E402
import sys

# Files beside this one share names with modules of the standard library.
del sys.path[0]

import argparse
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from layerlab import Monitor, build

VOCAB, CONTEXT, BATCH, TARGET = 2048, 128, 16, 0.02


@dataclass
class Side:
    """A model that is trained, and the processor seconds of each of its updates."""

    every: int | None
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model: Any = build(
            "llama", width=128, layers=6, heads=4, vocab=VOCAB, context=CONTEXT
        ).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.monitor = Monitor(self.model, every=self.every) if self.every else None

    def advance(self, tokens: torch.Tensor) -> None:
        start = time.process_time()
        loss = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        self.optimizer.zero_grad()
        loss.backward()
        if self.monitor is not None:
            self.monitor.step(loss)
        self.optimizer.step()
        self.seconds.append(time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    plain, watched = Side(None), Side(given.every)
    generator = torch.Generator().manual_seed(0)
    for number in range(given.updates * given.rounds):
        tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT), generator=generator)
        for side in (plain, watched) if number % 2 else (watched, plain):
            side.advance(tokens)
    rounds = [slice(n * given.updates, (n + 1) * given.updates) for n in range(given.rounds)]
    best = [min(sum(side.seconds[part]) for part in rounds) for side in (plain, watched)]
    usual = median(plain.seconds)
    read = [one for n, one in enumerate(watched.seconds) if n % given.every == 0]
    alone = (min(read) - usual) / (given.every * usual)
    overhead = best[1] / best[0] - 1
    print(f"an update            {usual * 1e3:8.1f} ms")
    print(f"a reading            {(min(read) - usual) * 1e3:8.1f} ms more, {len(read)} read")
    print(f"{given.updates} updates, plain   {best[0]:8.2f} s, best of {given.rounds} rounds")
    print(f"{given.updates} updates, watched {best[1]:8.2f} s")
    print(f"overhead             {overhead:+8.2%} of all updates")
    met = "met" if alone <= TARGET else "MISSED"
    print(f"overhead             {alone:+8.2%} by the reading alone, target {TARGET:.0%} {met}")


if __name__ == "__main__":
    main()
