"""All arms of a seed see each batch in turn, in one process: curves that share even their weather.

Whatever slows or heats the machine then falls on all arms alike. It takes the memory of all.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from layerlab import UserError
from layerlab.lock import locked
from layerlab.training.corpus import Corpus
from layerlab.training.fault import memory_told
from layerlab.training.halt import Halt
from layerlab.training.hold import held
from layerlab.training.loop import Diverged, Training
from layerlab.training.plan import Run
from layerlab.training.runner import finished
from layerlab.training.watch import Watch
from layerlab.training.worker import write_run


def in_lockstep(runs: Sequence[Run], corpus: Corpus, out: Path, watch: Watch) -> None:
    """Carry out the runs that are not finished, one seed after the other.

    Args:
        out: in which each run has a folder of its name.

    Raises:
        UserError: runs differ in their precision, of which a process has one, or another process
            holds one of them.
        Halted: a signal asked to stop; every run left a checkpoint.
    """
    precisions = sorted({run.recipe.train.precision for run in runs})
    if len(precisions) > 1:
        raise UserError(
            f"compare.lockstep runs all arms in one process, and they ask for {precisions}; "
            "expected one train.precision: write lockstep = false"
        )
    for _, group in groupby(runs, key=lambda run: run.seed):
        with ExitStack() as stack:
            waiting = [run for run in group if finished(run, out / run.name) is None]
            stack.enter_context(held(out / run.name for run in waiting))
            for run in waiting:
                stack.enter_context(locked(out / run.name))
                write_run(run, out / run.name)
            stack.enter_context(memory_told())
            _together([Training(run, corpus, out / run.name, watch) for run in waiting])


def _together(trainings: list[Training]) -> None:
    """Advance whoever is behind, until all are done; a run that diverges leaves the others."""
    for training in trainings:
        training.start()
    with Halt() as halt:
        while trainings:
            behind = min(training.update for training in trainings)
            for training in [one for one in trainings if one.update == behind]:
                try:
                    training.advance()
                except Diverged:
                    trainings.remove(training)
            for training in [one for one in trainings if one.done]:
                training.finish()
                trainings.remove(training)
            if halt.wanted and trainings:
                for training in trainings:
                    training.checkpoint()
                halt.leave()
