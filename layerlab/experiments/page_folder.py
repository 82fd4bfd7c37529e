"""Find the folder of a comparison's page: other arms or settings have one of their own."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.experiments.plan.own_files import LOAD
from layerlab.experiments.session import PreparedRecipe
from layerlab.experiments.stored_runs import decisive_settings
from layerlab.recipes.arms import arms
from layerlab.recipes.comparison_sections import Arm
from layerlab.recipes.load import validate_table
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.parse import read_json
from layerlab.records.renamed_settings import current_settings
from layerlab.records.run_files import COMPARISON
from layerlab.records.settings import flatten
from layerlab.validation import short_repr

OTHERS = "comparisons"
LONGEST = 60  # characters of a folder's name
MOST = 3  # settings that are named where they differ
# Of the section of a comparison, what does not decide what is compared: how many runs there are,
# how they are carried out, and what is held against them. Arms are looked at one by one.
_GROWING = (
    *("arms", "baseline", "seeds", "learning_rates", "search", "trials", "looks", "lockstep"),
    *("allowed_differences", "timed", "published", "claims"),
)


def page_folder(task: PreparedRecipe) -> Path:
    """Return the folder of a task's page: the recipe's, unless that is another comparison's.

    More seeds or rates, and what is claimed of the arms, leave a comparison the same.
    """
    found = next((one.parent for one in pages_in(task.out) if _is_of(one.parent, task)), None)
    if found is not None or read_arms(task.out) is None:
        return found or task.out
    name = "-".join(_arms(task))
    folder = task.out / OTHERS / _cut(name)
    if read_arms(folder) is None:
        return folder
    return task.out / OTHERS / _cut(name, _terms(task.recipe))


def describe_other(task: PreparedRecipe) -> str | None:
    """Describe what the page of the recipe's folder compares; None where it is the task's own."""
    if page_folder(task) == task.out:
        return None
    there = read_arms(task.out) or []
    if set(there) != set(_arms(task)):
        return f"compares other arms ({', '.join(there)})"
    if there[0] != _arms(task)[0]:
        return f"compares with another baseline ({there[0]})"
    recipe = _recipe_of(task.out)
    own, other = _terms(task.recipe), {} if recipe is None else _terms(recipe)
    changed = [path for path in {**other, **own} if own.get(path) != other.get(path)]
    differences = ", ".join(f"{path} is {short_repr(other.get(path))}" for path in changed[:MOST])
    return f"compares under other settings ({differences})"


def read_arms(folder: Path) -> list[str] | None:
    """Return the arms of the comparison in a folder, its baseline first; None if there is none."""
    try:
        found = read_json(folder / COMPARISON)
        return _first(str(found["baseline"]), [str(name) for name in found["arms"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def pages_in(folder: Path) -> list[Path]:
    """Return every comparison.json of a recipe's runs, that of the recipe's folder first."""
    return [folder / COMPARISON, *sorted((folder / OTHERS).glob(f"*/{COMPARISON}"))]


def _is_of(folder: Path, task: PreparedRecipe) -> bool:
    """Return whether the page in a folder is that of a task: the same arms on the same terms."""
    own, there = _arms(task), read_arms(folder)
    if there is None or (there[0], set(there)) != (own[0], set(own)):
        return False
    recipe = _recipe_of(folder)
    return recipe is None or _terms(recipe) == _terms(task.recipe)


def _recipe_of(folder: Path) -> TrainingRecipe | None:
    """Return the recipe of the comparison in a folder; None where it cannot be read."""
    file = folder / COMPARISON
    try:
        content = current_settings(read_json(file)["recipe"])
        return validate_table(TrainingRecipe, content, str(file))
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def _terms(recipe: TrainingRecipe) -> dict[str, Any]:
    """Return the settings that verdicts depend on, by path, besides the names of the arms."""
    section = recipe.compare
    found = {path: one for path, one in decisive_settings(recipe).items() if path != LOAD}
    if section is None:
        return found
    sides = {str(arm.name): _changes(arm) for arm in arms(section, recipe)}
    rules = section.model_dump(mode="json", exclude=set(_GROWING))
    ladder = recipe.ladder and recipe.ladder.model_dump(mode="json", exclude={"beyond"})
    declared = flatten({"compare": {**rules, "arms": sides}, "ladder": ladder or {}})
    return {**found, **{path: one for path, one in declared if one != {}}}


def _changes(arm: Arm) -> dict[str, Any]:
    """Return what an arm changes; files of one's own are loaded from wherever they lie."""
    found = arm.model_dump(mode="json", exclude={"name"})
    return {**found, "set": {path: one for path, one in arm.set.items() if path != LOAD}}


def _cut(name: str, terms: Mapping[str, Any] | None = None) -> str:
    """Return the name of a folder: with a digest where it is too long, or not the only one."""
    if terms is None and len(name) <= LONGEST:
        return name
    text = name if terms is None else json.dumps([name, terms], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{name[: LONGEST - len(digest) - 1]}-{digest}"


def _arms(task: PreparedRecipe) -> list[str]:
    section = task.recipe.compare
    if section is None:
        return [task.recipe.model.variant]
    names = [str(arm.name) for arm in arms(section, task.recipe)]
    return _first(section.baseline or names[0], names)


def _first(baseline: str, names: list[str]) -> list[str]:
    return [baseline, *(name for name in names if name != baseline)]
