"""Trains all arms of a seed in one process, batch by batch in turn, under the same conditions.

Whatever slows or heats the machine then falls on all arms alike. It takes the memory of all.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from layerlab.console.progress import Progress
from layerlab.errors import UserError
from layerlab.experiments.executors.local import finished_result
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.recipes.training import TrainingRecipe
from layerlab.system.locks import lock_folder
from layerlab.system.signals import GracefulStop
from layerlab.training.run_spec import RunSpec, write_run
from layerlab.training.step.microbatch import explain_memory
from layerlab.training.step.nonfinite import Diverged
from layerlab.training.trainer import Trainer


def check_lockstep(sides: Mapping[str, TrainingRecipe]) -> None:
    """Refuse arms that one process cannot train in lockstep, before anything is read.

    Args:
        sides: what each arm trains, by its name.

    Raises:
        UserError: another runner than this process is asked for, or several processes; or arms
            differ in their precision, of which a process has one, or in their text.
    """
    for setting, expected in (("executor", "local"), ("num_processes", 1)):
        for side in sides.values():
            given = getattr(side.run, setting)
            if given != expected:
                raise UserError(
                    "compare.lockstep runs all arms in one process, here, and "
                    f"run.{setting} is {json.dumps(given)}; write lockstep = false, or "
                    f"{setting} = {json.dumps(expected)}"
                )
    precisions = sorted({side.train.mixed_precision for side in sides.values()})
    if len(precisions) > 1:
        raise UserError(
            f"compare.lockstep runs all arms in one process, and they ask for {precisions}; "
            "expected one train.mixed_precision: write lockstep = false"
        )
    first = next(iter(sides))
    for name, side in sides.items():
        if side.data.text() != sides[first].data.text():
            raise UserError(
                f"compare.lockstep shows all arms the same batch in turn, and {name!r} has another "
                f"text or tokenizer than {first!r}; write lockstep = false"
            )


def run_in_lockstep(runs: Sequence[RunSpec], out: Path, watch: Progress) -> None:
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
            waiting = [run for run in group if finished_result(run, out / run.name) is None]
            stack.enter_context(lock_runs(out / run.name for run in waiting))
            for run in waiting:
                stack.enter_context(lock_folder(out / run.name))
                write_run(run, out / run.name)
            stack.enter_context(explain_memory())
            _together([Trainer(run, out / run.name, watch) for run in waiting])


def _together(trainings: list[Trainer]) -> None:
    """Advance the run that is behind until all are done; a diverged one drops out."""
    for training in trainings:
        training.start()
    with GracefulStop() as halt:
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
