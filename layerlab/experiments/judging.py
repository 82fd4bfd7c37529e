"""Reaches verdicts from the folders of runs; reads no text and runs nothing."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.experiments.analysis.evidence import RecipeEvidence, look_at_recipe
from layerlab.experiments.analysis.warnings import disclose_added_seeds
from layerlab.experiments.executors.local import RunOutcome
from layerlab.experiments.ladder.compare import compare_ladder
from layerlab.experiments.page_folder import OTHERS, pages_in
from layerlab.experiments.plan.arm_checks import check_comparable
from layerlab.experiments.plan.ladder import Rung
from layerlab.experiments.plan.own_files import Files, load_files
from layerlab.experiments.session import Given, PreparedRecipe, recipe_given
from layerlab.experiments.stored_runs import (
    plan_again,
    plan_ladder_again,
    records_in,
    runs_of_recipe,
    sort_by_size,
    sort_out,
)
from layerlab.recipes.load import validate_table
from layerlab.recipes.training import TrainingRecipe, list_packaged
from layerlab.records.heartbeat import LOG
from layerlab.records.parse import check_digest, read_json
from layerlab.records.renamed_settings import current_settings
from layerlab.records.run import RunRecord
from layerlab.records.run_files import COMPARISON, RUN, RUNS, read_table
from layerlab.system.files import check_links
from layerlab.validation import short_repr


def find_stored(
    recipe: Given,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    load: Files = (),
) -> PreparedRecipe:
    """Return a recipe with its runs as recorded in their folders.

    Args:
        recipe: as for `layerlab.compare`, or the folder of a comparison, which has its recipe.
        out: folder under which the recipe has one of its own; a comparison's folder is its own.

    Raises:
        UserError: a setting is wrong, nothing has run, the folder is that of something else, or
            runs were made on two texts.
    """
    own = _comparison(recipe)
    given = recipe_given(recipe if own is None else _recipe_in(own), settings or {})
    read = load_files(given, load)
    folder = out / read.name if own is None else _runs_of(own)
    if read.compare is None:
        raise UserError(
            f"the recipe {short_repr(read.name)} has no compare section; "
            "type layerlab train in place of layerlab compare, or name what to compare: "
            "--arms llama,gpt2"
        )
    check_links(folder)
    records, _ = sort_out(folder / RUNS)
    if read.ladder is not None:
        sizes = tuple(plan_ladder_again(read, records) if records else ())
        for one in sizes:
            check_comparable(read.compare, one.runs)
        all_runs = tuple(run for one in sizes for run in one.runs)
        return PreparedRecipe(recipe=read, runs=all_runs, out=folder, rungs=sizes)
    runs = plan_again(read, records) if records else []
    check_comparable(read.compare, runs)
    return PreparedRecipe(recipe=read, runs=tuple(runs), out=folder)


def look_at_stored(recipe: Given, out: Path) -> tuple[RecipeEvidence, list[str]]:
    """Return the runs that are stored of a recipe with their tests, and remarks on the others.

    Raises:
        UserError: as `find_stored`; a run is damaged, or runs are not on equal terms.
    """
    task = find_stored(recipe, out)
    records, left = _count(task, records_in(task.out / RUNS))
    found = look_at_recipe(task.recipe, records)
    return found, [*left, *found.left]


def judge(task: PreparedRecipe, failed: Sequence[RunOutcome] = ()) -> Comparison:
    """Judge the finished runs of a comparison.

    Args:
        failed: outcomes of runs that failed, to be told with the verdicts.

    Raises:
        UserError: runs differ in what the recipe does not declare, or none of them is the recipe's.
    """
    records, unfit = sort_out(task.out / RUNS)
    counted = [
        (size, *_count(part, own))
        for (size, own), part in zip(_sort(task, records), task.sizes, strict=True)
    ]
    left = [remark for _, _, remarks in counted for remark in remarks]
    found = [record for _, own, _ in counted for record in own]
    failures = [
        *(
            f"{one.run.name} {one.text}; all that it said is in {one.folder / LOG}"
            for one in failed
        ),
        *(f"left out: {error}" for error in unfit),
    ]
    if not records:
        raise UserError(
            failures[0]
            if failures
            else f"nothing has run yet in {task.out}; type layerlab compare without --judge"
        )
    if task.rungs:
        comparison = compare_ladder(task.recipe, [(size, own) for size, own, _ in counted if size])
    else:
        comparison = compare_runs(task.recipe, found)
    content = disclose_added_seeds(comparison.content, *pages_in(task.out))
    if not content["runs"]:
        missing = [
            f"runs of {name!r} lie there, and the recipe has no arm {name!r}"
            for name in content["elsewhere"]
        ]
        why = [*failures, *left, *missing, *content["remarks"][-1:]]
        raise UserError(
            f"no run in {task.out} is of the recipe {short_repr(task.recipe.name)}: {why[0]}"
        )
    texts = dict.fromkeys(note for one in found for note in one.manifest["data"].get("notes", ()))
    plans = _describe_plans(task.out / RUNS, found)
    remarks = [*content["remarks"], *left, *texts, *plans, *failures]
    return Comparison({**content, "failed": failures, "remarks": remarks})


def _describe_plans(folder: Path, records: Sequence[RunRecord]) -> list[str]:
    """Describe finished runs whose plan lacks or is another's: no verdict is read from it."""
    names = [
        one.name
        for one in records
        if (one.result or {}).get("digest") and not _has_own_plan(folder / one.name, one)
    ]
    if not names:
        return []
    return [
        f"without a {RUN} of their own: {', '.join(names)}; the verdicts do not rest on it: "
        "settings and the digest of the text are in manifest.json, under the digest of the result"
    ]


