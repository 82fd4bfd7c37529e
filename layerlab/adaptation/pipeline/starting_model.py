"""The model that a recipe begins with, before its weights are read: shape, files, what it reads."""

from collections.abc import Callable
from math import inf
from typing import Any

import torch

from layerlab.adaptation.pipeline.amounts import find_words
from layerlab.adaptation.pipeline.overhead import BaseFiles, find_files
from layerlab.adaptation.pipeline.plan import is_shape
from layerlab.adaptation.trainer.arguments import block_of, check_entries
from layerlab.adaptation.trainer.lora import check_mergeable
from layerlab.errors import UserError
from layerlab.loading.folders import find_folder
from layerlab.loading.weights.saved import configuration as read_configuration
from layerlab.loading.weights.weightless import empty
from layerlab.model.build import configuration
from layerlab.model.design import design
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.system.logs import quiet_libraries
from layerlab.tokenization.load import entries
from layerlab.training.run_spec import design_model
from layerlab.validation import expand_home


def model_maker(recipe: AdaptationRecipe) -> Callable[[], Any] | None:
    """Return what makes the base of a recipe on the meta device; None where no shape is known."""
    config = base_configuration(recipe)
    if config is None:
        return None
    if recipe.vocabulary is not None:
        given = recipe.vocabulary.size
        config.vocab_size = config.vocab_size * given.startswith("+") + int(given)
    dtype = getattr(torch, recipe.base.dtype)
    return lambda: empty(config, str(recipe.base.model)).to(dtype)


def base_files(recipe: AdaptationRecipe) -> BaseFiles | None:
    """Return the files of a base that is here with its weights; None of another."""
    folder = expand_home(str(recipe.base.model))
    if recipe.base.model is None or not folder.is_dir():
        return None
    return find_files(folder)


def check_base(recipe: AdaptationRecipe) -> None:
    """Refuse a base that is to learn what it cannot read: tokens without a row, or rows too long.

    Nor may it be given adapters that cannot be merged into it. What is not here, or is made by an
    earlier stage, is left to the stages.

    Raises:
        UserError: the tokenizer has more entries than the model embeds, rows are longer than its
            context, or several of its modules hold a weight that is to have an adapter.
    """
    for own in recipe.arms().values():
        sections = [one for one in (own.pretrain, own.sft) if one is not None]
        config = base_configuration(own) if sections else None
        if config is None:
            continue
        text = config.get_text_config()
        # The model decides; it takes seconds to put it together, and the numbers mostly suffice.
        context = getattr(text, "max_position_embeddings", None) or inf
        if any(one.lora or (one.block_size or 0) > context for one in sections):
            model = empty(config, str(own.base.model))
            for one in sections:
                block_of(model, one)
                if one.lora:
                    check_mergeable(model, one.lora)
        if own.vocabulary is None and _count_entries(own) > getattr(text, "vocab_size", inf):
            check_entries(empty(config, str(own.base.model)), find_words(own))


def _count_entries(recipe: AdaptationRecipe) -> int:
    """Return the entries of a base's tokenizer; 0 where it is not here yet."""
    try:
        with quiet_libraries():
            return entries(find_words(recipe))
    except UserError:
        return 0


def base_configuration(recipe: AdaptationRecipe) -> Any:
    """Return the configuration of the base, of which no weights are read; None where none is here.

    The name of a preset stands for its shape.
    """
    training = recipe.training()
    if training is not None:
        sized = training.change({"model.vocab": training.model.vocab or training.data.vocab_size})
        found = design_model(sized)
        return configuration(found.variant.name, found.spec, found.shape, base=found.base)
    name = str(recipe.base.model)
    if is_shape(name):
        found = design(name)
        return configuration(found.variant.name, found.spec, found.shape)
    try:
        with quiet_libraries():
            return read_configuration(find_folder(name, with_weights=False))
    except UserError:  # no such name, no network, a strange configuration
        return None
