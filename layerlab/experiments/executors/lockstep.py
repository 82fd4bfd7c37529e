"""Trains all arms of a seed in one process, batch by batch in turn, under the same conditions.

Whatever slows or heats the machine then falls on all arms alike. It takes the memory of all.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from layerlab.console.progress import Progress
from layerlab.experiments.executors.local import read_finished_result
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.system.hardware import explain_memory, with_threads
from layerlab.system.locks import lock_folder
from layerlab.system.signals import GracefulStop
from layerlab.training.run_spec import RunSpec, write_run
from layerlab.training.step.microbatch import SMALLER
from layerlab.training.step.nonfinite import Diverged
from layerlab.training.trainer import Trainer


def run_in_lockstep(runs: Sequence[RunSpec], out: Path, progress: Progress) -> None:
    """Execute the unfinished runs, one seed after the other.

    Args:
        runs: of sides that `check_lockstep` lets pass.
        out: in which each run has a folder of its name.

    Raises:
        UserError: another process holds one of them.
        Stopped: a signal asked to stop; every run left a checkpoint.
    """
    for _, group in groupby(runs, key=lambda run: run.seed):
        with ExitStack() as stack:
            waiting = _list_unfinished(group, out)
            stack.enter_context(lock_runs(out / run.name for run in waiting))
            # Meanwhile another process may have finished some, and gone.
            waiting = _list_unfinished(waiting, out)
            for run in waiting:
                stack.enter_context(lock_folder(out / run.name))
                write_run(run, out / run.name)
            stack.enter_context(explain_memory(SMALLER))
            _together([_Sharing(run, out / run.name, progress) for run in waiting])


def _list_unfinished(runs: Iterable[RunSpec], out: Path) -> list[RunSpec]:
    return [run for run in runs if read_finished_result(run, out / run.name) is None]


class _Sharing(Trainer):
    """A run that shares its process with others, so that nobody knows what memory it took."""

    alone = False


def _together(trainings: list[_Sharing]) -> None:
    """Advance the run that is behind until all are done; a diverged one drops out."""
    for training in trainings:
        with with_threads(training.recipe.run.threads):
            training.start()
    with GracefulStop() as halt:
        while trainings:
            behind = min(training.update for training in trainings)
            for training in [one for one in trainings if one.update == behind]:
                try:
                    with with_threads(training.recipe.run.threads):
                        training.advance()
                except Diverged:
                    trainings.remove(training)
            for training in [one for one in trainings if one.done]:
                training.finish()
                trainings.remove(training)
            if halt.wanted:
                for training in trainings:
                    training.checkpoint()
                halt.leave()
