"""Workers that carry out one run after another: what takes long to start is started once.

A run whose process crashes, stops or leaks takes its worker along, and the next gets a new one.
"""

import json
import os
import subprocess
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from layerlab.experiments.executors.process import WORKER, end_group, open_log, tail
from layerlab.experiments.executors.slots import RunSlot
from layerlab.records.heartbeat import LOG
from layerlab.system.untrusted.trust import GRANTS, list_grants
from layerlab.training.worker import ANSWER, LAST, PARENT, SERVE

PATIENCE = 10.0  # seconds that an idle worker has to end by itself


class Worker:
    """A process in a slot, which carries out runs for as long as it is asked to.

    Args:
        slot: where it computes.
        log: where it says what goes wrong before its first run.
    """

    def __init__(self, slot: RunSlot, log: Path) -> None:
        given = {GRANTS: list_grants(), PARENT: str(os.getpid())}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*WORKER, SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **slot.environment(), **given},
                # Ctrl-c is for the one who started it, who passes it on.
                start_new_session=True,
            )
        slot.pin(self.process.pid)
        self.answer: list[str] = []
        # A pipe cannot be looked into without waiting, on every system.
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()

    def ask(self, folder: Path) -> None:
        """Ask for the run of a folder."""
        self.answer = []
        assert self.process.stdin is not None
        # A worker that has ended says so by its exit code.
        with suppress(OSError):
            self.process.stdin.write(json.dumps(str(folder)).encode() + b"\n")
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """Ask for no more."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        """Wait for the end of one that has nothing to do."""
        assert self.process.stdout is not None
        self.dismiss()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            end_group(self.process)
        self._ear.join()
        self.process.stdout.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            begun, *words = line.decode(errors="replace").split() or [""]
            if begun == ANSWER:
                self.answer = words


class WorkerPool:
    """The workers of this machine, those at work and those that wait for the next run."""

    def __init__(self) -> None:
        self._idle: defaultdict[RunSlot, list[Worker]] = defaultdict(list)

    def start(self, folder: Path, slot: RunSlot) -> "WorkerRun":
        """Start the run of a folder, in a worker that is idle or in a new one.

        Raises:
            UserError: `log.txt` is a pipe or a device.
        """
        begin = open_log(folder)
        idle = self._idle[slot]
        worker = None
        while idle and (worker is None or worker.process.poll() is not None):
            worker = idle.pop()
        if worker is None or worker.process.poll() is not None:
            worker = Worker(slot, folder / LOG)
        worker.ask(folder)
        return WorkerRun(worker, folder, begin, idle)

    def close(self) -> None:
        """End all workers that are idle."""
        idle = [one for workers in self._idle.values() for one in workers]
        for worker in idle:
            worker.dismiss()
        for worker in idle:
            worker.close()
        self._idle.clear()


class WorkerRun:
    """A run that is being carried out by a worker.

    Args:
        begin: where in `log.txt` its words begin.
        idle: takes the worker once it is ready for the next run.
    """

    def __init__(self, worker: Worker, folder: Path, begin: int, idle: list[Worker]) -> None:
        self.folder = folder
        self._worker, self._begin, self._idle = worker, begin, idle
        self._code: int | None = None

    def code(self) -> int | None:
        """Return the exit code of the run; None while it goes on."""
        if self._code is None:
            # In this order: what it said before it ended has been heard.
            ended, answer = self._worker.process.poll(), self._worker.answer
            if answer:
                self._code = int(answer[0])
                if answer[-1] != LAST:
                    self._idle.append(self._worker)
                    return self._code
            elif ended is not None:
                self._code = ended
            if self._code is not None:
                self._worker.close()
        return self._code

    def find_delay(self) -> None:
        """Return why the run has not begun; a local one never waits."""

    def stop(self) -> None:
        """Ask for a checkpoint and an end."""
        if self.code() is None:
            self._worker.process.terminate()

    def kill(self) -> None:
        """End it at once, and what it has started."""
        if self.code() is None:
            end_group(self._worker.process)

    def words(self, most: int = 20) -> list[str]:
        """Return the last lines of output since it was started."""
        return tail(self.folder / LOG, most, self._begin)
