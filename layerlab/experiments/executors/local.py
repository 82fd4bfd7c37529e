"""Executes the runs of a plan side by side on this machine, in processes of their own.

A crash of one never touches another; what is finished is skipped, what was cut off is resumed.
"""

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from layerlab.console.progress import NullProgress, Progress
from layerlab.errors import UserError
from layerlab.experiments.executors.process import WORKER, RunProcess, explain_silence
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.experiments.executors.slots import RunSlot, slots
from layerlab.experiments.executors.worker_pool import WorkerPool
from layerlab.recipes.training_sections import RunSection
from layerlab.records.checkpoint_names import CHECKPOINTS, remove_checkpoints
from layerlab.records.heartbeat import LOG, Heartbeat
from layerlab.records.result import read_result
from layerlab.system.locks import lock_folder
from layerlab.system.signals import GracefulStop
from layerlab.training.run_spec import RunSpec, write_run
from layerlab.training.worker import LOST, WRONG

Ending = Literal["finished", "skipped", "failed", "stopped"]
POLL = 0.1  # seconds between two looks at the processes
GRACE = 120.0  # seconds for the checkpoints of all runs, when they are asked to stop


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The outcome of a run.

    Attributes:
        folder: of the run.
        ending: `skipped` was finished already; `stopped` left a checkpoint and can go on.
        result: of a run that is finished.
        last_lines: the last lines of its log, where it failed.
        why: it failed, in a few words, where its log may not say it.
        attempts: that were made now.
    """

    run: RunSpec
    folder: Path
    ending: Ending
    result: dict[str, Any] | None = None
    last_lines: tuple[str, ...] = ()
    why: str = ""
    attempts: int = 0

    @property
    def text(self) -> str:
        """The outcome in words: finished, skipped, diverged, or why it failed."""
        if self.result is not None:
            well = "skipped" if self.ending == "skipped" else "finished"
            return "diverged" if self.result.get("diverged") else well
        if self.ending != "failed":
            return self.ending
        why = f" ({self.why})" if self.why else ""
        return f"failed{why}: {self.last_lines[-1]}"


def run_one(run: RunSpec, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Execute one run, in this process if that is enough, and return its result.

    A run that diverges has a result too, which says so.

    Raises:
        UserError: it fails, or another process is carrying it out.
        Stopped: a signal asked to stop; a checkpoint was left.
    """
    result, settings = _take_finished(run, folder), run.recipe.run
    if result is not None:
        return result
    if is_here(settings):
        return _here(run, folder, progress or NullProgress())
    (outcome,) = run_all([run], folder.parent, settings, progress)
    if outcome.result is None:
        raise UserError(f"{run.name} {outcome.text}; all that it said is in {folder / LOG}")
    return outcome.result


def is_here(settings: RunSection) -> bool:
    """Return whether a single run is carried out in the process that asks for it.

    Example:
        >>> is_here(RunSection()), is_here(RunSection(num_processes=2))
        (True, False)
    """
    return settings.num_processes == 1 and settings.executor == "local"


def _here(run: RunSpec, folder: Path, progress: Progress) -> dict[str, Any]:
    from layerlab.system.hardware import reset_peak_memory, with_threads
    from layerlab.system.rng import keep_random_state
    from layerlab.training import trainer
    from layerlab.training.step.nonfinite import Diverged

    try:
        with ExitStack() as stack:
            stack.enter_context(keep_random_state())
            stack.enter_context(lock_runs([folder]))
            stack.enter_context(lock_folder(folder))
            # Since it was asked for, another process may have finished it and gone.
            if (found := _take_finished(run, folder)) is not None:
                return found
            stack.enter_context(with_threads(run.recipe.run.threads))
            write_run(run, folder)
            reset_peak_memory()  # whatever this process has done before is no part of the run
            return trainer.train_run(run, folder, progress)
    except Diverged:
        if (lost := read_result(folder)) is None:
            raise
        return lost


