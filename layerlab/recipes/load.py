"""Loads tables of settings from TOML or plain values, and names what is wrong."""

import copy
import difflib
import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from importlib.resources import files
from importlib.resources.abc import Traversable
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from layerlab.errors import UserError
from layerlab.known_names import VARIANTS
from layerlab.recipes.error_messages import describe_expected
from layerlab.recipes.toml import write_value
from layerlab.recipes.training_sections import FROM_FIRST_WEIGHTS
from layerlab.records.parse import toml_of
from layerlab.records.renamed_settings import NAMES, current_changes, current_settings
from layerlab.system.files import check_size
from layerlab.validation import short_repr

Settings = TypeVar("Settings", bound=BaseModel)
LISTS = {"training": "layerlab compare", "adaptation": "layerlab adapt"}
P = ParamSpec("P")
T = TypeVar("T")


def validate_table(
    kind: type[Settings], content: Mapping[str, Any], source: str, settings: Collection[str] = ()
) -> Settings:
    """Validate sections from plain values.

    Args:
        source: what errors call it.
        settings: that were set by their paths, and so name their place themselves.

    Raises:
        UserError: a key that no section has, or a value that a setting does not take.
    """
    try:
        # By way of JSON: a strict model then takes its arrays as tuples, and nothing else as such.
        return kind.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        raise UserError(
            _describe(kind, max(error.errors(), key=_telling), source, settings)
        ) from None


def with_settings(
    recipe: Settings, settings: Mapping[str, Any], exclusive: Mapping[str, Sequence[str]]
) -> Settings:
    """Return the same with settings by their paths, as `{"train.batch_size": 8}`.

    Args:
        exclusive: by the name of a table, settings of which the one that is set ousts the others.

    Raises:
        UserError: there is no such setting, or it takes no such value.
    """
    settings = current_changes(settings)
    content = merge_settings(type(recipe), recipe.model_dump(mode="json"), settings, exclusive)
    return validate_table(type(recipe), content, ", ".join(settings), settings)


def merge_settings(
    kind: type[BaseModel],
    content: Mapping[str, Any],
    settings: Mapping[str, Any],
    exclusive: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Merge plain values with settings given by path, without checking them.

    What is set may be just what the values lack.

    Args:
        exclusive: as for `with_settings`.

    Raises:
        UserError: there is no such setting.
    """
    merged: dict[str, Any] = copy.deepcopy(dict(content))
    for path, value in settings.items():
        table = merged
        head, options, option = path.partition(".options.")
        *tables, last = [*head.split("."), *(["options", option] if options else [])]
        for depth, name in enumerate(tables):
            if table.get(name) is None and name in _fields(kind, tables[:depth]):
                table[name] = {}
            if isinstance(table.get(name), list):
                raise _list(path, name, table[name])
            if isinstance(table.get(name), str) and _section(kind, tables[: depth + 1]):
                raise _refuse_name(path, ".".join(tables[: depth + 1]), table[name])
            if not isinstance(table.get(name), dict):
                raise _unknown(kind, path)
            table = table[name]
        if last not in table and last not in _keys(kind, tables) and not options:
            raise _unknown(kind, path)
        table[last] = value
        others = exclusive.get(tables[-1], ()) if tables else ()
        if last in others:
            table.update({name: None for name in others if name != last})
    return merged


def rename_settings(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return settings under the names of today; whoever gave older ones is warned in one line.

    Raises:
        UserError: a setting is given under both of its names.
    """
    renamed: list[str] = []
    found = current_settings(content, renamed)
    if renamed:
        more = f" and {len(renamed) - 1} more" if len(renamed) > 1 else ""
        warnings.warn(
            f"{source}: {renamed[0].replace(' = ', ' is now called ')}{more}; the names of 0.1 are "
            "still read, and docs/training.md lists those of today",
            FutureWarning,
            stacklevel=2,
        )
    return found


def read_older_names(table: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function take the settings of a recipe's table by their names of 0.1 too."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> T:
            renamed: Any = rename_settings({table: given}, function.__name__)[table]
            return function(*args, **renamed)

        return call

    return decorate


def load_table(
    given: str | PathLike[str], home: str, beside: Path = Path()
) -> tuple[dict[str, Any], str]:
    """Load a TOML file, or a packaged one by name, and its name for errors.

    The content has a `name`: what the file is called, where it gives no other.

    Args:
        home: the folder of the library that holds some by name: training or adaptation.
        beside: the folder in which a file may have been meant, where there is no such name.

    Raises:
        UserError: there is none, or it is not TOML.
    """
    path = Path(given)
    # A comparison of that name may have been carried out here, in a folder that it is called by.
    own = path.is_dir() and str(given) in list_packaged(home)
    if own or not (path.suffix or path.exists()):
        return {"name": str(given), **toml_of(_find_packaged(str(given), home, beside))}, str(given)
    try:
        check_size(path)
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows put a mark in front
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(
            f"cannot read the recipe {str(path)!r}: {reason}; expected a TOML file, or the name of "
            f"a recipe as {LISTS[home]} lists them"
        ) from None
    try:
        content = toml_of(text)
    except ValueError as error:
        raise UserError(f"{path} is not TOML: {error}; mend that line") from None
    return {"name": path.stem, **content}, str(path)


def list_packaged(home: str) -> list[str]:
    """List names of the recipes that come with the package: of `training` or of `adaptation`."""
    entries = _library(home).iterdir()
    return sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".toml"))


