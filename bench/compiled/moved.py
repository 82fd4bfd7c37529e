"""Bytes that the kernels of a compiled training step move: `python bench/compiled/moved.py`.

For each variant, and for each token and layer: what kernels read and write that are no library's,
what products take, and the time of an H100 for both, beside that of its baseline. Weights are
float32, products bf16 (autocast), layers are compiled one by one as training does it. No kernel
takes less than two microseconds. Nothing is run: the compiler plans its kernels for tensors without
numbers. Where there is no GPU it is made to plan for an H100, which takes a build of PyTorch for
CUDA 13 and gcc.

    --variant NAME   this one; all that have a baseline if left out
    --width N        features of the models (default 1024)
    --layers N       layers of the models, whose mean is printed (default 8)
    --device NAME    cuda (default), or cpu: the kernels of a processor
    --kernels        print every kernel, with what it reads and writes
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import copy
import logging
import os
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("JAXTYPING_DISABLE", "1")

import torch
from torch import nn
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.scheduler import ExternKernelSchedulerNode, Scheduler
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.compiled.absent_gpu import pretend
from layerlab.model.build import build, compile_layers
from layerlab.variants.registry import variants

# Bytes and operations in bf16 that an H100 is taken to reach in a second, and the seconds that its
# shortest kernel takes of a queue.
MEMORY, PRODUCTS, SHORTEST = 2.6e12, 550e12, 2e-6
BATCH, CONTEXT = 16, 1024


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What one kernel of a graph moves, and how much a product computes."""

    library: bool
    bytes: float
    operations: float
    words: str

    @property
    def seconds(self) -> float:
        if not self.bytes:  # another name for what is there
            return 0.0
        moving = max(SHORTEST, self.bytes / MEMORY)
        if not self.library:
            return moving
        # Of other libraries' operations (attention) nothing is known, for any variant.
        return max(moving, self.operations / PRODUCTS) if self.operations else SHORTEST


class PlannedError(Exception):
    """The kernels are planned, and their code need not be written."""


class Planner:
    """A backend of torch.compile that notes kernels whenever a graph is called."""

    def __init__(self) -> None:
        self.called = list[Kernel]()

    def __call__(self, graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
        return compile_fx(graph, inputs, inner_compile=self.plan)

    def plan(self, graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
        found = list[Kernel]()

        def note(scheduler: Scheduler) -> None:
            found.extend(map(_kernel, scheduler.nodes))
            raise PlannedError

        write, Scheduler.codegen = Scheduler.codegen, note  # type: ignore[method-assign]
        try:
            compile_fx_inner(copy.deepcopy(graph), inputs, **options)
        except Exception as error:
            if PlannedError.__name__ not in repr(error):
                raise
        finally:
            Scheduler.codegen = write  # type: ignore[method-assign]

        def run(given: list[Any]) -> Any:
            self.called += found
            return graph(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _kernel(node: Any) -> Kernel:
    library = isinstance(node, ExternKernelSchedulerNode)
    moved = node.read_writes
    ends = (sorted({one.name for one in side}) for side in (moved.reads, moved.writes))
    return Kernel(
        library=library,
        bytes=node.get_read_write_buffers_sizes(),
        operations=(node.estimate_flops() or 0) if library else 0,
        words=" -> ".join(map(", ".join, ends)),
    )


def plan(name: str, width: int, layers: int, device: str) -> list[Kernel]:
    """Return the kernels of the layers of one training step."""
    torch._dynamo.reset()
    heads = max(1, width // 64)
    model = build(name, width=width, layers=layers, heads=heads, vocab=256, context=CONTEXT).train()
    planner = Planner()
    with FakeTensorMode(), config.patch(force_disable_caches=True, compile_threads=1):
        for module in model.modules():
            _place(module, device)
        compile_layers(model.model.layers, backend=planner)
        ids = torch.zeros(BATCH, CONTEXT, dtype=torch.long, device=device)
        with torch.autocast(device, torch.bfloat16):
            loss = model(input_ids=ids, use_cache=False).logits.float().square().mean()
        loss.backward()
    return planner.called


def _place(module: nn.Module, device: str) -> None:
    """Replace tensors by such as have a shape and a device only."""
    for key, weight in module._parameters.items():
        if weight is not None:
            empty = torch.empty(weight.shape, device=device)
            module._parameters[key] = nn.Parameter(empty, requires_grad=weight.requires_grad)
    for key, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[key] = torch.empty(buffer.shape, device=device, dtype=buffer.dtype)


def show(names: Iterable[str], width: int, layers: int, device: str, *, kernels: bool) -> None:
    print(
        " of a token and layer: bytes of kernels, operations of products, an H100's time for both"
    )
    times = dict[str, float]()
    for name in dict.fromkeys(one for each in names for one in (variants()[each].baseline, each)):
        found = plan(name, width, layers, device)
        if kernels:
            for one in found:
                print(f"   {one.bytes / (BATCH * CONTEXT):9.0f} bytes a token  {one.words}")
        count = BATCH * CONTEXT * layers
        own = sum(one.bytes for one in found if not one.library) / count
        products = sum(one.operations for one in found) / count
        times[name] = 1e9 * sum(one.seconds for one in found) / count
        over = times[name] / times[variants()[name].baseline] - 1
        number = sum(not one.library and one.bytes > 0 for one in found) / layers
        value = f"{own / 1e3:.0f} kB in {number:.0f} kernels, {products / 1e6:.1f} MFLOP"
        print(f"  {name:<28} {value:<40} {times[name]:.0f} ns {over:+.1%}", flush=True)


def main() -> None:
    others = [name for name, one in variants().items() if one.baseline != name]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variant", choices=others, action="append")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--kernels", action="store_true")
    given = parser.parse_args()
    if given.device == "cuda":
        pretend()
    torch.set_num_threads(1)
    # Of the code that is not written: caches that are off, and folders that are left.
    warnings.simplefilter("ignore")
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    print(f"torch {torch.__version__}, planned for {given.device}, width {given.width}")
    names = given.variant or others
    with tempfile.TemporaryDirectory() as left:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = left
        show(names, given.width, given.layers, given.device, kernels=given.kernels)


if __name__ == "__main__":
    main()
