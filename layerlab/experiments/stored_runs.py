"""Matches stored runs with a recipe: which belong to it, and why others do not.

A plan has to know how long a text is and what its tokens are. Manifests say both, so that runs are
planned again, and judged, where the text itself is no longer there.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerlab.corpus.extent import CorpusSize
from layerlab.errors import UserError
from layerlab.experiments.plan.ladder import Rung, baseline_of, plan_rungs
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.arms import arms, is_fitted, sides
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.load import validate_table
from layerlab.recipes.paths import drop_folders
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.parquet.folded_runs import unfold_runs
from layerlab.records.run import RunRecord, read_record
from layerlab.records.settings import flatten
from layerlab.training.run_spec import RunSpec, own_files
from layerlab.validation import short_repr

TEXT, FILES = "data.digest", "model.files"
FieldDifference = tuple[str, Any, Any]


def records_in(folder: Path) -> list[RunRecord]:
    """Return the begun runs of a folder by name.

    Raises:
        UserError: what one left does not fit together.
    """
    found, unfit = sort_out(folder)
    if unfit:
        raise unfit[0]
    return found


def sort_out(folder: Path) -> tuple[list[RunRecord], list[UserError]]:
    """Return the begun runs of a folder, and why others are rejected."""
    unfold_runs(folder.parent)
    found: list[RunRecord] = []
    unfit: list[UserError] = []
    for one in sorted(one for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else ():
        try:
            record = read_record(one)
        except UserError as error:
            unfit.append(error)
        else:
            found += [] if record is None else [record]
    return found, unfit


def plan_again(recipe: TrainingRecipe, records: Sequence[RunRecord]) -> list[RunSpec]:
    """Plan a recipe again on the text of its runs, and for the time they took.

    Args:
        records: one at least.

    Raises:
        UserError: an arm cannot be built, or its runs were made on two texts.
    """
    first = {arm: _first(arm, side, records) for arm, side in sides(recipe).items()}
    own = {arm: _extent(side, first[arm]) for arm, side in sides(recipe).items()}
    runs = plan(recipe, next(iter(own.values())), own)
    if recipe.compare is not None and recipe.compare.match == "time":
        fitted = {str(arm.name) for arm in arms(recipe.compare, recipe) if is_fitted(arm)}
        runs = [_lasting(run, first[run.arm]) if run.arm in fitted else run for run in runs]
    for record in records:
        run = _closest(runs, record)
        differ = [] if run is None else _differences(run, record, recipe.compare)
        if run is not None and [path for path, *_ in differ] == [TEXT]:
            raise UserError(
                f"{first[run.arm].name} and {record.name} were made on two texts, and both lie "
                "here; leave the runs of one, and put the others in a folder of their own"
            )
    return runs


def plan_ladder_again(recipe: TrainingRecipe, records: Sequence[RunRecord]) -> list[Rung]:
    """Plan the sizes of a ladder again on the text of its runs.

    Args:
        records: one at least.

    Raises:
        UserError: as `plan_again`, or no model has a size.
    """
    found = plan_rungs(recipe, _extent(baseline_of(recipe), records[0]))
    return [replace(one, runs=tuple(_plan_size(one.recipe, records))) for one in found]


def _plan_size(recipe: TrainingRecipe, records: Sequence[RunRecord]) -> list[RunSpec]:
    """Plan one size; where time is what arms have in common, by the times that it took there."""
    if recipe.compare is None or recipe.compare.match != "time":
        return plan_again(recipe, records)
    own = (recipe.model.width, recipe.model.layers)
    there = [one for one in records if (_recipe(one).model.width, _recipe(one).model.layers) == own]
    return plan_again(recipe, there or records)


def sort_by_size(
    sizes: Sequence[Rung], records: Sequence[RunRecord]
) -> list[tuple[Rung, list[RunRecord]]]:
    """Return the records of each size: of that from whose plan they differ least.

    Those of other arms are handed on with the largest.
    """
    found: list[tuple[Rung, list[RunRecord]]] = [(one, []) for one in sizes]
    for record in records:
        apart = [_apart(one, record) for one in sizes]
        near = min(range(len(sizes)), key=lambda index: (apart[index], -index))
        found[near][1].append(record)
    return found


def _apart(size: Rung, record: RunRecord) -> float:
    """Return in how many settings a record differs from the run of a size; inf without one."""
    run = _closest(size.runs, record)
    return math.inf if run is None else len(_differences(run, record, size.recipe.compare))


def runs_of_recipe(
    section: CompareSection, runs: Sequence[RunSpec], records: Sequence[RunRecord]
) -> tuple[list[RunRecord], list[str]]:
    """Return the records of a plan in order, with remarks on those left out.

    Records of other arms, seeds and rates are handed on at the end: whoever compares names them.
    """
    order = {_key(run): number for number, run in enumerate(runs)}
    kept: list[tuple[int, RunRecord]] = []
    left: dict[str, list[str]] = {}
    for record in records:
        run = _closest(runs, record)
        swept = section.grid_rates and record.rate not in section.grid_rates
        if run is None or swept:
            kept.append((len(runs), record))
        elif differ := _differences(run, record, section):
            left.setdefault(_reason(*differ[0]), []).append(record.name)
        else:
            kept.append((order[_key(run)], record))
    ordered = [record for _, record in sorted(kept, key=lambda one: one[0])]
    return ordered, [f"{why}: {', '.join(names)}" for why, names in left.items()]


def _first(arm: str, side: TrainingRecipe, records: Sequence[RunRecord]) -> RunRecord:
    """Return the first run of an arm on the text it asks for, if any."""
    own = [one for one in records if one.arm == arm]
    same = (one for one in own if _text(_recipe(one)) == _text(side))
    return next(same, records[0])


def _text(recipe: TrainingRecipe) -> dict[str, Any]:
    """Return the settings of a text, wherever it lies."""
    return drop_folders({"data": recipe.data.text().model_dump(mode="json")})


def _extent(side: TrainingRecipe, record: RunRecord) -> CorpusSize:
    """Return the size of a run's text as its manifest has it."""
    own, data = _recipe(record), record.manifest["data"]
    tokens = data["train_tokens"]
    if side.train.num_train_epochs is not None:
        # Each source leaves less than a block at its end; how much, the length of the run tells.
        block, updates = own.data.block_size or 1, own.train.max_steps or 0
        seen = round(updates * own.train.batch_size * block / side.train.num_train_epochs)
        tokens = min(max(seen, tokens - len(own.data.sources) * block), tokens)
    vocab = side.model.vocab or own.model.vocab or 0
    return CorpusSize(vocab=vocab, tokens=tokens, digest=str(data["digest"]))


