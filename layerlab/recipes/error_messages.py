"""Describes what a setting takes, with an example, from the JSON schema of its section."""

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

Schema = Mapping[str, Any]
_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "object": "a table",
}
_LIMITS = {
    "minimum": "from {:g}",
    "exclusiveMinimum": "above {:g}",
    "maximum": "to {:g}",
    "exclusiveMaximum": "below {:g}",
}
_NONE = {"type": "null"}
# Where a setting has neither a default nor an example of its own.
_EXAMPLES: Mapping[str, Any] = {
    "integer": 128,
    "number": 1.0,
    "string": "NAME",
    "boolean": True,
    "object": {},
}


def describe_expected(
    kind: type[BaseModel], path: Sequence[str], given: Any = None
) -> tuple[str, str, Any] | None:
    """Return what the setting at a path takes, which setting is then written, and a value for it.

    Args:
        kind: the section that the path begins in.
        path: names of settings, and places in lists.
        given: what stands there; of choices the example is the nearest to it.

    Returns:
        Nothing where the path leads into a table of free content.

    Example:
        >>> from layerlab.recipes.training import TrainingRecipe
        >>> describe_expected(TrainingRecipe, ["train", "batch_size"])
        ('a whole number from 1 to 1e+15', 'train.batch_size', 16)
        >>> describe_expected(TrainingRecipe, ["compare", "seeds", "0"])
        ('a whole number from 0 to 1e+15', 'compare.seeds', [1, 2, 3])
        >>> describe_expected(TrainingRecipe, ["train", "parametrization"], "muP")[-1]
        'mup'
    """
    root = _schema(kind)
    # A list is set whole; within a table of a list, a setting is known by its own name.
    last = max((index for index, part in enumerate(path) if not part.isdigit()), default=-1)
    setting = path[: last + 1]
    taken, written = _at(root, path), _at(root, setting)
    if not setting or taken is None or written is None:
        return None
    name = setting[-1] if any(map(str.isdigit, setting)) else ".".join(setting)
    near = difflib.get_close_matches(str(given).lower(), written.get("enum", ()), n=1)
    return _words(root, taken), name, near[0] if near else _example(root, written)


@cache
def _schema(kind: type[BaseModel]) -> Schema:
    return kind.model_json_schema()


def _at(root: Schema, path: Sequence[str]) -> Schema | None:
    """Return the schema at a path."""
    found: Schema | None = root
    for part in path:
        inside = (_inside(one, part) for one in _branches(root, found or {}))
        found = next((one for one in inside if one is not None), None)
    return found


def _inside(schema: Schema, part: str) -> Schema | None:
    named = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
    found = schema.get("items") if part.isdigit() else named
    return found if isinstance(found, Mapping) else None


def _branches(root: Schema, schema: Schema) -> list[Schema]:
    """Return the types that a schema allows, null left out."""
    if "$ref" in schema:
        return [{**root["$defs"][schema["$ref"].rpartition("/")[2]], "type": "object"}]
    if "anyOf" not in schema:
        return [schema]
    return [kind for one in schema["anyOf"] for kind in _branches(root, one) if kind != _NONE]


def _words(root: Schema, schema: Schema) -> str:
    kinds = (_kind(root, one) for one in _branches(root, schema))
    return " or ".join(dict.fromkeys(kinds))


def _kind(root: Schema, schema: Schema) -> str:
    if "enum" in schema or "const" in schema:
        *others, last = map(repr, schema.get("enum") or [schema["const"]])
        return f"{', '.join(others)} or {last}" if others else last
    if schema.get("type") == "array":
        least, most = schema.get("minItems"), schema.get("maxItems")
        size = f" of {least}{'' if least == most else ' or more'}" if least else ""
        return f"a list{size}, each {_words(root, schema['items'])}"
    if "pattern" in schema:
        return str(schema["description"])
    if schema.get("minLength"):
        return "a text that is not empty"
    limits = [limit.format(schema[key]) for key, limit in _LIMITS.items() if key in schema]
    return " ".join([_KINDS.get(str(schema.get("type")), "a value"), *limits])


def _example(root: Schema, schema: Schema) -> Any:
    """Return the schema's example, else its default, else a value of its type."""
    if "examples" in schema:
        return schema["examples"][0]
    first = _branches(root, schema)[0]
    if schema.get("default") not in (None, "", []) and "$ref" not in schema:
        return schema["default"]
    if "enum" in first:
        return first["enum"][0]
    if first.get("type") == "array":
        return [_example(root, first["items"])]
    return _EXAMPLES.get(str(first.get("type")), "NAME")
