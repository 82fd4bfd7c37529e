"""Checks of commands before torch is imported: an error comes within a second.

Names are looked up in `layerlab.known_names`. Files of the user's own may declare more, which only
running them tells: with them, names are checked later.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from layerlab.known_names import MEASURES, OF_WEIGHTS


def check_loads(files: Iterable[Path] | None) -> None:
    """Refuse files of `--load` that are not there, or are not Python."""
    from layerlab.system.untrusted.python_file import check_syntax, read_python_file

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

    declared = known_options.MEASURES.get(name, {})
    usual = {option: value for option, (value, _) in declared.items()}
    options = {**usual, **known_options.check_measure(name, given, declared)}
    if name == SALIENCY:
        check_saliency(options)
    if "formats" in options:
        check_formats(options)


def check_formats(given: str | None) -> None:
    """Refuse number formats that there are not."""
    from layerlab.numerics.formats.format_list import parse_formats

    if given is not None:
        parse_formats(given)


def check_policy(file: Path | None) -> None:
    """Refuse a mixed-precision policy that cannot be read."""
    from layerlab.numerics.emulation.policies.policy import load_policy

    if file is not None:
        load_policy(file)