def _lasting(run: RunSpec, record: RunRecord) -> RunSpec:
    own = _recipe(record)
    length = {
        "train.max_steps": own.train.max_steps,
        "evaluate.eval_steps": own.evaluate.eval_steps,
    }
    return replace(run, recipe=run.recipe.change(length)) if record.arm == run.arm else run


def _closest(runs: Sequence[RunSpec], record: RunRecord) -> RunSpec | None:
    """Return the planned run of an arm and a seed, at the record's rate if planned."""
    near = [run for run in runs if (run.arm, run.seed) == (record.arm, record.seed)]
    return next((run for run in near if run.rate == record.rate), near[0] if near else None)


def _key(run: RunSpec | RunRecord) -> tuple[str, int, float]:
    return run.arm, run.seed, run.rate


def _differences(
    run: RunSpec, record: RunRecord, section: CompareSection | None
) -> list[FieldDifference]:
    """Return the settings in which a record differs from the plan, with both values."""
    searched = section is not None and section.search == "optuna"
    there, wanted = decisive_settings(_recipe(record)), decisive_settings(run.recipe)
    there[TEXT], wanted[TEXT] = record.manifest["data"]["digest"], run.digest
    if files := record.manifest["model"].get("files"):
        there[FILES], wanted[FILES] = files, own_files(run.recipe)
    return [
        (path, there.get(path), wanted.get(path))
        for path in dict.fromkeys([*wanted, *there])
        if there.get(path) != wanted.get(path) and not (searched and path == "train.learning_rate")
    ]


def decisive_settings(recipe: TrainingRecipe) -> dict[str, Any]:
    """Return the settings that decide a run, by path."""
    found = flatten(drop_folders(recipe.decisive()))
    return {path: value for path, value in found if value != {}}


def _reason(path: str, there: Any, wanted: Any) -> str:
    if path == TEXT:
        return "left out, because their text is another than that of the recipe"
    if path == FILES:
        changed = sorted(name for name in there if there[name] != (wanted or {}).get(name))
        return f"left out, because {', '.join(changed)} has changed since"
    return (
        f"left out, because {path} is {_describe(there)} there and {_describe(wanted)} in the "
        "recipe"
    )


def _describe(value: Any) -> str:
    return "not set" if value is None else short_repr(value)


def _recipe(record: RunRecord) -> TrainingRecipe:
    """Return the recipe of a run; settings younger than it have their defaults."""
    return validate_table(
        TrainingRecipe, record.manifest["recipe"], f"the manifest of {record.name}"
    )
