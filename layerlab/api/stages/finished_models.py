"""Scores of finished models, where a comparison meets evaluation and the commands of a user."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from layerlab.api import evaluate
from layerlab.console.progress import Progress
from layerlab.errors import UserError
from layerlab.evaluation.harness.cache import scorer
from layerlab.evaluation.harness.prepare import check_whole, engine, load_whole
from layerlab.evaluation.results.data_issues import remarks as describe_data_issues
from layerlab.evaluation.results.question_scores import score_whole
from layerlab.experiments.executors.local import read_finished_result
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.experiments.executors.score_command import check_program, hash_command, run_command
from layerlab.experiments.session import PreparedRecipe
from layerlab.loading.model import LoadedModel, load_model
from layerlab.recipes.compared_measures import SUITE, ComparedMeasure, parse_measure
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.run_files import RUNS
from layerlab.records.scores import ModelScore, read_scores, write_score
from layerlab.system.files import OnlyOwn
from layerlab.system.signals import hear_interruptions
from layerlab.system.untrusted.trust import check_command
from layerlab.training.checkpoints.result import MODEL, fingerprint
from layerlab.training.flops import peak_of
from layerlab.training.run_spec import RunSpec
from layerlab.training.setup import build_model

# Questions that a plan asks an untrained model: of each task to warm it up, of all to time it.
WARM, TIMED = 1, 256


def load_questions(recipe: TrainingRecipe) -> dict[str, list[Any]]:
    """Load the tasks of each suite that finished models are scored by, before any run starts.

    Raises:
        UserError: there is no such suite, its data is not here, or a command is to run that is not
            here, or that nobody has asked for.
    """
    found: dict[str, list[Any]] = {}
    section = recipe.compare
    for measure, parsed in _score_measures(section):
        if parsed.kind == SUITE:
            try:
                found[measure] = load_whole(parsed.name)
            except UserError as error:
                raise UserError(f"compare.measures has {measure!r}: {error}") from None
        elif section is not None:
            check_command(parsed.name, section.commands[parsed.name].run)
            check_program(parsed.name, section.commands[parsed.name])
    return found


def score_runs(task: PreparedRecipe, runs: Sequence[RunSpec], progress: Progress) -> None:
    """Score the finished models of runs, each once; what is scored already is kept.

    Raises:
        UserError: a model or a score is not that of its run, or a command gives none.
    """
    section = task.recipe.compare
    if section is None or not section.scored:
        return
    tasks = load_questions(task.recipe)
    asked = {
        measure: _hash_asked(tasks[measure])
        if parsed.kind == SUITE
        else hash_command(section.commands[parsed.name])
        for measure, parsed in _score_measures(section)
    }
    odd = {measure: _describe_questions(leaves) for measure, leaves in tasks.items()}
    with hear_interruptions(task.out / RUNS):
        for run in runs:
            folder = task.folder(run)
            result = read_finished_result(run, folder)
            if result is None or result["diverged"]:  # there is no finished model
                continue
            for measure, parsed in _score_measures(section):
                with lock_runs([folder]):
                    remarks = odd.get(measure, ())
                    outcome = _score(task.recipe, folder, result, parsed, asked[measure], remarks)
                if outcome is not None:
                    progress.note(f"{run.name}: {measure} {outcome.score:.4f}")


def plan_scores(task: PreparedRecipe, runs: int) -> list[dict[str, Any]]:
    """Return what scoring the finished models of one size takes, before any of them is there.

    The seconds are those of an untrained model with a few questions of each task; those of a
    command are not known.

    Args:
        runs: of the size, by its estimate: a search has as many as it tries.

    Raises:
        UserError: there is no such suite, or its data is not here.
    """
    found: list[dict[str, Any]] = []
    section = task.recipe.compare
    for measure, parsed in _score_measures(section):
        row = {"measure": measure, "runs": runs, "questions": None, "seconds": None}
        if parsed.kind == SUITE and task.runs:
            row |= _try_suite(task, parsed.name)
        elif section is not None:
            command = section.commands[parsed.name]
            row |= {"run": list(command.run), "timeout_minutes": command.timeout_minutes}
        found.append(row)
    return found


def _try_suite(task: PreparedRecipe, name: str) -> dict[str, Any]:
    """Return the questions of a suite, and the seconds that a model takes for them."""
    counts = {leaf.task.task_name: leaf.questions(None) for leaf in load_whole(name)}
    # Eager, as the time of an update is measured too.
    run = replace(task.runs[0], recipe=task.runs[0].recipe.change({"train.torch_compile": False}))
    found: dict[str, Any] = {"questions": sum(counts.values())}
    if peak_of(run.recipe) is None:  # there is no such device here
        return found
    model = build_model(run, torch.device(run.recipe.run.device)).eval()
    for limit in (WARM, max(2, TIMED // len(counts))):
        content = _evaluate(name, model, task.corpora[run.arm].tokenizer, limit)
    records = [*content["subjects"], *content.get("tasks", ())]
    each = (one["seconds"] * counts[one["task"]] / one["n"] for one in records)
    return {**found, "seconds": sum(each)}


def _score_measures(section: CompareSection | None) -> list[tuple[str, ComparedMeasure]]:
    return [(one, parse_measure(one)) for one in (section.scored if section is not None else ())]


def _score(
    recipe: TrainingRecipe,
    folder: Path,
    result: Mapping[str, Any],
    measure: ComparedMeasure,
    asked: str,
    remarks: Sequence[str],
) -> ModelScore | None:
    """Return the new score of a run's model; None where it has one."""
    kept = read_scores(folder, result).get(measure.key)
    files = {name: one for name, one in measure.hash_files().items() if one is not None}
    if recipe.compare is None:
        return None
    if kept is not None and kept.asked == asked:
        if kept.files != files:  # which ask the same in other words
            write_score(folder, result, measure.key, kept.model_copy(update={"files": files}))
        return None
    loaded = _load(folder, result, measure, recipe.run.device)
    if measure.kind == SUITE:
        found = _ask(measure.name, loaded, asked, remarks)
    else:
        del loaded  # it was for the hash of its weights alone: the memory is the command's
        command = recipe.compare.commands[measure.name]
        found = run_command(measure.name, command, folder / MODEL, str(result["run"]))
    found = found.model_copy(update={"files": files})
    write_score(folder, result, measure.key, found)
    return found