def _library(home: str) -> Traversable:
    return files("layerlab.recipes") / "library" / home


def _find_packaged(name: str, home: str, beside: Path) -> str:
    known = list_packaged(home)
    if name not in known:
        if home == "training" and set(given := name.split(",")) <= set(VARIANTS):
            raise _refuse_variants(given)
        file = f"{name}.toml"
        near = [file] if (beside / file).is_file() else difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"no recipe {short_repr(name)}; {hint}expected a TOML file or one of {', '.join(known)}"
        )
    return (_library(home) / f"{name}.toml").read_text(encoding="utf-8")


def _refuse_variants(names: Sequence[str]) -> UserError:
    """Return the error of variants in the place of a recipe: what they are typed beside."""
    name, *others = names
    pair = names if others else [name, "gpt2" if name == "llama" else "llama"]
    one = "" if others else f", or layerlab train smoke --set model.variant={name}"
    are = "variants, no recipe" if others else "a variant, no recipe"
    return UserError(
        f"{short_repr(','.join(names))} names {are}; type layerlab compare smoke --arms "
        f"{','.join(pair)}{one}"
    )


def _telling(error: ErrorDetails) -> tuple[int, bool, bool]:
    """Rank errors: those deeper inside a table say more.

    What is missing may only be misspelled.
    """
    return len(error["loc"]), "str" not in error["loc"], error["type"] != "missing"


def _describe(
    kind: type[BaseModel], error: ErrorDetails, source: str, settings: Collection[str]
) -> str:
    """Describe the first error of a validation, in one line."""
    # A table where a name may stand too is tried as both: only its own errors are of use.
    where = [str(part) for part in error["loc"] if not _branch(str(part))]
    path = ".".join(where)
    if error["type"] == "extra_forbidden":
        last = str(error["loc"][-1])  # a key of the user's, whatever it looks like
        tables = [str(part) for part in error["loc"][:-1] if not _branch(str(part))]
        known = _keys(kind, tables)
        near = _nearest(kind, last, known, tables)
        hint = f"did you mean {near!r}? " if near else ""
        table = f"[{'.'.join(tables)}]" if tables else "a recipe"
        if tables and tables[-1].isdigit():
            table = f"[[{'.'.join(tables[:-1])}]] number {int(tables[-1]) + 1}"
        remedy = _refuse_late(kind, last) or f"{hint}known: {', '.join(known)}"
        return f"{source}: {table} has no {last!r}; {remedy}"
    if error["type"] == "value_error":
        return f"{source}: {error['msg'].removeprefix('Value error, ')}"
    given = f" is {short_repr(error['input'])}" if error["type"] != "missing" else " is missing"
    message = _remedy(kind, where, error["input"]) or error["msg"][:1].lower() + error["msg"][1:]
    named = any(f"{path}.".startswith(f"{one}.") for one in settings)
    return f"{path}{given}; {message}" if named else f"{source}: {path}{given}; {message}"


def _remedy(kind: type[BaseModel], where: Sequence[str], given: Any) -> str:
    """Say what a setting takes, and what to write.

    Nothing is known of what is in free content.
    """
    found = describe_expected(kind, where, given)
    if found is None:
        return ""
    expected, path, example = found
    if example == {}:
        return f"expected {expected}: write [{path}] above its settings"
    if example == [{}]:
        return f"expected {expected}: write [[{path}]] above the settings of each"
    return f"expected {expected}: write {path} = {write_value(example)}"


