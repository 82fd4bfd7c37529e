"""What watching costs: `python bench/monitor.py`.

One model twice, with and without a monitor, update by update in turns, in processor seconds on one
thread. Width 128, 6 layers, 4 heads, context 128, batch 16. All that a run does for its monitor
counts: hooks, readings, rules, news and the line in the journal. Readings are made more often than
in training, to have enough of them; their median is then shared among `every` updates. What a
reading adds is told from the other updates of the same model, because two equal models in one
process differ by more, by where their weights lie.

    --updates N  of each of the two (default 120)
    --read N     updates from one reading to the next, here (default 6)
    --every N    updates from one reading to the next, in training (default 50)
    --compile    compile the layers of both
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
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from layerlab import Monitor, build
from layerlab.records.events import EventLog

VOCAB, CONTEXT, BATCH, TARGET = 2048, 128, 16, 0.01


@dataclass
class Side:
    """A model that is trained, and the processor seconds of each of its updates.

    Attributes:
        own: of them, those that its monitor took after the backward pass.
    """

    read: int | None
    folder: Path
    compiled: bool
    seconds: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model: Any = build(
            "llama", width=128, layers=6, heads=4, vocab=VOCAB, context=CONTEXT
        ).train()
        if self.compiled:
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.journal = EventLog(self.folder, 0)
        self.monitor = Monitor(self.model, every=self.read, on_alarm=None) if self.read else None

    def advance(self, tokens: torch.Tensor) -> None:
        start = time.process_time()
        loss = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        self.optimizer.zero_grad()
        loss.backward()
        before = time.process_time()
        if self.monitor is not None:
            self._watch(self.monitor, loss)
        self.own.append(time.process_time() - before)
        self.optimizer.step()
        self.seconds.append(time.process_time() - start)

    def _watch(self, monitor: Monitor, loss: torch.Tensor) -> None:
        """Watch an update as the training loop does."""
        monitor.step(loss)
        rows, alarms = monitor.news()
        if rows:
            self.journal.write("monitor", monitor.updates, rows=rows)
        for alarm in alarms:
            self.journal.write("alarm", monitor.updates, **alarm)


def trained(given: argparse.Namespace, folder: Path) -> tuple[Side, Side]:
    """Train without a monitor, and with one."""
    plain = Side(None, folder / "plain", given.compile)
    watched = Side(given.read, folder / "watched", given.compile)
    generator = torch.Generator().manual_seed(0)
    for number in range(given.updates):
        tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT), generator=generator)
        for side in (plain, watched) if number % 2 else (watched, plain):
            side.advance(tokens)
    return plain, watched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--read", type=int, default=6)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        plain, watched = trained(given, Path(folder))
    read = [one for n, one in enumerate(watched.seconds) if n % given.read == 0]
    other = [one for n, one in enumerate(watched.seconds) if n % given.read]
    usual, reading = median(plain.seconds), median(read) - median(other)
    always = median([one for n, one in enumerate(watched.own) if n % given.read])
    overhead = (reading / given.every + always) / usual
    print(f"an update      {usual * 1e3:8.1f} ms, median of {given.updates}")
    print(f"a reading      {reading * 1e3:8.1f} ms more, median of {len(read)}")
    print(f"without one    {always * 1e3:8.3f} ms more")
    met = "met" if overhead <= TARGET else "MISSED"
    print(f"overhead       {overhead:8.2%} at every={given.every}, target {TARGET:.0%} {met}")


if __name__ == "__main__":
    main()