def _load(
    folder: Path, result: Mapping[str, Any], measure: ComparedMeasure, device: str
) -> LoadedModel:
    """Load the model of a run, whose weights are those of its result, and all files as written."""
    if not (folder / MODEL).is_dir():
        raise UserError(
            f"{folder} kept no model, which {measure.key} scores; delete it, and type layerlab "
            "compare again"
        )
    found = load_model(str(folder / MODEL), device=device)
    if fingerprint(found.model.state_dict()) != result["weights"]:
        raise UserError(
            f"{folder / MODEL} is not the model of its result: the weights are others; delete "
            f"{folder}, and type layerlab compare again"
        )
    # Other settings or another tokenizer make another model of the same weights.
    if others := OnlyOwn().others(folder / MODEL):
        raise UserError(
            f"{folder / MODEL} is not the model that its run kept: {others[0]} was changed or "
            f"added since; put it right, or delete {folder}, and type layerlab compare again"
        )
    return found


def _ask(name: str, loaded: LoadedModel, asked: str, remarks: Sequence[str]) -> ModelScore:
    """Score a model as `layerlab evaluate` does."""
    start = time.monotonic()
    content = _evaluate(name, loaded.model, loaded.tokenizer)
    return score_whole(content, asked, round(time.monotonic() - start, 3), remarks)


def _evaluate(name: str, model: Any, tokenizer: Any, limit: int | None = None) -> Any:
    suite, tasks = check_whole(name)
    return evaluate.evaluate(
        model, suite, tasks=tasks, tokenizer=tokenizer, limit=limit, progress=False
    ).content


def _describe_questions(tasks: Sequence[Any]) -> list[str]:
    """Describe which questions are left out, or odd."""
    named = [remark for leaf in tasks for remark in getattr(leaf, "remarks", ())]
    ours = dict.fromkeys(leaf.benchmark for leaf in tasks if hasattr(leaf, "benchmark"))
    return [*named, *describe_data_issues(ours)]


def _hash_asked(tasks: Sequence[Any]) -> str:
    """Return a digest of all questions, how they are put, and the code that scores them."""
    harness, found = engine(), hashlib.sha256()
    found.update(f"{harness.ENGINE} {scorer()}".encode())
    for leaf in tasks:
        found.update(harness.describe_task(leaf.task).encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:24]
