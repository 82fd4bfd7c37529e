"""A recipe: TOML, checked; one run, or with a compare section the plan of many."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from layerlab import UserError
from layerlab.domain import shown
from layerlab.training.section import (
    Arm,
    CompareSection,
    ControlSection,
    DataSection,
    EmulateSection,
    EvaluateSection,
    ModelSection,
    MonitorSection,
    RunSection,
    Section,
    TrainSection,
)

# How a run is carried out and what it is called do not decide what comes out of it.
_BESIDE = frozenset({"name", "about", "inferred", "run", "compare"})
_LENGTHS = ("updates", "tokens", "epochs")


class Recipe(Section):
    """Everything that decides a run, and how it is carried out.

    Attributes:
        name: of the folder that its runs are put in.
        about: what it is for, in a sentence or two.
        inferred: what of it a source does not say and stands here as an inference.
    """

    name: Annotated[str, Field(pattern=r"^\w[\w .+-]*$")] = "recipe"
    about: str = ""
    inferred: str = ""
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()
    compare: CompareSection | None = None
    monitor: MonitorSection = MonitorSection()
    control: ControlSection = ControlSection()
    emulate: EmulateSection = EmulateSection()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _lengths(self) -> "Recipe":
        given = [name for name in _LENGTHS if getattr(self.train, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"train gives {' and '.join(given) or 'no length'}; expected one of "
                f"{', '.join(_LENGTHS)}: write updates = 400"
            )
        if self.compare is not None and self.compare.lockstep and self.compare.search == "optuna":
            raise ValueError(
                "compare.lockstep runs all arms side by side, and a search decides as it goes; "
                'write lockstep = false or search = "grid"'
            )
        return self

    @model_validator(mode="after")
    def _claims(self) -> "Recipe":
        section = self.compare
        if section is None:
            return self
        given = [Arm(variant=one) if isinstance(one, str) else one for one in section.arms]
        names = [one.name or one.variant or self.model.variant for one in given]
        for claim in section.claims:
            for name in claim.names():
                if name not in names:
                    near = difflib.get_close_matches(name, names, n=1)
                    hint = f"did you mean {near[0]!r}? " if near else ""
                    raise ValueError(
                        f"the claim {claim.says!r} names {name!r}, which is no arm; {hint}"
                        f"arms: {', '.join(names)}; or judge none: claims = []"
                    )
        return self

    def decisive(self) -> dict[str, Any]:
        """The settings that decide what comes out, as plain JSON values."""
        return self.model_dump(mode="json", exclude=set(_BESIDE))

    def hash(self) -> str:
        """Twelve hexadecimal digits of all that decides: the same in every process.

        Files of one's own count by what is in them. Defaults are left out, so that a setting which
        a later version adds leaves the runs of an earlier one what they are.
        """
        content = self.model_dump(mode="json", exclude=set(_BESIDE), exclude_defaults=True)
        loaded = [hashlib.blake2b(Path(one).read_bytes()).hexdigest() for one in self.model.load]
        text = json.dumps([content, loaded], sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def changed(self, settings: Mapping[str, Any]) -> "Recipe":
        """The recipe with settings by their paths, as `{"train.batch": 8}`.

        Raises:
            UserError: there is no such setting, or it takes no such value.
        """
        content = self.model_dump(mode="json")
        for path, value in settings.items():
            table = content
            head, options, option = path.partition(".options.")
            *tables, last = [*head.split("."), *(["options", option] if options else [])]
            for name in tables:
                if name == "compare" and table.get(name, 0) is None:
                    table[name] = {}
                if isinstance(table.get(name), list):
                    raise _whole(path, name, table[name])
                if not isinstance(table.get(name), dict):
                    raise _unknown(path)
                table = table[name]
            if last not in table and last not in _keys(tables) and not options:
                raise _unknown(path)
            table[last] = value
            if len(tables) == 1 and tables[0] == "train" and last in _LENGTHS:
                table.update({name: None for name in _LENGTHS if name != last})
        return recipe_of(content, ", ".join(settings))


def recipe_of(content: Mapping[str, Any], place: str = "the recipe") -> Recipe:
    """A recipe from plain values.

    Raises:
        UserError: a key that no section has, or a value that a setting does not take.
    """
    try:
        # By way of JSON: a strict model then takes its arrays as tuples, and nothing else as such.
        return Recipe.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        # Where a name or a table may stand, the table's own errors lie deeper, and say more.
        deepest = max(error.errors(), key=lambda one: len(one["loc"]))
        raise UserError(_told(deepest, place)) from None


def load_recipe(given: str | PathLike[str]) -> Recipe:
    """A recipe from a TOML file, or one of the package by its name.

    Raises:
        UserError: there is none, it is not TOML, or a setting is wrong.

    Example:
        >>> load_recipe("eight-residuals-twin").compare.baseline
        'llama'
    """
    path = Path(given)
    if not path.suffix and not path.exists():
        return _packaged(str(given))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(
            f"cannot read the recipe {str(path)!r}: {reason}; give a TOML file or one of "
            f"{', '.join(packaged())}"
        ) from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}; mend that line") from None
    return recipe_of({"name": path.stem, **content}, str(path))


def packaged() -> list[str]:
    """Names of the recipes that come with the package."""
    folder = files("layerlab.training") / "recipes"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _packaged(name: str) -> Recipe:
    if name not in packaged():
        near = difflib.get_close_matches(name, packaged(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"no recipe {shown(name)}; {hint}expected a TOML file or one of {', '.join(packaged())}"
        )
    text = (files("layerlab.training") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    return recipe_of({"name": name, **tomllib.loads(text)}, name)


def _told(error: ErrorDetails, place: str) -> str:
    """The first error of a validation, in one line."""
    where = [str(part) for part in error["loc"]]
    # A table where a name may stand too is tried as both: only its own errors are of use.
    where = [part for part in where if part not in {"str", "Arm"}]
    path = ".".join(where)
    if error["type"] == "extra_forbidden":
        *tables, last = where
        known = _keys(tables)
        near = difflib.get_close_matches(last, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        table = f"[{'.'.join(tables)}]" if tables else "a recipe"
        return f"{place}: {table} has no {last!r}; {hint}known: {', '.join(known)}"
    if error["type"] == "value_error":
        return f"{place}: {error['msg'].removeprefix('Value error, ')}"
    message = error["msg"][:1].lower() + error["msg"][1:]
    given = f" is {shown(error['input'])}" if error["type"] != "missing" else ""
    # A place that is a list of settings may name this one already.
    named = any(f"{path}.".startswith(f"{one}.") for one in place.split(", "))
    return f"{path}{given}; {message}" if named else f"{place}: {path}{given}; {message}"


def _keys(tables: list[str]) -> list[str]:
    """The keys of a section by its path."""
    section: type[BaseModel] = Recipe
    for name in tables:
        if name.isdigit():
            continue
        kinds = [section.model_fields[name].annotation] if name in section.model_fields else []
        section = next(iter(_models(kinds)), section)
    return sorted(section.model_fields)


def _models(kinds: list[Any]) -> list[type[BaseModel]]:
    """The sections among types, inside of tuples and unions too."""
    found = []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
        found += _models(list(getattr(kind, "__args__", ())))
    return found


def _unknown(path: str) -> UserError:
    """A path that leads nowhere: its first name that is not known, and the nearest that is."""
    names = path.split(".")
    section: type[BaseModel] | None = Recipe
    known: list[str] = []
    hint = ""
    for depth, name in enumerate(names):
        if section is None:
            hint = f"{'.'.join(names[:depth])} is a value, no table; "
            break
        known = sorted(section.model_fields)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            if near:
                meant = ".".join([*names[:depth], near[0], *names[depth + 1 :]])
                hint = f"did you mean {meant!r}? "
            break
        section = next(iter(_models([section.model_fields[name].annotation])), None)
    return UserError(f"a recipe has no setting {path!r}; {hint}known here: {', '.join(known)}")


def _whole(path: str, name: str, given: list[Any]) -> UserError:
    """A path into a list."""
    place = f"{path.partition(f'.{name}.')[0]}.{name}"
    example = _toml(given[:1]) if given else "[...]"
    return UserError(
        f"a recipe has no setting {path!r}: {place} is a list, and a list is set whole; "
        f"write {place} = {example}"
    )


def _toml(value: Any) -> str:
    """A JSON value as TOML writes it, on one line."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if one not in (None, {}, [])}
        pairs = (f"{json.dumps(key) if '.' in key else key} = {_toml(kept[key])}" for key in kept)
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
