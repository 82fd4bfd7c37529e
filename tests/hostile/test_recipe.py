"""Recipes of any content: a plan, or one line."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from layerlab.recipes.load import _models
from layerlab.recipes.training import TrainingRecipe
from tests.hostile.attack import typed
from tests.hostile.fuzz import fuzz

LIBRARY = files("layerlab.recipes") / "library"
SMALL = tomllib.loads((LIBRARY / "training" / "smoke.toml").read_text("utf-8"))
# TOML holds no halves of surrogate pairs.
WORDS = st.characters(exclude_categories=["Cs"])
VALUES = (
    st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-2, 3)
    | st.floats()
    | st.text(WORDS, max_size=6)
    | st.lists(st.text(WORDS, max_size=3) | st.integers(), max_size=3)
    | st.dictionaries(st.text(WORDS, max_size=4), st.integers(), max_size=2)
)


def paths(kind: type[BaseModel], start: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every setting of a recipe, and every table."""
    for name, field in kind.model_fields.items():
        yield (*start, name)
        for inner in _models([field.annotation]):
            if len(start) < 2:
                yield from paths(inner, (*start, name))


# What a plan would really do: run another program, or read what is not here.
PATHS = sorted({path for path in paths(TrainingRecipe) if path[:1] != ("run",)})


def written(place: Path, changes: Mapping[tuple[str, ...], Any]) -> Path:
    """A recipe that extends the smallest, as a TOML file."""
    content: dict[str, Any] = json.loads(json.dumps(SMALL))
    for path, value in changes.items():
        table = content
        for name in path[:-1]:
            inner = table.setdefault(name, {})
            table = inner if isinstance(inner, dict) else {}
        table[path[-1]] = value
    file = place / "given.toml"
    file.write_text("".join(f"{toml(k)} = {toml(v)}\n" for k, v in content.items()), "utf-8")
    return file


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan are TOML, too
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@fuzz(changes=st.dictionaries(st.sampled_from(PATHS), VALUES, min_size=1, max_size=3))
def test_any_value_of_any_setting_is_a_plan_or_one_line(tmp_path, changes):
    file = written(tmp_path, changes)
    tomllib.loads(file.read_text("utf-8"))
    done = typed("train", str(file), "--plan", "--quiet", "--out", str(tmp_path / "runs"))
    done.survived()
    assert done.code == 0 or done.refused()
    assert not (tmp_path / "runs").exists()


@fuzz(content=st.binary(max_size=200) | st.text(WORDS, max_size=200).map(str.encode))
def test_any_bytes_are_one_line(tmp_path, content):
    file = tmp_path / "given.toml"
    file.write_bytes(content)
    for words in (("train", "--plan"), ("compare", "--judge"), ("adapt", "--plan")):
        done = typed(words[0], str(file), words[1], "--quiet", "--out", str(tmp_path / "runs"))
        assert done.survived().code in (0, 2)
