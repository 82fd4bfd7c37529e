"""Plans immutable runs, each with a folder named after its settings."""

from collections.abc import Mapping

from layerlab.corpus.extent import CorpusSize
from layerlab.errors import UserError
from layerlab.model.cost.match import Match, match
from layerlab.recipes.arms import arms, sides, sort_baselines_first
from layerlab.recipes.checks import validate
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.training import TrainingRecipe
from layerlab.training.run_spec import SIZES, RunSpec, count_costs, design_model, own_code


def resolve_recipe(recipe: TrainingRecipe, extent: CorpusSize) -> TrainingRecipe:
    """Resolve the recipe of one run with its sizes, its block and its updates written out.

    Raises:
        UserError: the vocabulary or the block do not fit the corpus, or the run is empty.
    """
    given = recipe.model.vocab
    if given is not None and given < extent.vocab:
        raise UserError(
            f"model.vocab is {given}, less than the tokenizer's {extent.vocab}; "
            "leave it out, or write a larger one"
        )
    recipe = recipe.change({"model.vocab": given or extent.vocab})
    found = design_model(recipe)
    shape = found.shape
    sizes = {f"model.{name}": getattr(shape, name) for name in SIZES}
    block = recipe.data.block_size or shape.context
    if block > shape.context:
        raise UserError(
            f"data.block_size is {block}, more than the model's context of {shape.context}; "
            f"write block_size = {shape.context}"
        )
    updates = _updates(recipe, block, extent)
    return recipe.change(
        {"model.preset": None, "model.variant": found.variant.name}
        | sizes
        | ({} if found.base is None else {"train.mup_base_head_width": found.base.head_width})
        | {"data.block_size": block, "train.max_steps": updates}
        | {"evaluate.eval_steps": recipe.evaluate.eval_steps or max(1, updates // 10)}
    )


def _updates(recipe: TrainingRecipe, block: int, extent: CorpusSize) -> int:
    """Return the length of a run in updates."""
    train = recipe.train
    each = train.batch_size * block
    if train.max_steps is not None:
        return train.max_steps
    passes = train.num_train_epochs or 0
    wanted = extent.of_passes(passes) if train.tokens is None else train.tokens
    if round(wanted / each) < 1:
        raise UserError(
            f"{wanted:g} tokens are less than one update of {train.batch_size} x {block}; "
            "write more tokens or epochs, or a smaller batch"
        )
    return round(wanted / each)


def plan(
    recipe: TrainingRecipe, extent: CorpusSize, own: Mapping[str, CorpusSize] | None = None
) -> list[RunSpec]:
    """Plan every run of a recipe: one, or arms x rates x seeds; seeds vary slowest.

    So the first runs to finish already make a comparison, with few seeds.

    Args:
        extent: of the recipe's corpus.
        own: of the corpora of arms that have one of their own.

    Raises:
        UserError: an arm cannot be built, matched, or resolved, or a run cannot be carried out.
    """
    runs = _runs(recipe, {arm: extent for arm in sides(recipe)} | dict(own or {}))
    for run in runs:
        validate(run.recipe)
    return runs


def _runs(recipe: TrainingRecipe, extents: Mapping[str, CorpusSize]) -> list[RunSpec]:
    if recipe.compare is None:
        ((arm, extent),) = extents.items()
        resolved = resolve_recipe(recipe, extent)
        return [RunSpec(arm=arm, recipe=resolved, digest=extent.digest, code=own_code(resolved))]
    comparison = recipe.compare
    matched = _match(recipe, comparison, extents)
    code = {name: own_code(side) for name, (side, _) in matched.items()}
    return [
        RunSpec(
            arm=name,
            recipe=side.change({"train.seed": seed, "train.learning_rate": rate}),
            digest=extents[name].digest,
            match=found,
            code=code[name],
        )
        for seed in comparison.seeds
        for name, (side, found) in matched.items()
        for rate in comparison.learning_rates or (side.train.learning_rate,)
    ]


def _match(
    recipe: TrainingRecipe, comparison: CompareSection, extents: Mapping[str, CorpusSize]
) -> dict[str, tuple[TrainingRecipe, Match | None]]:
    """Match each arm's recipe to the size that its baseline has in the end."""
    resolved = {name: resolve_recipe(side, extents[name]) for name, side in sides(recipe).items()}
    found: dict[str, tuple[TrainingRecipe, Match | None]] = {}
    for arm in sort_baselines_first(arms(comparison, recipe)):
        name, baseline = str(arm.name), str(arm.against)
        side = resolved[name]
        if comparison.match not in {"parameters", "flops"} or baseline == name:
            found[name] = side, None
            continue
        own, wanted = design_model(side), count_costs(found[baseline][0])
        near = match(own.spec, own.shape, wanted, by=comparison.match_by, on=comparison.match)
        sizes = {f"model.{size}": getattr(near.shape, size) for size in SIZES}
        found[name] = side.change(sizes), near
    return {name: found[name] for name in resolved}