def _has_own_plan(folder: Path, record: RunRecord) -> bool:
    try:
        plan = read_table(folder / RUN)
    except UserError:
        return False
    digest = record.manifest["data"]["digest"]
    return plan.get("run") == record.name and plan.get("digest") == digest


def _sort(
    task: PreparedRecipe, records: Sequence[RunRecord]
) -> Sequence[tuple[Rung | None, Sequence[RunRecord]]]:
    """Return the records of each size of a task; of one without a ladder, all."""
    return sort_by_size(task.rungs, records) if task.rungs else [(None, records)]


def _count(task: PreparedRecipe, records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """Return the records that are of a task, and remarks on the others."""
    section = task.recipe.compare
    return (list(records), []) if section is None else runs_of_recipe(section, task.runs, records)


def _comparison(given: Given) -> Path | None:
    """Return the folder of a comparison, where one is given: itself or its `runs`."""
    if not isinstance(given, str | PathLike) or str(given) in list_packaged():
        return None
    folder = Path(given)
    if not folder.is_dir():
        return None
    return folder.parent if folder.name == RUNS and not (folder / COMPARISON).exists() else folder


def _runs_of(own: Path) -> Path:
    """Return the folder that holds the runs of a comparison: its own, or that of its recipe."""
    if own.parent.name == OTHERS and not (own / RUNS).exists():
        return own.parent.parent
    return own


def _recipe_in(folder: Path) -> TrainingRecipe:
    """Return the recipe of a comparison, from what was judged of it before.

    Raises:
        UserError: the folder is that of something else.
    """
    file = folder / COMPARISON
    try:
        content = current_settings(check_digest(read_json(file))["recipe"])
    except FileNotFoundError:
        raise UserError(
            f"{folder} is no folder of a comparison: it has no {COMPARISON}, which says what is "
            f"compared; name the recipe: type layerlab compare RECIPE --out {folder.parent} --judge"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot read the recipe in {file}: {' '.join(str(error).split())}; name the recipe: "
            f"type layerlab compare RECIPE --out {folder.parent} --judge"
        ) from None
    return validate_table(TrainingRecipe, content, str(file))
