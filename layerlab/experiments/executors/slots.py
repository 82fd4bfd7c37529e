"""Slots for runs on this machine: a core or a GPU of its own for each."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from layerlab.errors import UserError
from layerlab.recipes.training_sections import RunSection
from layerlab.system.hardware import SHARED_DEVICE

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_QUOTA = "/sys/fs/cgroup/cpu.max"


@dataclass(frozen=True, kw_only=True)
class RunSlot:
    """The core or GPU that one process of a run uses.

    Attributes:
        threads: that it computes with.
        cores: to which it is pinned, as the system numbers them; wherever it likes where empty.
        gpus: that it sees, as CUDA_VISIBLE_DEVICES has them: those of all processes of its run,
            of which it takes the one with its own number; whatever is there where it is left out.
        shared: whether other runs compute on the same device, so that its speed is nobody's.
    """

    threads: int
    cores: tuple[int, ...] = ()
    gpus: str | None = None
    shared: bool = False

    def environment(self) -> dict[str, str]:
        """Return what has to be set before the process imports torch."""
        threads = str(self.threads)
        found = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        found |= {SHARED_DEVICE: "1"} if self.shared else {}
        return found if self.gpus is None else found | {"CUDA_VISIBLE_DEVICES": self.gpus}

    def pin(self, process: int) -> None:
        """Keep a process that has just begun, and all that it will start, on these cores."""
        if self.cores and hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(process, self.cores)
            except ProcessLookupError:  # it has ended already, and will be heard of
                pass


def slots(settings: RunSection, runs: int) -> list[tuple[RunSlot, ...]]:
    """Return for each of so many runs that go on at once one slot per process.

    As many as there are physical cores for all their threads, or GPUs, unless `run.max_parallel`
    says otherwise. Two threads on one core would slow each other down, and threads that wander cost
    their caches: each has its own core. Where more are asked for than there are, nobody is pinned.

    Args:
        runs: that there are; more slots than that would make room for nobody.

    Raises:
        UserError: the device is cuda, and there is none.
    """
    if settings.device == "cuda":
        return _gpus(settings, runs)
    if settings.device != "cpu":  # one device by its number, or of which there is one
        count = min(runs, settings.at_once or 1)
        free = RunSlot(threads=settings.threads, shared=count > 1)
        return [(free,) * settings.num_processes] * count
    return _cores(settings, runs, cores())


def share_devices(settings: RunSection, runs: int) -> list[Mapping[str, Fraction]]:
    """Return for each run that goes on at once the share of each device that it asks for.

    Where all together ask for more than a whole device, they share it. Jobs of a cluster share
    none. A GPU that is not here is counted as one, so that what is for another machine can be
    planned.

    Example:
        >>> share_devices(RunSection(device="cuda:0", max_parallel=2), 24)
        [{'cuda:0': Fraction(1, 1)}, {'cuda:0': Fraction(1, 1)}]
    """
    if settings.executor == "slurm":
        return [{}] * min(runs, settings.slurm.parallel)
    if settings.device == "cuda" and not gpus():
        return [{"cuda": Fraction(1)}] * min(runs, settings.at_once or 1)
    rows = slots(settings, runs)
    if settings.device == "cpu":
        count = len(cores())
        # A run is measured with all its threads, and has shared cores among them already.
        share = Fraction(settings.num_processes * min(settings.threads, count), count)
        return [{"cpu": share}] * len(rows)
    whole = Fraction(1)
    return [dict.fromkeys((slot.gpus or settings.device).split(","), whole) for slot, *_ in rows]


def _cores(
    settings: RunSection, runs: int, found: Sequence[tuple[int, ...]]
) -> list[tuple[RunSlot, ...]]:
    each = settings.threads
    room = max(1, len(found) // (each * settings.num_processes))
    count = min(runs, settings.at_once or room)
    if count * settings.num_processes * each > len(found):
        slot = RunSlot(threads=each, shared=count > 1)
        return [(slot,) * settings.num_processes] * count
    places = [
        RunSlot(
            threads=each, cores=tuple(one for core in found[start : start + each] for one in core)
        )
        for start in range(0, count * settings.num_processes * each, each)
    ]
    width = settings.num_processes
    return [tuple(places[start : start + width]) for start in range(0, len(places), width)]


def _gpus(settings: RunSection, runs: int) -> list[tuple[RunSlot, ...]]:
    found = gpus()
    if not found:
        raise UserError(
            'run.device is "cuda", and there is no GPU here that PyTorch can use; '
            'write device = "cpu"'
        )
    if settings.num_processes > len(found):
        raise UserError(
            f"run.num_processes is {settings.num_processes}, one GPU each, and there are "
            f"{len(found)} here; write num_processes = {len(found)}"
        )
    count = min(runs, settings.at_once or len(found) // settings.num_processes)
    # Where more runs are asked for than there are GPUs, they share them in turn.
    given = [found[index % len(found)] for index in range(count * settings.num_processes)]
    rows = []
    for start in range(0, len(given), settings.num_processes):
        own = given[start : start + settings.num_processes]
        shared = any(given.count(one) > 1 for one in own)
        slot = RunSlot(threads=settings.threads, gpus=",".join(own), shared=shared)
        rows.append((slot,) * settings.num_processes)
    return rows


def cores() -> list[tuple[int, ...]]:
    """Return the physical cores that this process may use, each as the numbers of its threads."""
    if not hasattr(os, "sched_getaffinity"):
        import psutil

        count = psutil.cpu_count(logical=False) or os.cpu_count() or 1
        return [(number,) for number in range(count)]
    usable = os.sched_getaffinity(0)
    found = sorted({tuple(sorted(_siblings(number) & usable)) for number in usable})
    return found[: _allow(len(found))]


def _siblings(number: int) -> set[int]:
    """Return the hardware threads of the core that one of them belongs to."""
    try:
        text = Path(_SIBLINGS.format(number)).read_text(encoding="ascii").strip()
        spans = [span.partition("-") for span in text.split(",")]
        numbers = {one for low, _, high in spans for one in range(int(low), int(high or low) + 1)}
    except (OSError, ValueError):
        numbers = set()
    return numbers | {number}


def _allow(count: int) -> int:
    """Return at most as many cores as the container is given time for."""
    try:
        quota, period = Path(_QUOTA).read_text(encoding="ascii").split()
        return max(1, min(count, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count


def gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if named is not None:
        return [one.strip() for one in named.split(",") if one.strip()][:count]
    return [str(number) for number in range(count)]