def _branch(part: str) -> bool:
    """Return whether a part of a location only names the union member that was tried."""
    named = part.startswith("constrained-") or part[:1].isupper() or "[" in part
    return named or part in ("str", "int", "float")


def _section(kind: type[BaseModel], tables: Sequence[str]) -> type[BaseModel] | None:
    """Return the section at a path, or its innermost one."""
    found: type[BaseModel] | None = kind
    for name in tables:
        if name.isdigit():
            continue
        if found is None or name not in found.model_fields:
            return None
        found = next(iter(_models([found.model_fields[name].annotation])), None)
    return found


def _fields(kind: type[BaseModel], tables: Sequence[str]) -> Collection[str]:
    """Return the settings of the section at a path that are tables themselves."""
    section = _section(kind, tables)
    if section is None:
        return ()
    return [
        name
        for name, field in section.model_fields.items()
        if _section(section, [name]) or get_origin(field.annotation) is dict
    ]


def _keys(kind: type[BaseModel], tables: Sequence[str]) -> list[str]:
    """Return the keys of a section by its path, or of the last one on the way to it."""
    paths = (tables[:end] for end in range(len(tables), -1, -1))
    return sorted(next(one for path in paths if (one := _section(kind, path))).model_fields)


def _models(kinds: Sequence[Any]) -> list[type[BaseModel]]:
    """Return the sections among types, inside of tuples and unions too."""
    found = []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
        found += _models(list(getattr(kind, "__args__", ())))
    return found


def _unknown(kind: type[BaseModel], path: str) -> UserError:
    """Return the error of a path that leads nowhere: its first unknown name and the nearest."""
    names = path.split(".")
    if late := _refuse_late(kind, names[-1]):
        return UserError(f"a recipe has no setting {path!r}; {late}")
    section: type[BaseModel] | None = kind
    known: list[str] = []
    hint = ""
    for depth, name in enumerate(names):
        if section is None:
            hint = f"{'.'.join(names[:depth])} is a value, no table; "
            break
        known = sorted(section.model_fields)
        if name not in known:
            near = _nearest(kind, name, known, names[:depth])
            if near:
                meant = ".".join([*names[:depth], near, *names[depth + 1 :]])
                hint = f"did you mean {meant!r}? "
            break
        section = next(iter(_models([section.model_fields[name].annotation])), None)
    return UserError(f"a recipe has no setting {path!r}; {hint}known here: {', '.join(known)}")


def _refuse_late(kind: type[BaseModel], name: str) -> str:
    """Say why a recipe for models that exist has no setting of their first weights."""
    if name not in FROM_FIRST_WEIGHTS or "train" in kind.model_fields:
        return ""
    return (
        "muP begins with a model's first weights, and a model that is adapted, of ours or of "
        "transformers', has them behind it: leave it out"
    )


def _nearest(
    kind: type[BaseModel], name: str, known: Sequence[str], tables: Sequence[str]
) -> str | None:
    """Return the setting that a name without its section, or a misspelt one, may have meant."""
    if not tables and (inside := _find_inside(kind, name)):
        return inside
    older = NAMES.get(".".join(one for one in tables if not one.isdigit()), {})
    near = difflib.get_close_matches(name, [*known, *older], n=1)
    return older.get(near[0], near[0]) if near else None


def _find_inside(kind: type[BaseModel], name: str) -> str | None:
    """Return the path of the first setting of that name in a section."""
    sections = {
        table: _models([field.annotation])
        for table, field in kind.model_fields.items()
        if get_origin(field.annotation) is not tuple
    }
    found = (
        table for table, inside in sections.items() if inside and name in inside[0].model_fields
    )
    return next((f"{table}.{name}" for table in found), None)


def _refuse_name(path: str, table: str, name: str) -> UserError:
    """Return the error of a path into a setting that takes a name only."""
    return UserError(
        f"a recipe has no setting {path!r}: {table} is the name {name!r}, no table; write the "
        "table itself there"
    )


def _list(path: str, name: str, given: list[Any]) -> UserError:
    """Return the error of a path into a list."""
    list_path = f"{path.partition(f'.{name}.')[0]}.{name}"
    list_path = name if path.startswith(f"{name}.") else list_path
    example = write_value(given[:1]) if given else "[...]"
    return UserError(
        f"a recipe has no setting {path!r}: {list_path} is a list, and a list is set whole; "
        f"write {list_path} = {example}"
    )
