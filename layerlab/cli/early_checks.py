"""What commands refuse before they import torch: an error comes within a second.

Names are looked up in `layerlab.known_names`. Files of the user's own may declare more, which only
running them tells: with them, names are checked later.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.known_names import MEASURES, OF_WEIGHTS
from layerlab.system.trust import check_command


def check_loads(files: Iterable[Path] | None) -> None:
    """Refuse files of `--load` that are not there, or are not Python."""
    from layerlab.system.python_file import check_syntax, read_python_file

    for file in files or ():
        check_syntax(*read_python_file(file))


def check_measures(names: str | None, *, weights: bool, **saliency: str | None) -> None:
    """Refuse measures that there are not, are named twice or read a text that is not given.

    Their options are checked too.

    Args:
        weights: whether no text is read.
        saliency: the text, target and foil that were given beside the names.
    """
    from layerlab.measures.naming import check_once, parse_names, reads_text
    from layerlab.measures.questions import SALIENCY, saliency_options

    named = [] if names is None else parse_names(names, MEASURES)
    check_once(named)
    asked = dict(named)
    for name in asked:
        if weights and name not in OF_WEIGHTS:
            raise reads_text(name, OF_WEIGHTS)
        _check_options(name, asked[name])
    if given := saliency_options(**saliency, asked=SALIENCY in asked):
        _check_options(SALIENCY, {**asked.get(SALIENCY, {}), **given})


def _check_options(name: str, given: Mapping[str, Any]) -> None:
    """Refuse options of a measure that it does not have or take, or that cannot go together."""
    from layerlab import known_options
    from layerlab.measures.questions import SALIENCY, check_formats, check_saliency

    known = known_options.MEASURES.get(name, {})
    usual = {option: value for option, (value, _) in known.items()}
    options = {**usual, **known_options.check_measure(name, given, known)}
    if name == SALIENCY:
        check_saliency(options)
    if "formats" in options:
        check_formats(options)


def check_formats(given: str | None) -> None:
    """Refuse number formats that there are not."""
    from layerlab.numerics.formats.formats import parse_formats

    if given is not None:
        parse_formats(given)


def check_policy(file: Path | None) -> None:
    """Refuse a mixed-precision policy that cannot be read."""
    from layerlab.numerics.emulation.policy import load_policy

    if file is not None:
        load_policy(file)


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
        known = parse_measure(measure)
        if known.kind == SUITE:
            from layerlab.evaluation.harness.prepare import check_whole  # a recipe may name none

            try:
                check_whole(known.name)
            except UserError as error:
                raise UserError(f"compare.measures has {measure!r}: {error}") from None
        elif run:
            check_command(known.name, recipe.compare.commands[known.name].run)