def run_all(
    runs: Sequence[RunSpec],
    out: Path,
    settings: RunSection,
    progress: Progress | None = None,
    command: Sequence[str] | None = None,
    pool: WorkerPool | None = None,
) -> list[RunOutcome]:
    """Execute runs in order, as many at a time as there are slots.

    Args:
        out: in which each has a folder of its name.
        settings: of where and how; `run.executor` says by whom.
        progress: is told of every run's progress, and of its end.
        command: that carries out the run whose folder is its last argument, in a process of its
            own; None for layerlab's, which carry out one run after another.
        pool: of such workers, kept for further runs; one of its own if left out.

    Returns:
        What became of each run, in the order that they were given.

    Raises:
        UserError: there is no such device, a folder cannot be written, or another runner holds it.
        Stopped: a signal asked to stop; every run was given time for a checkpoint.
    """
    progress = progress or NullProgress()
    ended = {run.name: skipped for run in runs if (skipped := _skip(run, out))}
    for outcome in ended.values():
        progress.end(outcome.run.name, outcome.text)
    left = [run for run in runs if run.name not in ended]
    with lock_runs(out / run.name for run in left):
        for run in left:
            write_run(run, out / run.name)
        if left:
            with ExitStack() as stack:
                pool = pool or stack.enter_context(closing(WorkerPool()))
                crew = _crew(settings, out, left, command, pool)
                ended |= _Pool(out, settings, progress, crew).carry_out(left)
    return [ended[run.name] for run in runs]


def shares_processes(settings: RunSection) -> bool:
    """Return whether a process carries out one run after another."""
    return settings.executor == "local" and settings.num_processes == 1


def _crew(
    settings: RunSection,
    out: Path,
    runs: Sequence[RunSpec],
    command: Sequence[str] | None,
    pool: WorkerPool,
) -> "_Executor":
    if settings.executor != "local":
        # Late: it needs an extra.
        from layerlab.experiments.executors.slurm import Cluster

        cluster = Cluster(out.parent / "jobs", settings, command or WORKER)
        rows = cluster.rows([out / run.name for run in runs])
        return _Executor(rows, cluster.start)
    rows = slots(settings, len(runs))
    if command is None and shares_processes(settings):
        return _Executor(rows, lambda folder, row: pool.start(folder, *row))
    return _Executor(rows, partial(RunProcess, command=command or WORKER))


def _skip(run: RunSpec, out: Path) -> RunOutcome | None:
    folder = out / run.name
    result = _take_finished(run, folder)
    if result is None:
        return None
    return RunOutcome(run=run, folder=folder, ending="skipped", result=result)


def _take_finished(run: RunSpec, folder: Path) -> dict[str, Any] | None:
    """Return the result of a finished run, and remove what a kill in its last moment has left."""
    result = read_finished_result(run, folder)
    if result is not None:
        remove_checkpoints(folder / CHECKPOINTS)
    return result


def read_finished_result(run: RunSpec, folder: Path) -> dict[str, Any] | None:
    """Return the result of a run, where its folder holds it whole."""
    result = read_result(folder)
    return result if result and result.get("run") == run.name else None


@runtime_checkable
class SubmittedRun(Protocol):
    """A run that was handed out, to processes here or to a cluster."""

    def code(self) -> int | None:
        """Return its exit code; None while it waits or goes on."""

    def find_delay(self) -> str | None:
        """Return why the run has not begun; None of one in progress, which shows signs of life."""

    def stop(self) -> None:
        """Ask for a checkpoint and an end."""

    def kill(self) -> None:
        """End it at once."""

    def words(self, most: int = 20) -> list[str]:
        """Return the last lines of its output."""


class _Executor(NamedTuple):
    """An executor: the slots there are, and how a run is started in one."""

    places: list[tuple[RunSlot, ...]]
    start: Callable[[Path, tuple[RunSlot, ...]], SubmittedRun]


@dataclass
class _Active:
    """A run on its way."""

    run: RunSpec
    folder: Path
    attempt: int
    run_slots: tuple[RunSlot, ...]
    work: SubmittedRun
    sign: Heartbeat
    hung: bool = False


