"""How work is cut for a device: how much of it at once, and how seldom the host waits for it.

A processor has small caches, and the host reads from it for nothing. An accelerator wants large
operations, and each value that the host reads makes it wait until all before it is done.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

G = TypeVar("G")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DeviceSchedule:
    """Sizes in which work is cut for a device.

    Attributes:
        tile_bytes: the largest tensor of attention weights that is kept.
        block_bytes: the largest that is computed at once, in float64.
        waiting_bytes: the most that layers hold which wait for those of other sequences.
        sync_interval: steps of an iteration until the host first reads how far it is.
        sync_growth: the factor by which that grows with every reading.
    """

    tile_bytes: int
    block_bytes: int
    waiting_bytes: int
    sync_interval: int
    sync_growth: int


PROCESSOR = DeviceSchedule(
    tile_bytes=16 * 2**20,
    block_bytes=4 * 2**20,
    waiting_bytes=0,
    sync_interval=1,
    sync_growth=1,
)
# All heads of a layer at 4,096 tokens; 20 steps are enough for most heads, 60 are the most.
ACCELERATOR = DeviceSchedule(
    tile_bytes=4 * 2**30,
    block_bytes=2**29,
    waiting_bytes=4 * 2**30,
    sync_interval=20,
    sync_growth=3,
)


# Apple's accelerator has no memory of its own: what waits there is taken from the machine.
UNIFIED = replace(ACCELERATOR, tile_bytes=2**29, waiting_bytes=2**28)

SCHEDULES = {"cpu": PROCESSOR, "mps": UNIFIED}  # by kind of device; others are accelerators


def device_schedule(device: torch.device) -> DeviceSchedule:
    """Return how work is cut for a device.

    Source: Own.
    """
    return SCHEDULES.get(device.type, ACCELERATOR)


def widen(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, or in float32 where its device has no wider one."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def read_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the host, in float64; it waits once for all of one device."""
    if not tensors:
        return []
    # The parts of a model may lie on several devices.
    home = tensors[0].device
    flat = torch.cat([widen(tensor.to(home)).flatten() for tensor in tensors]).cpu().double()
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def read_lists(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return the numbers of each tensor; the host waits once for all of them."""
    read = read_host(list(tensors.values()))
    return {name: values.tolist() for name, values in zip(tensors, read, strict=True)}


def read_numbers(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the number in each tensor of one; the host waits once for all of them."""
    return dict(zip(tensors, map(float, read_host(list(tensors.values()))), strict=True))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one thread: blocks are small, and two threads were measured to be ten times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_host(work: Callable[[G], T], given: Iterable[G], device: torch.device) -> Iterator[T]:
    """Yield what the host makes of each of the given: its threads side by side for an accelerator.

    What an accelerator does one after another, and waits for, such as decompositions, the threads
    of its host do at once, each on one, while it prepares the next. No more are given out than
    there are threads. On a processor, whose threads share each work, one follows another.

    Source: Own.
    """
    if device_schedule(device) is PROCESSOR:
        yield from map(work, given)
        return
    most = torch.get_num_threads()
    begun: deque[Future[T]] = deque()
    with one_thread(), ThreadPoolExecutor(most) as threads:
        for one in given:
            if len(begun) == most:
                yield begun.popleft().result()
            begun.append(threads.submit(work, one))
        while begun:
            yield begun.popleft().result()
