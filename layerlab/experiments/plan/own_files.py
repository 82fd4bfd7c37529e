"""Python files of the user's own, named in a recipe so that every process of a run loads them."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from layerlab import plugins
from layerlab.recipes.arms import sides
from layerlab.recipes.comparison_sections import Arm
from layerlab.recipes.training import TrainingRecipe
from layerlab.system.files import File, read_whole
from layerlab.training.run_spec import design_model
from layerlab.variants.registry import find_needed

LOAD = "model.load"
Files = File | Iterable[File]


def load_files(recipe: TrainingRecipe, files: Files) -> TrainingRecipe:
    """Load the files that a user has named, then those that a recipe and its arms name.

    Returns:
        The recipe, in which each arm also names those of the user's files that its model needs. An
        arm that needs none is the same run whatever is loaded beside it.

    Raises:
        UserError: a file cannot be loaded, nobody has asked for one of the recipe's, or no variant
            of an arm's name is known.
    """
    given = plugins.paths(files)
    plugins.load_files(given)
    everyone = (recipe, *sides(recipe).values())
    plugins.load_named(dict.fromkeys(path for one in everyone for path in one.model.load))
    return _name_files(recipe, {_digest(path): str(path) for path in given})


def _name_files(recipe: TrainingRecipe, files: Mapping[str, str]) -> TrainingRecipe:
    """Name files in the recipe of a run, or in the arms of a comparison that need them.

    Args:
        files: paths by their SHA-256.
    """
    if not files:
        return recipe
    if recipe.compare is None:
        return recipe.change(_setting(recipe, files))
    settings = [_setting(side, files) for side in sides(recipe).values()]
    named = [_with(arm, one) for arm, one in zip(recipe.compare.arms, settings, strict=True)]
    return recipe.change({"compare.arms": named})


def _with(given: str | Arm, setting: Mapping[str, Any]) -> str | dict[str, Any]:
    """Return an arm as a recipe writes it, with one more setting where there is one."""
    if isinstance(given, str) and not setting:
        return given
    arm = Arm(variant=given) if isinstance(given, str) else given
    changed = arm.model_copy(update={"set": {**arm.set, **setting}})
    return changed.model_dump(mode="json", exclude_defaults=True)


def _setting(side: TrainingRecipe, files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the setting that names the files that a model needs and its recipe does not name."""
    loaded = {_digest(path) for path in side.model.load}
    wanted = set(find_needed(design_model(side).spec).values()) - loaded
    missing = [path for digest, path in files.items() if digest in wanted]
    return {LOAD: [*side.model.load, *missing]} if missing else {}


def _digest(path: File) -> str:
    return hashlib.sha256(read_whole(Path(path))).hexdigest()