@dataclass
class _Pool:
    """Hands out runs until each has its outcome."""

    out: Path
    settings: RunSection
    progress: Progress
    crew: _Executor
    ended: dict[str, RunOutcome] = field(default_factory=dict)
    active: list[_Active] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)  # of what runs wait for

    def carry_out(self, runs: Sequence[RunSpec]) -> dict[str, RunOutcome]:
        queue = deque((run, 1) for run in runs)
        free = deque(self.crew.places)
        with GracefulStop() as halt:
            try:
                while queue or self.active:
                    while queue and free:
                        self._start(*queue.popleft(), free)
                    for one in list(self.active):
                        if self._over(one):
                            free.append(one.run_slots)
                            # At the front again: what comes first in the plan is finished first.
                            queue.extendleft(self._again(one))
                    if halt.wanted:
                        self._stop()
                        halt.leave()
                    time.sleep(POLL)
            finally:
                # However this ends, nothing that it has started is left behind.
                self._stop()
        return self.ended

    def _start(self, run: RunSpec, attempt: int, free: deque[tuple[RunSlot, ...]]) -> None:
        """Start a run in the first slot that is free; one that cannot begin again has failed."""
        folder = self.out / run.name
        sign = Heartbeat(folder)  # before: what the run notes from now on is news
        try:
            work = self.crew.start(folder, free[0])
        except UserError as error:
            if attempt == 1:
                raise
            self._record(
                RunOutcome(
                    run=run,
                    folder=folder,
                    ending="failed",
                    last_lines=(str(error),),
                    attempts=attempt - 1,
                )
            )
            return
        self.active.append(_Active(run, folder, attempt, free.popleft(), work, sign))

    def _over(self, one: _Active) -> bool:
        """Return whether a run has ended; report its news, and kill it if it hangs."""
        over = one.work.code() is not None
        for event in one.sign.news():
            if event["kind"] == "train":
                self.progress.update(one.run.name, event)
            elif self.settings.num_processes > 1:  # of small runs the result tells them
                self.progress.note(f"{one.run.name}: {event.get('text')}")
        if (why := one.work.find_delay()) is not None:
            one.sign.renew()
            if why not in self.reasons:
                self.reasons.add(why)
                self.progress.note(f"{one.run.name} waits in the queue: {why}")
        elif not over and one.sign.silent() > 60 * self.settings.timeout_minutes:
            one.hung = True
            one.work.kill()
        return over

    def _again(self, one: _Active) -> list[tuple[RunSpec, int]]:
        """Put a run that ended too soon back into the queue; record the outcome of any other."""
        self.active.remove(one)
        one.work.kill()  # a job that Slurm no longer shows may still go on
        code, result = one.work.code(), read_finished_result(one.run, one.folder)
        if result is None and code != WRONG and one.attempt < self.settings.max_attempts:
            self.progress.note(f"{one.run.name}: {_why(one)}; it goes on from its last checkpoint")
            return [(one.run, one.attempt + 1)]
        self._end(one, "failed" if result is None else "finished", result)
        return []

    def _end(self, one: _Active, ending: Ending, result: dict[str, Any] | None) -> None:
        failed = ending == "failed"
        self._record(
            RunOutcome(
                run=one.run,
                folder=one.folder,
                ending=ending,
                result=result,
                last_lines=tuple(one.work.words() or [explain_silence(one.folder)])
                if failed
                else (),
                why=_why(one) if failed and one.work.code() != WRONG else "",
                attempts=one.attempt,
            )
        )

    def _record(self, outcome: RunOutcome) -> None:
        self.ended[outcome.run.name] = outcome
        self.progress.end(outcome.run.name, outcome.text)

    def _stop(self) -> None:
        """Ask all runs for a checkpoint, wait for it a while, and end them."""
        if not self.active:
            return
        for one in self.active:
            one.work.stop()
        wait_for(lambda: all(one.work.code() is not None for one in self.active), GRACE)
        for one in self.active:
            one.work.kill()
            result = read_finished_result(one.run, one.folder)
            self._end(one, "stopped" if result is None else "finished", result)
        self.active.clear()


def wait_for(done: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, at most so many seconds; return whether it holds."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(POLL)
    return True


def _why(one: _Active) -> str:
    """Return why a run ended that has no result."""
    code = one.work.code() or 0
    if one.hung:
        return "it said nothing for longer than run.timeout_minutes"
    names = {known.value: known.name for known in signal.Signals}  # those of real time have none
    if code < 0:
        return f"killed by {names.get(-code, f'signal {-code}')}"
    if code - 128 in names:
        return f"stopped by {names[code - 128]}"
    if any(line.startswith(LOST) for line in one.work.words()[-1:]):  # and none has ended by itself
        return "one of its processes said nothing for longer than run.timeout_minutes"
    return f"exit code {code}" if code else "it ended without a result"
