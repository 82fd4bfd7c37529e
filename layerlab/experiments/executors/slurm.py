"""Executes runs as Slurm jobs through submitit, or by its local executor without a cluster.

All runs go into the queue as one array. A job that is preempted, or whose time is over, leaves a
checkpoint and goes back into the queue. What came out is read from the folders of the runs alone,
which the cluster's machines must share with this one.
"""

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from layerlab.errors import UserError, describe_install
from layerlab.experiments.executors.process import WORKER, RunProcess, open_log, tail
from layerlab.experiments.executors.slots import RunSlot, slots
from layerlab.recipes.training_sections import RunSection
from layerlab.records.heartbeat import LOG
from layerlab.records.run_files import read_table
from layerlab.system.files import write_file
from layerlab.system.signals import GracefulStop
from layerlab.system.untrusted.trust import list_grants

ARRAY = 500  # jobs of one array; clusters allow 1,000 unless they are told otherwise
DELAY = 120  # seconds that a job has for its checkpoint before its time is over
TIMEOUTS = 10_000  # times that a job goes back into the queue: until the run is finished
LOOK = 10.0  # seconds between two questions to Slurm
_POLL = 0.2
_HANDED = "runs.json"  # which run each job of a command carries out
SAFE = "PYTHONSAFEPATH"
# What sbatch says where no cluster has answered it.
_UNREACHED = (
    "configuration source",
    "contact slurm controller",
    "Connection refused",
    "timed out",
    "'sbatch'",  # which is not installed, as Python says it
)


class SlurmTask:
    """The job: it starts the worker of a run, and forwards the signal to stop.

    Args:
        folder: of the run.
        run_slots: of each of its processes.
        command: of the worker, but for the folder.
        grants: what the run may do; what the process that submits it may, if left out.
    """

    def __init__(
        self,
        folder: Path,
        run_slots: tuple[RunSlot, ...],
        command: Sequence[str] = WORKER,
        grants: str | None = None,
    ) -> None:
        self.folder, self.run_slots, self.command = folder, run_slots, tuple(command)
        self.grants = grants or list_grants()
        self._started: RunProcess | None = None
        self._is_stopping = False

    def __call__(self) -> int:
        """Execute the run, and return its exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        with _deaf():
            self._started = RunProcess(self.folder, self.run_slots, self.command, self.grants)
        while (code := self._started.code()) is None:
            time.sleep(_POLL)
        if code == 128 + signal.SIGUSR1 and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
            # Slurm is about to end the job and to put it back into its queue; a job that came to
            # its own end before that would not be.
            time.sleep(DELAY)
        return code

    def checkpoint(self) -> Any:
        """Let a preempted or timed-out run write a checkpoint, and submit it again."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        until = time.monotonic() + DELAY - 10
        while self._started and self._started.code() is None and time.monotonic() < until:
            time.sleep(_POLL)
        return DelayedSubmission(SlurmTask(self.folder, self.run_slots, self.command, self.grants))

    def _stop(self) -> None:
        if self._started is not None and not self._is_stopping:
            self._started.stop(signal.SIGUSR1)
        self._is_stopping = True


