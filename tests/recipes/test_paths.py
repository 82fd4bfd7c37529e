"""Texts that lie beside a recipe are found from anywhere, and texts of the working folder first."""

from pathlib import Path

import pytest

from layerlab.recipes.training import load_recipe

RECIPE = """
[data]
sources = [{ text = "own.txt" }, { text = "python-docs" }, { text = "hf:own" }, { text = "no.txt" }]
eval_sources = [{ text = "own.txt" }]
[train]
max_steps = 2
[compare]
arms = ["llama", { name = "other", set = { "data.sources" = [{ text = "own.txt" }] } }]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "mine.toml").write_text(RECIPE)
    (tmp_path / "own.txt").write_text("text")
    (tmp_path / "python-docs").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def texts(file: str) -> list[str]:
    recipe = load_recipe(file)
    assert recipe.data.eval_sources is not None and recipe.compare is not None
    (own,) = [arm for arm in recipe.compare.arms if not isinstance(arm, str)]
    (other,) = own.set["data.sources"]
    return [one.text for one in (*recipe.data.sources, *recipe.data.eval_sources)] + [other["text"]]


def test_a_text_beside_the_recipe_is_named_from_the_working_folder(place):
    near = str(Path("..") / "own.txt")
    assert texts("../mine.toml") == [near, "python-docs", "hf:own", "no.txt", near, near]


def test_the_working_folder_comes_first(place):
    (place / "work" / "own.txt").write_text("text")
    assert texts("../mine.toml")[0] == "own.txt"


def test_a_recipe_used_from_its_own_folder_is_as_it_was_written(place, monkeypatch):
    monkeypatch.chdir(place)
    assert texts("mine.toml")[0] == "own.txt"


def test_a_text_of_the_recipe_that_another_extends_lies_beside_that_one(place):
    (place / "work" / "more").mkdir()
    file = place / "work" / "more" / "next.toml"
    file.write_text('extends = "../../mine.toml"\n[train]\nmax_steps = 3\n')
    assert texts("more/next.toml")[0] == str(Path("..") / "own.txt")


def test_a_recipe_is_the_same_wherever_it_is_used_from(place, monkeypatch):
    (place / "mine.py").write_text("PARTS = ()\n")
    found = load_recipe("../mine.toml").change({"model.load": ["../mine.py"]}).hash()
    monkeypatch.chdir(place)
    own = load_recipe("mine.toml").change({"model.load": ["mine.py"]})
    assert own.hash() == found
    for setting, other in (
        ("data.sources", [{"text": "other.txt"}]),
        ("data.sources", [{"text": "hf:other/own.txt"}]),
        ("data.tokenizer", "Qwen/Qwen2.5-0.5B"),
    ):
        assert own.change({setting: other}).hash() != found
    hub = [own.change({"data.tokenizer": f"{one}/words-1.5"}).hash() for one in ("one", "two")]
    assert hub[0] != hub[1]
    file, folder = (own.change({"data.tokenizer": one}).hash() for one in ("../a.json", "a.json"))
    assert file == folder
