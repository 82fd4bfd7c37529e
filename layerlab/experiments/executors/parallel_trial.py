"""Chooses how many runs share a device: tries one, two, four, and keeps what is fastest in all.

Small models leave a GPU idle between their kernels, which another run can fill; large ones do not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from layerlab.console.progress import Progress
from layerlab.experiments.executors.local import POLL
from layerlab.experiments.executors.slots import RunSlot, slots
from layerlab.experiments.executors.worker_pool import WorkerPool, WorkerRun
from layerlab.recipes.training_sections import RunSection
from layerlab.records.events import FILE, read
from layerlab.records.heartbeat import last_update
from layerlab.system.signals import GracefulStop
from layerlab.system.write_errors import temporary_folder
from layerlab.training.flops import flops_per_token
from layerlab.training.run_spec import RunSpec, write_run

MOST = 8  # runs on one GPU
WORTH = 0.1  # of the speed that a run had before: what each further one has to bring
WINDOW = 5.0  # seconds over which updates are counted
WARM = 3  # updates that are not, and the fewest that are
# Of a trial: it does not end by itself, each update is told, and nothing is kept.
SETTINGS = {
    "train.max_steps": 10**9,
    "run.log_points": 10**9,
    "run.save_steps": 10**9,
    "run.save_model": False,
    "run.report_to": [],
}


@dataclass(frozen=True)
class ParallelChoice:
    """The number of runs that go on at once, and what was measured.

    Attributes:
        count: runs at once; as many as without a trial, where none could be measured.
        speeds: tokens per second of all runs together, by their number.
    """

    count: int
    speeds: Mapping[int, float]

    @property
    def text(self) -> str:
        """The choice in a sentence."""
        chosen = f"run.max_parallel: {self.count} at once"
        if not self.speeds:
            return f"{chosen}, as without a trial: none was possible"
        found = ", ".join(f"{speed:,.0f} with {count}" for count, speed in self.speeds.items())
        return f"{chosen}; tokens/s in all: {found}"


def choose_parallel(
    runs: Sequence[RunSpec], settings: RunSection, progress: Progress
) -> ParallelChoice:
    """Try how many runs at once are fastest, with copies of the one that computes the most.

    Each further number is tried only if every run that the last one added brought at least a tenth
    of what a run had before. Copies are real runs in a folder of their own, which goes when the
    trial ends.

    Unit: tokens per second.

    Args:
        runs: that are to be carried out; never more at once than these.

    Raises:
        UserError: there is no such device.
        Stopped: a signal asked to stop.
    """
    alone = len(_list_slots(settings, None, len(runs)))
    counts = list_candidates(settings.device, alone, len(runs))
    if len(counts) == 1:
        return ParallelChoice(alone, {})
    largest = max(runs, key=_count_flops)
    progress.note(f"run.max_parallel: trying up to {counts[-1]} copies of {largest.arm} at once")
    with temporary_folder() as folder:
        with closing(WorkerPool()) as pool, GracefulStop() as halt:
            with closing(_Copies(largest, settings, Path(folder), pool, halt)) as trial:
                speeds = trial.compare(counts)
    return ParallelChoice(pick(speeds, alone), speeds)


def list_candidates(device: str, alone: int, runs: int) -> list[int]:
    """Return the numbers of runs at once to try.

    On a CPU never more than there are cores for; on GPUs up to eight on each.

    Args:
        alone: runs that have cores or GPUs of their own.

    Example:
        >>> list_candidates("cuda", 1, 24), list_candidates("cuda", 2, 5)
        ([1, 2, 4, 8], [2, 4, 5])
        >>> list_candidates("cpu", 6, 24)
        [1, 2, 4, 6]
    """
    count, most = (1, alone) if device == "cpu" else (alone, min(runs, MOST * alone))
    found = []
    while count < most:
        found.append(count)
        count *= 2
    return [*found, most]


def is_worth(speeds: Mapping[int, float]) -> bool:
    """Return whether the last number of runs was enough faster than the one before.

    Example:
        >>> is_worth({1: 100.0}), is_worth({1: 100.0, 2: 150.0}), is_worth({1: 100.0, 2: 105.0})
        (True, True, False)
        >>> is_worth({16: 100.0, 17: 104.0})
        True
    """
    if len(speeds) < 2:
        return True
    (before, slower), (count, speed) = list(speeds.items())[-2:]
    return speed >= slower * (1 + WORTH * (count / before - 1))


def pick(speeds: Mapping[int, float], otherwise: int) -> int:
    """Return the number of runs to have at once: the last whose speed was worth it.

    Example:
        >>> pick({1: 100.0, 2: 150.0, 4: 155.0}, 1), pick({1: 100.0, 2: 90.0}, 1), pick({}, 1)
        (2, 1, 1)
    """
    counts = list(speeds)
    if not counts:
        return otherwise
    return counts[-1] if is_worth(speeds) else counts[-2]


def _list_slots(settings: RunSection, count: int | None, runs: int) -> list[tuple[RunSlot, ...]]:
    return slots(settings.model_copy(update={"max_parallel": count}), runs)


def _count_flops(run: RunSpec) -> int:
    """Return the FLOPs of an update."""
    recipe = run.recipe
    block = recipe.data.block_size or 1
    return flops_per_token(recipe).full * recipe.train.batch_size * block


@dataclass
class _Copies:
    """Copies of a run that go on side by side, more and more of them."""

    run: RunSpec
    settings: RunSection
    folder: Path
    pool: WorkerPool
    halt: GracefulStop
    copies: list[WorkerRun] = field(default_factory=list)
    remarks: frozenset[str] | None = None

    def compare(self, counts: Sequence[int]) -> dict[int, float]:
        """Return the speed by the number of copies, for as long as more are worth it."""
        found: dict[int, float] = {}
        for count in counts:
            if (speed := self._measure(count)) is None:
                break
            found[count] = speed
            if not is_worth(found):
                break
        return found

    def close(self) -> None:
        """End all copies."""
        for one in self.copies:
            one.kill()
            one.code()  # which takes leave of its worker

    def _measure(self, count: int) -> float | None:
        """Return tokens per second of so many copies; None where one ends, or is short of memory.

        A copy that remarks on what none did before has halved its batch: it does not fit.
        """
        self._start(count)
        if not self._wait(lambda: all(one["update"] >= WARM for one in self._read_updates())):
            return None
        begun, until = self._read_updates(), time.monotonic() + WINDOW
        if not self._wait(
            lambda: time.monotonic() > until and _have_moved(begun, self._read_updates())
        ):
            return None
        remarks = self._read_remarks()
        if self.remarks is None:
            self.remarks = remarks
        return _add_speeds(begun, self._read_updates()) if remarks <= self.remarks else None

    def _start(self, count: int) -> None:
        """Start copies until there are so many."""
        rows = _list_slots(self.settings, count, count)
        for number in range(len(self.copies), count):
            folder = self._folder(number)
            write_run(replace(self.run, recipe=self.run.recipe.change(SETTINGS)), folder)
            self.copies.append(self.pool.start(folder, *rows[number]))

    def _wait(self, done: Callable[[], bool]) -> bool:
        """Wait for a condition while all copies go on; return whether it came to hold."""
        until = time.monotonic() + 60 * self.settings.timeout_minutes
        while not done():
            if self.halt.wanted:
                self.halt.leave()
            if time.monotonic() > until or any(one.code() is not None for one in self.copies):
                return False
            time.sleep(POLL)
        return True

    def _read_updates(self) -> list[dict[str, float]]:
        """Return the last update of each copy, with tokens and seconds until then."""
        never = {"update": 0, "tokens": 0, "seconds": 0.0}
        numbers = range(len(self.copies))
        return [last_update(self._folder(number) / FILE) or never for number in numbers]

    def _read_remarks(self) -> frozenset[str]:
        folders = map(self._folder, range(len(self.copies)))
        return frozenset(
            event["text"] for folder in folders for event in read(folder) if event["kind"] == "note"
        )

    def _folder(self, number: int) -> Path:
        return self.folder / str(number)


def _have_moved(begun: Sequence[Mapping[str, float]], now: Sequence[Mapping[str, float]]) -> bool:
    pairs = zip(begun, now, strict=True)
    return all(after["update"] - before["update"] >= WARM for before, after in pairs)


def _add_speeds(begun: Sequence[Mapping[str, float]], now: Sequence[Mapping[str, float]]) -> float:
    """Return tokens per second of all copies.

    Example:
        >>> _add_speeds([{"tokens": 0, "seconds": 1.0}] * 2, [{"tokens": 600, "seconds": 3.0}] * 2)
        600.0
    """
    return sum(
        (after["tokens"] - before["tokens"]) / (after["seconds"] - before["seconds"])
        for before, after in zip(begun, now, strict=True)
    )
