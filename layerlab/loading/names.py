"""Names of models: those that a user gave, and those that a report calls them by."""

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.observe.architecture.effective_weights import list_adapters
from layerlab.records.json_values import json_values

# What folders of models are called that by itself tells none from another.
_GENERIC = re.compile(
    r"hf|models?|weights|checkpoints?|final|outputs?|out|results?|best|last|latest|merged|"
    r"(?:checkpoint|step|epoch)[-_]?\d+",
    re.IGNORECASE,
)
# What holds a model, by an attribute that only it has, and where the model lies in it.
_HOLDERS = {"get_base_model": "get_base_model()", "_orig_mod": "_orig_mod", "module": "module"}


def list_models(model: Any) -> list[Any]:
    """Return the models that a user named, one or several; the built-in default for None.

    Raises:
        UserError: what was given names no model.
    """
    if model is None:
        return [builtin.DEFAULT]
    if isinstance(model, (str, PathLike, PreTrainedModel)):
        return [model]
    if not isinstance(model, Sequence) or not model:
        raise UserError(
            f"model is a {type(model).__name__}; expected a Hub id, a folder, a built-in name "
            f"({', '.join(builtin.NAMES)}), a transformers PreTrainedModel, or a list of them"
            f"{show_inside(model)}"
        )
    strange = [one for one in model if not isinstance(one, (str, PathLike, PreTrainedModel))]
    if strange:
        raise UserError(
            f"model holds a {type(strange[0]).__name__}; expected Hub ids, folders, built-in names "
            f"or transformers PreTrainedModels{show_inside(strange[0])}"
        )
    return list(model)


def show_inside(given: Any) -> str:
    """Return how to get at the model of what holds one: a compiled one, one with adapters."""
    if getattr(getattr(given, "active_peft_config", None), "is_prompt_learning", False):
        return "; what it has learned are prompts, which no weights of a model hold"
    way = next((way for name, way in _HOLDERS.items() if hasattr(given, name)), None)
    return "" if way is None else f": give model.{way}"


def label_models(models: Sequence[Any]) -> list[str]:
    """Return a unique name for each: its own, else its whole path, else with a number."""
    own = [json_values(label(model)) for model in models]
    found: list[str] = []
    for model, name in zip(models, own, strict=True):
        path = name if isinstance(model, PreTrainedModel) else json_values(str(model))
        candidates = [path if own.count(name) > 1 else name]
        candidates += [f"{candidates[0]} ({number})" for number in range(2, len(own) + 2)]
        found.append(next(one for one in candidates if one not in found))
    return found


def label(model: Any) -> str:
    """Return what a report calls a model: its name, end of path, variant, or class.

    One in memory is called with the adapters that change it.
    """
    if isinstance(model, PreTrainedModel):
        own = getattr(model.config, "variant", None) or type(model).__name__
        name = _end_of(Path(model.config._name_or_path or str(own)))
        adapters = list_adapters(model)
        return f"{name} (adapter {', '.join(adapters)})" if adapters else name
    folder = Path(str(model))
    return _end_of(folder.resolve()) if folder.exists() else str(model)


def _end_of(path: Path) -> str:
    """Return the last part of a path, with the one before it where the last says nothing alone.

    Example:
        >>> _end_of(Path("/data/stories/hf")), _end_of(Path("/data/stories")), _end_of(Path("/hf"))
        ('stories/hf', 'stories', 'hf')
    """
    parts = [part for part in path.parts if part != path.anchor]
    return "/".join(parts[-2:] if _GENERIC.fullmatch(path.name) else parts[-1:])
