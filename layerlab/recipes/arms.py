"""The arms of a comparison, each as a recipe of its own; without torch."""

from collections.abc import Sequence

from layerlab.errors import UserError
from layerlab.recipes.comparison_sections import Arm, CompareSection
from layerlab.recipes.training import LENGTHS, TrainingRecipe
from layerlab.recipes.training_sections import DataSection, Source
from layerlab.validation import suggest

# Settings of [run] by which the runs of all arms are carried out together.
_CARRIED_OUT = (
    *("executor", "slurm", "max_parallel", "num_processes", "sharding"),
    *("timeout_minutes", "max_attempts"),
)


def arms(comparison: CompareSection, recipe: TrainingRecipe) -> list[Arm]:
    """Return the arms with their names, variants and baselines written out; a baseline is its own.

    Raises:
        UserError: two have one name, or a baseline is none of them, or has none itself.
    """
    found = []
    for one in comparison.arms:
        arm = Arm(variant=one) if isinstance(one, str) else one
        variant = arm.variant or recipe.model.variant
        found.append(arm.model_copy(update={"name": arm.name or variant, "variant": variant}))
    names = [str(arm.name) for arm in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            f"two arms are called {twice!r}; give one of them a name of its own: "
            f'{{variant = "...", name = "..."}}'
        )
    strange = next(
        (
            name
            for name in names
            if not name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        ),
        None,
    )
    if strange is not None:
        raise UserError(
            f"an arm is called {strange!r}, which names folders too; "
            "expected letters, digits, - _ and ."
        )
    for baseline in (comparison.baseline, *(arm.against for arm in found)):
        if baseline is not None and baseline not in names:
            hint = suggest(baseline, names)
            raise UserError(f"the baseline {baseline!r} is no arm; {hint}arms: {', '.join(names)}")
    first = comparison.baseline or names[0]
    found = [arm.model_copy(update={"against": arm.against or first}) for arm in found]
    sort_baselines_first(found)
    return found


def sort_baselines_first(arms: Sequence[Arm]) -> list[Arm]:
    """Return arms with their baselines written out, each after its own.

    Raises:
        UserError: arms are held against each other in a circle.
    """
    ordered, left = list[Arm](), list(arms)
    while left:
        known = [one.name for one in ordered]
        ready = [one for one in left if one.against in (one.name, *known)]
        if not ready:
            circle = ", ".join(f"{one.name!r} against {one.against!r}" for one in left)
            raise UserError(
                f"arms are held against each other, and none is a baseline: {circle}; leave out "
                "one against, or hold an arm against itself, which makes it a baseline"
            )
        ordered += ready
        left = [one for one in left if one not in ready]
    return ordered


def is_fitted(arm: Arm) -> bool:
    """Return whether an arm that is matched by time gets its length from its baseline."""
    given = any(f"train.{name}" in arm.set for name in LENGTHS)
    return arm.against != arm.name and not given


def sides(recipe: TrainingRecipe) -> dict[str, TrainingRecipe]:
    """Return the recipe of each arm by name, sizes and lengths as given.

    A recipe that compares nothing is one side. An arm that trains on other text than the recipe's
    is judged on the recipe's all the same.

    Raises:
        UserError: two arms have one name, a baseline is none of them, a seed or rate stands there
            twice, an arm takes no such setting, has a seed of its own or a rate beside those of
            all, would be carried out in another way, or judged on other text than the others.
    """
    if recipe.compare is None:
        return {recipe.model.variant: recipe}
    _check_repeats(recipe.compare)
    single = recipe.change({"compare": None, "ladder": None})
    found = {str(arm.name): _side(arm, single) for arm in arms(recipe.compare, single)}
    for name, side in found.items():
        _check_shared(name, side, single, recipe.compare)
    return {name: _judge_alike(name, side, single) for name, side in found.items()}


def _check_repeats(comparison: CompareSection) -> None:
    if len(set(comparison.seeds)) < len(comparison.seeds):
        once = list(dict.fromkeys(comparison.seeds))
        raise UserError(
            f"compare.seeds {list(comparison.seeds)} repeat one; each counts once: "
            f"write seeds = {once}"
        )
    if len(set(comparison.learning_rates)) < len(comparison.learning_rates):
        raise UserError(
            f"compare.learning_rates {list(comparison.learning_rates)} repeat one; write each once"
        )


def _check_shared(
    name: str, side: TrainingRecipe, single: TrainingRecipe, comparison: CompareSection
) -> None:
    """Refuse an arm with a seed or a rate of its own, or another way to carry out its runs."""
    swept = {"seed": "seeds"}
    if comparison.learning_rates:
        swept["learning_rate"] = "learning_rates"
    for setting, several in swept.items():
        if getattr(side.train, setting) != getattr(single.train, setting):
            raise UserError(
                f"the arm {name!r} sets train.{setting}, and every arm runs with each of "
                f"compare.{several}; take it out of the arm, or change compare.{several}"
            )
    for setting in _CARRIED_OUT:
        if getattr(side.run, setting) != getattr(single.run, setting):
            raise UserError(
                f"the arm {name!r} sets run.{setting}, which all arms share; take it out of the "
                "arm, and write it in [run]"
            )


def _side(arm: Arm, single: TrainingRecipe) -> TrainingRecipe:
    for path in arm.set:
        section = path.split(".")[0]
        if section in ("compare", "ladder"):
            raise UserError(
                f"the arm {arm.name!r} sets {path}, which all arms share; take it out of the arm, "
                f"and write it in [{section}]"
            )
    options = {**single.model.options, **arm.options} if arm.options else single.model.options
    return single.change({"model.variant": arm.variant, "model.options": dict(options), **arm.set})


def _judge_alike(name: str, side: TrainingRecipe, single: TrainingRecipe) -> TrainingRecipe:
    """Return an arm's recipe with the held-out text that all arms have."""
    own, common = side.data, single.data
    for setting in ("validation_fraction", "eval_sources"):
        if getattr(own, setting) != getattr(common, setting):
            raise UserError(
                f"the arm {name!r} sets data.{setting}, and would be judged on other text than the "
                f"other arms; take it out of the arm, and write {setting} in [data], for all"
            )
    if own.eval_sources is not None or _texts(own) == _texts(common):
        return side
    return side.change(
        {"data.eval_sources": [one.model_dump(mode="json") for one in common.sources]}
    )


def _texts(data: DataSection) -> list[Source]:
    """Return the text sources without their shares of a batch."""
    return [one.model_copy(update={"weight": 1.0}) for one in data.sources]