@contextmanager
def _deaf() -> Iterator[None]:
    """Block SIGTERM and SIGUSR2 for processes started now.

    Slurm sends its signals to every process of a job; a worker that hears two of them, one of Slurm
    and one of the task, would take them for impatience and end without a checkpoint.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Cluster:
    """Submits runs.

    Args:
        folder: for what submitit writes; the cluster's machines must see it.

    Raises:
        UserError: submitit is not installed, or there is no Slurm here.
    """

    def __init__(self, folder: Path, settings: RunSection, command: Sequence[str] = WORKER) -> None:
        self.settings, self.command = settings, command
        self.queue = Queue() if settings.executor == "slurm" else None
        # Its own each time: what an earlier one left there is not taken for an answer.
        self._own = folder.resolve() / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self._executor = _executor(self._own, settings)
        self._ahead: dict[Path, Job] = {}
        self._handed: dict[str, str] = {}

    def rows(self, folders: Sequence[Path]) -> list[tuple[RunSlot, ...]]:
        """Return the slots for runs.

        Slurm, which has a queue of its own, is handed all of them at once.

        Raises:
            UserError: Slurm takes none, or still has jobs of an earlier command for some of them.
            Stopped: a signal asked to stop meanwhile; what was handed over is taken back.
        """
        if self.queue is None:
            return slots(self.settings, len(folders))
        self._refuse_queued(self.queue, {folder.name for folder in folders})
        run_slots = (RunSlot(threads=self.settings.threads),) * self.settings.num_processes
        starts = range(0, len(folders), ARRAY)
        # Each array knows of its own jobs alone; together they are no more than was asked for.
        at_once = max(1, self.settings.slurm.parallel // len(starts))
        self._executor.update_parameters(slurm_array_parallelism=at_once)
        with self._take_back_on_failure(), GracefulStop() as halt:
            for start in starts:
                self._submit(folders[start : start + ARRAY], run_slots)
                if halt.wanted:
                    halt.leave()
        return [run_slots] * len(folders)

    def _refuse_queued(self, queue: "Queue", names: Collection[str]) -> None:
        """Refuse runs that are still in the queue: a job that waits locks no folder."""
        for file in sorted(self._own.parent.glob(f"*/{_HANDED}")):
            for job, name in read_table(file).items():
                if name in names and queue.state(job) is not None:
                    raise UserError(
                        f"job {job} of an earlier command is to carry out {name} and still in the "
                        "queue of Slurm; wait until it has ended, or type: scancel "
                        f"{job.partition('_')[0]}"
                    )

    def start(self, folder: Path, run_slots: tuple[RunSlot, ...]) -> "Job":
        """Return the job of a run: the one of the array, or a new one."""
        if folder not in self._ahead:
            with self._take_back_on_failure():
                self._submit([folder], run_slots)
        return self._ahead.pop(folder)

    @contextmanager
    def _take_back_on_failure(self) -> Iterator[None]:
        """Leave no job in the queue that nobody would hear of."""
        try:
            yield
        except BaseException:
            for job in self._ahead.values():
                job.kill()
            raise

    def _submit(self, folders: Sequence[Path], run_slots: tuple[RunSlot, ...]) -> None:
        tasks = [SlurmTask(folder.resolve(), run_slots, self.command) for folder in folders]
        begun = [open_log(folder) for folder in folders]
        try:
            # submitit prints what Slurm said, and hands it on as well.
            with redirect_stderr(StringIO()), _safe_path():
                jobs = list(self._executor.submit_array(tasks))
        except Exception as error:
            raise _refuse(error) from error
        for folder, begin, job in zip(folders, begun, jobs, strict=True):
            self._ahead[folder] = Job(job, folder, begin, self.queue)
        # Of submitit, and of no use: a folder that holds a link is never written into again.
        for link in self._own.glob(".submission_file_*"):
            link.unlink()
        self._handed |= {job.job_id: one.name for job, one in zip(jobs, folders, strict=True)}
        write_file(self._own / _HANDED, json.dumps(self._handed, indent=1) + "\n")


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep processes started in the block from importing what lies in their working folder.

    submitit starts them by `python -m`, which puts that folder first.
    """
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE]
        else:
            os.environ[SAFE] = before


class Job:
    """A run in the queue of a cluster, or on its way there.

    Args:
        begin: where in `log.txt` its words begin.
    """

    def __init__(self, job: Any, folder: Path, begin: int, queue: "Queue | None") -> None:
        self._job, self._folder, self._begin, self._queue = job, folder, begin, queue
        self._gone: float | None = None
        if queue is not None:
            queue.add(job.job_id)

    def code(self) -> int | None:
        """Return the exit code of the run; 1 where the job is gone and has left none."""
        if self._job.paths.result_pickle.exists():
            return 1 if self._job.exception() else int(self._job.result())
        if self._state() is not None:
            self._gone = None
            return None
        # On a shared disk a file may be seen later than the end of the job that wrote it.
        self._gone = self._gone or time.monotonic()
        return 1 if time.monotonic() - self._gone > LOOK else None

    def find_delay(self) -> str | None:
        """Return why the job has no machine yet, as Slurm says it; None of one that has or had."""
        if self._queue is None or (state := self._queue.state(self._job.job_id)) is None:
            return None
        begun = state in ("RUNNING", "COMPLETING")
        return None if begun else self._queue.find_reason(self._job.job_id)

    def stop(self) -> None:
        """Ask for a checkpoint and an end; Slurm allows for it what its KillWait says."""
        if self._queue is None:
            self._job._process.send_signal(signal.SIGTERM)
        else:
            self._job.cancel(check=False)

    def kill(self) -> None:
        """Take the job out of the queue, even one that no query has shown."""
        if not self._job.paths.result_pickle.exists():
            self._job.cancel(check=False)

    def words(self, most: int = 20) -> list[str]:
        """Return the last lines of the run's log, or what Slurm said of the job."""
        paths = self._job.paths
        found = tail(self._folder / LOG, most, self._begin) or tail(paths.stderr, most)
        if found or paths.stdout.exists():
            return found
        return [
            f"its job {self._job.job_id} left nothing in {paths.folder}: it was cancelled before "
            "it began, or its machine does not have that folder; name an --out on a disk that all "
            "machines of the cluster share"
        ]

    def _state(self) -> str | None:
        """Return the state as Slurm names it; None when the job is gone."""
        if self._queue is not None:
            return self._queue.state(self._job.job_id)
        return None if self._job.done() else "RUNNING"


