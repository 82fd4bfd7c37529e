"""Sizes of work for a device: how much of it at once, and how seldom the host waits for it.

A processor has small caches, and the host reads from it for nothing. An accelerator wants large
operations, and each value that the host reads makes it wait until all before it is done.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

from layerlab.system.hardware import with_threads

G = TypeVar("G")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DeviceSchedule:
    """Sizes in which work is cut for a device.

    Attributes:
        tile_bytes: the largest tensor of attention weights that is kept.
        block_bytes: the largest that is computed at once, in float64.
        waiting_bytes: the most that layers hold which wait for those of other sequences; no more
            than a quarter of what is free.
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
# All heads of a layer at 4,096 tokens; 20 steps are enough for most heads, 60 are the most. Layers
# of 8 B that wait take 3 GB for a sequence of 2,048 tokens.
ACCELERATOR = DeviceSchedule(
    tile_bytes=4 * 2**30,
    block_bytes=2**29,
    waiting_bytes=12 * 2**30,
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


class HostThreads:
    """Threads of the host for what an accelerator would do one after another, and wait for.

    Each makes a decomposition, for example, several side by side. Beside a processor, whose threads
    share each work, there are none: what is begun is done at once.

    Source: Own.

    Attributes:
        most: how many there are.
        beside: how many may work while the accelerator is given other work, which takes one.
    """

    def __init__(self, device: torch.device) -> None:
        self.most = 0 if device_schedule(device) is PROCESSOR else torch.get_num_threads()
        # Apple's device has no float64, so its host is busy with that.
        self.beside = max(1, self.most - 1) if self.most and device.type != "mps" else 0
        self.begun: list[Future[Any]] = []
        self.threads = ThreadPoolExecutor(self.most) if self.most else None
        if self.threads is not None:
            ready = Barrier(self.most + 1)
            with with_threads(1):  # each keeps the number of threads that it begins with
                for _ in range(self.most):
                    self.threads.submit(_begin_thread, ready)
                ready.wait()

    @property
    def busy(self) -> int:
        """Return how many threads are at work."""
        self.begun = [one for one in self.begun if not one.done()]
        return len(self.begun)

    def begin(self, work: Callable[[G], T], given: G) -> Future[T]:
        """Begin a piece of work, once a thread is free."""
        if self.threads is None:
            done = Future[T]()
            done.set_result(work(given))
            return done
        if self.busy == self.most:
            wait(self.begun, return_when=FIRST_COMPLETED)
        begun = self.threads.submit(work, given)
        self.begun.append(begun)
        return begun

    def close(self) -> None:
        """End the threads once they have done their work."""
        if self.threads is not None:
            self.threads.shutdown()


def _begin_thread(ready: Barrier) -> None:
    torch.get_num_threads()
    ready.wait()


def map_host(work: Callable[[G], T], given: Iterable[G], device: torch.device) -> Iterator[T]:
    """Yield what the host makes of each of the given, in their order.

    For an accelerator its threads work side by side, while it prepares the next. No more are given
    out than there are threads.

    Source: Own.
    """
    begun: deque[Future[T]] = deque()
    with closing(HostThreads(device)) as threads:
        for one in given:
            begun.append(threads.begin(work, one))
            if len(begun) > threads.most:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
