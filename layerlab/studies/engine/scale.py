"""The scale of a verdict: the models that it was judged on, with their parameters and tokens."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from layerlab import builtin
from layerlab.studies.engine.study import Study

# What a draw is where one text goes through the built-in models: more draws are not more models.
PASSAGES = "passages of one text, one trained model of each kind"
TABLES = "arithmetic on printed tables"
# Of a study that counts, or reads what is printed.
COUNTED: Mapping[str, Any] = {"cost": "1 second", "draws": 1, "scale": TABLES, "fixed": True}
CASES = "constructed cases without a model"
_NUMBER = r"[\d.]+(?: [kMB])?(?: to [\d.]+)? [kMB]"
_TRAINED = re.compile(rf"(?:.+: )?({_NUMBER} parameters, ({_NUMBER}) tokens)")
_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9}


def models(parameters: Sequence[int], tokens: Sequence[int]) -> str:
    """Describe trained models in words; several sizes or lengths become a range.

    Example:
        >>> models([1_410_688, 1_411_072], [1_228_800])
        '1.4 M parameters, 1.2 M tokens'
    """
    size, length = _range(parameters), _range(tokens)
    return f"{size} parameters, {length} tokens"


def count_models(count: int) -> str:
    """Describe how many models there are.

    Example:
        >>> count_models(1), count_models(3)
        ('one model', '3 models')
    """
    return "one model" if count == 1 else f"{count} models"


def comparison_scale(content: Mapping[str, Any], arms: Sequence[str]) -> str:
    """Describe the scale of some arms of a comparison; empty without a finished run.

    Args:
        content: of `comparison.json`.
    """
    sizes = [one.get("parameters") for one in content["rows"] if one["arm"] in arms]
    tokens = [one.get("tokens") for one in content["runs"] if one["arm"] in arms]
    known = [[one for one in found if one is not None] for found in (sizes, tokens)]
    return models(*known) if all(known) else ""


def random_networks(layers: int | str, width: int | str) -> str:
    """Describe random networks; an option of the study in braces stands for its value."""
    if layers == 1:
        return f"single random layers of width {width}"
    return f"random networks of up to {layers} layers, width {width}"


def with_scale(
    verdict: Mapping[str, Any], content: Mapping[str, Any], study: Study
) -> dict[str, Any]:
    """Complete a verdict with its unit and its scale, by default those of its study.

    Args:
        content: of `study.json`: settings, unit and, where models were trained or given, their
            scale.
        study: what declares the scale otherwise.
    """
    # A result of an earlier version may know fewer options.
    settings = {**study.options, **content["settings"]}
    drawn = f"{settings['draws']:,} {content['unit']}"
    scale = verdict.get("scale") or content.get("scale") or study.scale.format(**settings)
    unit = verdict.get("unit") or drawn
    if given := content.get("given"):
        scale = scale.replace(BUILT_IN, given["scale"])
        unit = unit.replace(PASSAGES, given["unit"])
    return {**verdict, "unit": unit, "scale": scale}


def trained_scale(scale: str) -> str:
    """Return parameters and tokens, if a verdict is on trained models alone; else nothing.

    Example:
        >>> trained_scale("built-in models: 0.45 M parameters, 7.4 M tokens")
        '0.45 M parameters, 7.4 M tokens'
    """
    found = _TRAINED.fullmatch(scale)
    return "" if found is None else found[1]


def length(scale: str) -> float:
    """Return the most tokens of training that a scale names; 0 where nothing was trained."""
    found = _TRAINED.fullmatch(scale)
    if found is None:
        return 0.0
    number, unit = found[2].split(" to ")[-1].split()
    return float(number) * _UNITS[unit]


def _range(values: Sequence[int]) -> str:
    low, high = short(min(values)), short(max(values))
    if low == high:
        return low
    return f"{low.removesuffix(high[-2:])} to {high}"


def short(value: int) -> str:
    """Format a number with two digits and a unit, with all before the point from a hundred on.

    Example:
        >>> short(1_410_688), short(99_700_000), short(999_700_000)
        ('1.4 M', '100 M', '1 B')
    """
    # What would be rounded up to the next unit has that unit.
    unit = "B" if value >= 999.5 * _UNITS["M"] else "M" if value >= 99.5 * _UNITS["k"] else "k"
    number = value / _UNITS[unit]
    return f"{number:.0f} {unit}" if number >= 99.5 else f"{number:.2g} {unit}"


BUILT_IN = f"built-in models: {models([builtin.PARAMETERS], [builtin.TOKENS])}"
# Of a study that reads passages in the built-in models.
READ: Mapping[str, Any] = {"models": builtin.NAMES, "scale": BUILT_IN, "unit": PASSAGES}