class Queue:
    """The states of the user's jobs, queried together and not too often; needs no accounting."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._asked = -math.inf

    def add(self, job: str) -> None:
        """Take a job that was submitted for one that waits, until an answer tells."""
        self._states[job] = "PENDING"

    def state(self, job: str) -> str | None:
        """Return the state as Slurm names it; None when the job is gone."""
        if time.monotonic() - self._asked >= LOOK:
            self._ask()
        return self._states.get(job)

    def find_reason(self, job: str) -> str:
        """Return why a job waits: its state, and Slurm's reason where there is one."""
        reason = self._reasons.get(job, "None")
        return self._states[job] if reason == "None" else f"{self._states[job]}, {reason}"

    def _ask(self) -> None:
        command = ["squeue", "--me", "--noheader", "--array", "--format=%i %T %r"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        self._asked = time.monotonic()
        # A controller that does not answer has forgotten nothing.
        if answer.returncode == 0:
            lines = [line.split(maxsplit=2) for line in answer.stdout.splitlines()]
            self._states = {line[0]: line[1] for line in lines if len(line) > 1}
            self._reasons = {line[0]: line[2].strip() for line in lines if len(line) > 2}


def _refuse(error: Exception) -> UserError:
    """Return an error with the last line of Slurm's message, as for an unknown partition."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    # The last line but for a hint at the manual, which follows an option that sbatch lacks.
    messages = [line for line in lines if not line.startswith("Try ")]
    message = messages[-1] if messages else type(error).__name__
    remedy = "mend [run.slurm] of the recipe"
    if any(one in message for one in _UNREACHED):
        remedy = (
            "Slurm is not set up or not running here: type the command on a machine where sinfo "
            'answers, or write run.executor = "local"'
        )
    return UserError(f"Slurm takes no jobs: {message}; {remedy}")


def _executor(folder: Path, settings: RunSection) -> Any:
    if find_spec("submitit") is None:
        raise UserError(
            f'run.executor is "{settings.executor}", which needs submitit; '
            f"{describe_install('slurm')}"
        )
    from submitit import AutoExecutor

    cluster = "slurm" if settings.executor == "slurm" else "local"
    try:
        executor = AutoExecutor(
            folder=folder, cluster=cluster, **{f"{cluster}_max_num_timeout": TIMEOUTS}
        )
    except RuntimeError as error:
        raise UserError(
            'run.executor is "slurm", and there is no srun here; type the command on a machine of '
            'the cluster, or write executor = "local"'
        ) from error
    executor.update_parameters(**_parameters(settings))
    return executor


def _parameters(settings: RunSection) -> dict[str, Any]:
    """Return the settings of a job, by submitit's names."""
    asked = settings.slurm
    cores = settings.threads * settings.num_processes
    found: dict[str, Any] = {
        "name": "layerlab",
        "timeout_min": asked.minutes,
        "cpus_per_task": max(asked.cpus, cores),
        "gpus_per_node": asked.gpus or None,
        "mem_gb": asked.memory_gb,
        "stderr_to_stdout": False,
    }
    if settings.executor == "slurm":
        found |= {
            "slurm_partition": asked.partition,
            "slurm_account": asked.account,
            "slurm_qos": asked.qos,
            "slurm_signal_delay_s": DELAY,
            "slurm_setup": [f"export {SAFE}=1"],
            "slurm_additional_parameters": {"requeue": True, **asked.extra},
        }
    return {name: value for name, value in found.items() if value is not None}
