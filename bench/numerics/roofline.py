"""Reckon what an inspection takes on a GPU that is not there: `python bench/numerics/roofline.py`.

The default measures read random Llamas of one and of two layers on the processor, cut into work as
for a GPU. Every operation is counted: its products, the bytes that it moves, and that it was
dispatched. With what a GPU can do that gives a time for the device and one for the host, which
overlap. What all layers take follows from the difference of the two models. What threads of the
host decompose is counted in seconds of one core here. Nothing of this was measured on a GPU.

    --shape NAME     1B or 8B, as in bench/gpu.py (default 1B)
    --rows R         sequences (default 2)
    --tokens T       of each (default 2048)
    --products F     TFLOP/s of float32 and float64 that are reached (default 45, an H100's 67)
    --half F         TFLOP/s of bf16 and float16 that are reached (default 550, of 989)
    --memory B       TB/s that are reached (default 2.6, of 3.35)
    --dispatch U     microseconds of the host for each operation (default 10)
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import layerlab
from bench.on_gpu.device import Bench
from bench.on_gpu.sections import EIGHT_B, ONE_B
from layerlab.measures.measure import Measure
from layerlab.observe.tracing import device_schedule
from layerlab.observe.tracing.device_schedule import ACCELERATOR
from layerlab.plugins import resolve
from tests.support.host_reads import InLine

SHAPES = {"1B": ONE_B, "8B": EIGHT_B}
HALF = (torch.bfloat16, torch.float16)


@dataclass
class Cost:
    """What one measure takes: products by kind of number, bytes, operations, seconds."""

    flops: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    operations: int = 0
    device: float = 0.0
    host: float = 0.0

    def extend(self, other: "Cost", times: int) -> "Cost":
        """Return this, and so many times what another takes beyond it."""
        names = self.flops.keys() | other.flops.keys()
        grown = {
            name: self.flops[name] + times * (other.flops[name] - self.flops[name])
            for name in names
        }
        values = {
            name: getattr(self, name) + times * (getattr(other, name) - getattr(self, name))
            for name in ("moved", "operations", "device", "host")
        }
        return Cost(flops=Counter(grown), **values)


class Counting(TorchDispatchMode):
    """Counts what every operation would take, for the measure that is being read."""

    def __init__(self, limits: argparse.Namespace) -> None:
        super().__init__()
        self.limits = limits
        self.costs: defaultdict[str, Cost] = defaultdict(Cost)
        self.reading = "forward and the rest"
        self.on_host = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.on_host:
            return result
        cost = self.costs[self.reading]
        cost.operations += 1
        if func.is_view:
            return result
        tensors = [one for one in tree_leaves((args, kwargs, result)) if torch.is_tensor(one)]
        kind = next((one.dtype for one in tensors if one.is_floating_point()), torch.float32)
        count = flop_registry.get(func._overloadpacket)
        flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
        moved = sum(map(_stored, tensors))
        cost.flops[str(kind).removeprefix("torch.")] += flops
        cost.moved += moved
        rate = self.limits.half if kind in HALF else self.limits.products
        cost.device += max(flops / (rate * 1e12), moved / (self.limits.memory * 1e12))
        return result

    @contextmanager
    def decomposing(self) -> Iterator[None]:
        """Count seconds in place of operations."""
        start, self.on_host = time.process_time(), True
        try:
            yield
        finally:
            self.on_host = False
            self.costs[self.reading].host += time.process_time() - start

    def watch(self, measure: Measure) -> Measure:
        def read(*given: Any) -> list[Any]:
            before, self.reading = self.reading, measure.name
            try:
                return list(measure.read(*given))
            finally:
                self.reading = before

        return replace(measure, read=read)


def _stored(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor has in memory; what is expanded lies there once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in sizes if stride)


def count(limits: argparse.Namespace, layers: int) -> dict[str, Cost]:
    """Read the default measures of a model, and return what each takes."""
    counting = Counting(limits)

    class TimedInLine(InLine):
        """Does at once what threads of the host would do, and counts its seconds."""

        def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
            with counting.decomposing():
                return super().submit(work, *given)

    bench = Bench(torch.device("cpu"), False, math.inf)
    model = bench.model({**SHAPES[limits.shape], "num_hidden_layers": layers})
    ids = bench.ids(limits.rows, limits.tokens)
    threads = {"ThreadPoolExecutor": TimedInLine, "Barrier": mock.MagicMock()}
    with (
        mock.patch.multiple(device_schedule, **threads),
        mock.patch.dict(device_schedule.SCHEDULES, {"cpu": ACCELERATOR}),
        counting,
    ):
        measures = list(map(counting.watch, resolve()))
        layerlab.inspect(model, input_ids=ids, measures=measures, progress=False)
    return counting.costs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="1B")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048)
    for name, value in (("products", 45), ("half", 550), ("memory", 2.6), ("dispatch", 10)):
        parser.add_argument(f"--{name}", type=float, default=value)
    limits = parser.parse_args()
    torch.set_num_threads(1)
    layers = SHAPES[limits.shape]["num_hidden_layers"]
    one, two = (count(limits, some) for some in (1, 2))
    costs = {name: one[name].extend(two[name], layers - 1) for name in two}
    print(f"{limits.shape}, {layers} layers, {limits.rows} x {limits.tokens} tokens")
    print(f"{'measure':22}{'device s':>10}{'dispatch s':>12}{'host s':>8}{'GB':>8}  TFLOP")
    for name, cost in sorted(costs.items(), key=lambda pair: -pair[1].device):
        flops = ", ".join(f"{kind} {some / 1e12:.1f}" for kind, some in cost.flops.items() if some)
        print(
            f"{name:22}{cost.device:10.2f}{cost.operations * limits.dispatch / 1e6:12.2f}"
            f"{cost.host:8.1f}{cost.moved / 1e9:8.0f}  {flops}"
        )
    device = sum(cost.device for cost in costs.values())
    dispatch = sum(cost.operations for cost in costs.values()) * limits.dispatch / 1e6
    host = sum(cost.host for cost in costs.values())
    print(f"{'all':22}{device:10.2f}{dispatch:12.2f}{host:8.1f}")


if __name__ == "__main__":
    main()
