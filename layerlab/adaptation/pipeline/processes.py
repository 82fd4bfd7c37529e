"""Carries out a stage in several processes, each started as those of a run of training."""

import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from layerlab.adaptation.pipeline.run_stage import STEPS, StageContext
from layerlab.adaptation.pipeline.worker import LEFT, REFUSED, STAGE, TOLD
from layerlab.errors import UserError
from layerlab.experiments.executors.local import POLL
from layerlab.experiments.executors.process import RunProcess, explain_silence
from layerlab.experiments.executors.slots import slots
from layerlab.recipes.training_sections import RunSection
from layerlab.records.heartbeat import LOG
from layerlab.records.json_values import Json
from layerlab.records.parse import read_json
from layerlab.records.run_files import RECIPE
from layerlab.system.files import write_file

PROCESSES = "processes"  # the folder of requests, beside that of the stages
TRAIN = ("pretrain", "tune")  # the stages that several processes share
WORKER = (sys.executable, "-P", "-m", "layerlab.adaptation.pipeline.worker")


def run_step(context: StageContext) -> Json:
    """Run a stage, in this process or in those that the recipe asks for; return what it leaves.

    Raises:
        UserError: it cannot be carried out, or a process of it has ended too soon.
    """
    if context.recipe.run.num_processes == 1 or context.stage.kind not in TRAIN:
        return STEPS[context.stage.kind](context)
    folder = context.store.folder.parent / PROCESSES / context.stage.key
    _request(context, folder)
    run = context.recipe.run.model_dump(exclude={"memory_gb"})
    work = RunProcess(folder, slots(RunSection(**run), 1)[0], WORKER)
    try:
        _wait(context, work, folder)
    finally:
        work.kill()
    if (code := work.code()) == 0:
        found: Json = read_json(folder / LEFT)
        return found
    if refused := (folder / REFUSED).read_text("utf-8"):
        raise UserError(refused)
    lines = work.words() or [explain_silence(folder)]
    raise UserError(
        f"a process of {context.stage.key} ended with code {code} "
        f"({lines[-1]}); all that they said is in "
        f"{folder / LOG}; type the same again, which goes on from the last checkpoint"
    )


def _request(context: StageContext, folder: Any) -> None:
    """Write what the processes are to do."""
    recipe = context.recipe.model_dump(mode="json", exclude_defaults=True)
    write_file(folder / RECIPE, json.dumps(recipe, indent=1) + "\n")
    request = {
        "stage": asdict(context.stage),
        "store": str(context.store.folder),
        "load": list(context.load),
        "model": context.store.model(context.stage.needs["model"]),
    }
    write_file(folder / STAGE, json.dumps(request, indent=1, default=str) + "\n")
    for left in (TOLD, REFUSED):  # of an earlier call
        write_file(folder / left, "")


def _wait(context: StageContext, work: RunProcess, folder: Any) -> None:
    """Pass on what the first process tells until all have ended."""
    last: Any = None
    while work.code() is None:
        with suppress(OSError, ValueError):
            message = read_json(folder / TOLD)
            if message != last:
                context.tell(*message)
                last = message
        time.sleep(POLL)
