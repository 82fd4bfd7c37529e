"""Commands that repeat what a page shows, from the options that were kept with it.

Each works from any folder: what was typed as a relative path, and is there, is written in full.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from layerlab.recipes.paths import DOCUMENTATION, KEPT
from layerlab.records.json_values import Json
from layerlab.validation import expand_home, join_words

# What was given to a Python function has no name that a command could take.
_UNNAMED = {"memory", "texts", "input_ids", "standard input"}
_SAMPLE = "built-in sample"
_NO_TEXT = "no text: weights alone"
# Options whose values are files or folders, or names of something else.
_PLACES = {"text", "load", "policy", "against", "data", "tokenizer", "corpus"}
_TASK_FILES = (".yaml", ".yml")
# How the name of a setting with a policy ends.
_KEPT = " kept"


def inspect(report: Mapping[str, Any]) -> str | None:
    """Return the command that repeats an inspection.

    None where its models or its text came from Python, or from a report that does not say.

    Example:
        >>> asked = {"models": ["llama"], "text": "a b.txt", "measures": {"gain": {"steps": 2}}}
        >>> inspect({"options": asked})
        "layerlab inspect llama --text 'a b.txt' --measures 'gain(steps=2)'"
    """
    asked = report["options"]
    models, text = asked.get("models") or (), asked.get("text")
    if not models or not text or _UNNAMED & {*map(str, models), str(text)}:
        return None
    given = {
        "text": None if text in (_SAMPLE, _NO_TEXT) else text,
        "samples": asked.get("samples"),
        "context": asked.get("context"),
        "measures": ",".join(_measures(asked.get("measures") or {})),
        "device": asked.get("device"),
        "dtype": asked.get("dtype"),
        "load": asked.get("load"),
        "trust_remote_code": asked.get("trust_remote_code"),
        "allow_unused": asked.get("allow_unused"),
        "weights": text == _NO_TEXT,
    }
    return _command("inspect", map(str, models), given)


def evaluate(content: Mapping[str, Any]) -> str | None:
    """Return the command that repeats an evaluation.

    None where a model or a policy came from Python.

    Example:
        >>> arms = [{"source": "llama", "precision": ""}, {"source": "llama", "precision": "bf16"}]
        >>> asked = {"tasks": "my.yaml", "format": "bf16", "trust_tasks": True}
        >>> evaluate({"request": asked, "arms": arms, "options": {"shots": 2, "cot": False}})
        'layerlab evaluate llama --tasks my.yaml --format bf16 --trust-tasks --shots 2'
    """
    arms, request = content["arms"], content["request"]
    models = dict.fromkeys(str(arm.get("source") or arm.get("arm")) for arm in arms)
    kept = any(str(arm.get("precision")).endswith(_KEPT) for arm in arms)
    if _UNNAMED & set(models) or (kept and not request.get("policy")):
        return None
    tables = {"compare": "published" in content}
    return _command("evaluate", models, {**request, **content["options"], **tables})


def run_recipe(name: str, recipe: Json) -> str:
    """Return the command that runs a recipe saved as recipe.toml, with the Python files it names.

    Example:
        >>> own = {"variant": "mine", "set": {"model.load": ["my idea.py"]}}
        >>> run_recipe("compare", {"compare": {"arms": ["llama", own]}})
        "layerlab compare recipe.toml --load 'my idea.py'"
    """
    return _command(name, (), {"load": list(dict.fromkeys(_files(recipe)))}, "recipe.toml")


def recipe_from_anywhere(settings: Any, key: str = "") -> Any:
    """Return the settings of a recipe with its texts and Python files as full paths, if they exist.

    Example:
        >>> recipe_from_anywhere({"sources": [{"text": "python-docs"}, {"text": "none.txt"}]})
        {'sources': [{'text': 'python-docs'}, {'text': 'none.txt'}]}
    """
    if isinstance(settings, Mapping):
        return {name: recipe_from_anywhere(one, name) for name, one in settings.items()}
    if isinstance(settings, list | tuple):
        return [recipe_from_anywhere(one, key) for one in settings]
    if not isinstance(settings, str) or settings in (DOCUMENTATION, *KEPT):
        return settings
    return _full(settings) if key == "text" or key.split(".")[-1] == "load" else settings


def change_vocabulary(asked: Json) -> str:
    """Return the command that changes a vocabulary again.

    Example:
        >>> change_vocabulary({"tokenizer": "t", "size": "+9", "corpus": ["a", "b"]})
        'layerlab adapt vocabulary --tokenizer t --size +9 --corpus a --corpus b --out changed'
    """
    return _command("adapt vocabulary", (), {**asked, "out": "changed"})


def _files(settings: Any, inside: str = "") -> Iterator[str]:
    """Yield the Python files that the settings of a recipe and of its arms name."""
    if isinstance(settings, list | tuple):
        for one in settings:
            yield from _files(one, inside)
    elif isinstance(settings, Mapping):
        for key, value in settings.items():
            if f"{inside}.{key}".endswith("model.load") and isinstance(value, list | tuple):
                yield from map(str, value)
            else:
                yield from _files(value, key)


def _measures(asked: Json) -> Iterator[str]:
    """Yield each measure with all its options: the usual ones may be others in a later version."""
    for name, options in asked.items():
        given_options = {
            key: _full(value) if key in _PLACES and isinstance(value, str) else value
            for key, value in options.items()
            if value is not None
        }
        given = ",".join(f"{key}={_literal(value)}" for key, value in given_options.items())
        yield f"{name}({given})" if given else name


def _literal(value: Any) -> str:
    """Write a value as Python reads it, with the quotes that a shell leaves alone."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _command(name: str, models: Any, given: Json, recipe: str | None = None) -> str:
    argv = ["layerlab", *name.split(), *([] if recipe is None else [recipe])]
    argv += [_quote(_full(str(model))) for model in models]
    for key, written in given.items():
        option, value = f"--{key.replace('_', '-')}", _place(key, written)
        if value is True:
            argv.append(option)
        elif isinstance(value, list | tuple):
            argv += [word for one in value for word in (option, _quote(one))]
        elif value is not None and value is not False and value != "":
            argv += [option, _quote(value)]
    return " ".join(argv)


def _place(key: str, value: Any) -> Any:
    """Return the value of an option, in which paths that exist are full paths."""
    if isinstance(value, list | tuple):
        return [_place(key, one) for one in value]
    if key == "tasks" and isinstance(value, str):
        parts = [word.strip() for word in value.split(",")]
        return ",".join(_full(word) if word.endswith(_TASK_FILES) else word for word in parts)
    is_path = isinstance(value, str | PurePath) and key in _PLACES
    return _full(str(value)) if is_path else value


def _full(word: str) -> str:
    """Return the full path of a file or folder that exists, and any other word as it is."""
    try:
        path = expand_home(word)
        return str(path.absolute()) if word and path.exists() else word
    except (OSError, ValueError, RuntimeError):  # no name that a file could have
        return word


def _quote(value: Any) -> str:
    return join_words([value.as_posix() if isinstance(value, PurePath) else str(value)])
