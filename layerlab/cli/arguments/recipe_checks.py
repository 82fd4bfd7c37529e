"""Checks of a recipe before torch is imported: models, texts, suites and commands."""

from dataclasses import fields
from typing import Any

from layerlab.errors import UserError
from layerlab.system.untrusted.trust import check_command


def check_model(model: Any, *, own: bool) -> None:
    """Refuse a training recipe's model that cannot be built.

    Args:
        own: whether files of the user's own may declare its variant and options.
    """
    from layerlab.blocks.shape import Shape
    from layerlab.model.preset import check_named, check_sizes
    from layerlab.model.typed_options import check_options

    if not own:
        check_named([model.variant])
        check_options(model.options)
    sizes = {one.name: getattr(model, one.name) for one in fields(Shape)}
    check_sizes([model.variant], model.preset, sizes)


def check_texts(data: Any) -> None:
    """Refuse texts, or a tokenizer, of a training recipe's data section that are not there."""
    from layerlab.data.sources import check_source
    from layerlab.tokenization.request import find_tokenizer

    for source in (*data.sources, *(data.eval_sources or ())):
        check_source(source)
    if data.trained_tokenizer is None:
        find_tokenizer(data.tokenizer)


def check_adaptation(recipe: Any) -> None:
    """Refuse a recipe for adaptation whose model, texts or rows are not there."""
    from layerlab.data.places import find_text
    from layerlab.data.sources import check_source
    from layerlab.loading.folders import check_found
    from layerlab.recipes.checks import validate

    for arm in recipe.arms().values():
        training = arm.training()
        if training is not None:
            validate(training)
            check_texts(training.data)
        else:
            check_found([str(arm.base.model)])
        for source in (*arm.data.domain, *arm.data.general):
            check_source(source)
        for rows in arm.sft.sources if arm.sft else ():
            find_text(rows.path)


def check_scoring(recipe: Any, *, run: bool) -> None:
    """Refuse suites that there are not or whose data is not here, and commands nobody asked for.

    Args:
        recipe: of a comparison, or of one run, which scores nothing.
        run: whether commands are to run.
    """
    from layerlab.recipes.compared_measures import SUITE, parse_measure

    for measure in recipe.compare.scored if recipe.compare is not None else ():
        parsed = parse_measure(measure)
        if parsed.kind == SUITE:
            from layerlab.evaluation.harness.prepare import check_whole  # a recipe may name none

            try:
                check_whole(parsed.name)
            except UserError as error:
                raise UserError(f"compare.measures has {measure!r}: {error}") from None
        elif run:
            check_command(parsed.name, recipe.compare.commands[parsed.name].run)
