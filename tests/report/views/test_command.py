"""Commands that repeat what a page shows: the command line takes each, with all that was typed."""

import html
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlab.report.pages import adaptation, comparison, evaluation, inspection, vocabulary
from layerlab.report.views import command
from tests.report.pages.test_evaluation import scored
from tests.report.support.passed import passed
from tests.report.support.race import race, single
from tests.report.support.repeated import parsed, repeated
from tests.report.support.sample import sample
from tests.report.test_chinese import proved


def inspected() -> str:
    report = sample(["a"], layers=2, heads=2)
    asked = {"models": ["llama"], "text": "a b.txt", "samples": 2, "context": 64}
    asked |= {"load": ["own.py"], "allow_unused": True}
    report["options"] = {**asked, "measures": {"dimension": {"epsilon": 0.8}}}
    return inspection.render(report)


PAGES: dict[str, tuple[Callable[[], str], dict[str, Any]]] = {
    "inspect": (inspected, {"text": "a b.txt", "samples": "2", "load": ["own.py"]}),
    "compare": (lambda: comparison.render(race()), {"recipe": "recipe.toml"}),
    "train": (lambda: comparison.render(single(), single=True), {"recipe": "recipe.toml"}),
    "evaluate": (lambda: evaluation.render(scored()), {"suite": "boolq", "limit": 40}),
    "adapt": (lambda: adaptation.render(passed()), {"recipe": "recipe.toml"}),
    "vocabulary": (lambda: vocabulary.render(proved()), {"size": "+20"}),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", PAGES)
def test_the_command_line_takes_the_command_of_a_page(kind):
    render, expected = PAGES[kind]
    given = parsed(repeated(render()))
    assert expected.items() <= {name: given[name] for name in expected}.items()


def test_an_evaluation_names_everything_that_was_typed():
    content = scored()
    content["request"] = {
        **{"suite": "boolq", "tasks": "own task.yaml", "format": "int4,bf16", "policy": "p.toml"},
        **{"against": "earlier/results.json", "data": "files", "device": "cpu", "dtype": None},
        **{"load": ["one.py", "two.py"], "trust_tasks": True, "trust_remote_code": False},
    }
    given = parsed(repeated(evaluation.render(content)))
    assert given["suite"] == "boolq" and given["tasks"] == "own task.yaml"
    assert given["format"] == "int4,bf16" and given["policy"] == "p.toml"
    assert given["against"] == "earlier/results.json" and given["data"] == "files"
    assert given["load"] == ["one.py", "two.py"]
    assert given["trust_tasks"] and not given["trust_remote_code"] and given["dtype"] is None


@pytest.mark.parametrize("kind", ["compare", "train", "adapt"])
def test_files_that_a_recipe_names_are_loaded(kind):
    """Each once, as they were typed: nothing that a recipe names runs unasked."""
    own = {"variant": "mine", "set": {"model.load": ["ideas/my own.py"]}}
    page = {
        "compare": lambda: comparison.render(
            {**race(), "recipe": {"compare": {"arms": ["llama", own, {**own, "name": "b"}]}}}
        ),
        "train": lambda: comparison.render(
            {**single(), "recipe": {"model": {"load": ["ideas/my own.py"]}}}, single=True
        ),
        "adapt": lambda: adaptation.render({**passed(), "recipe": {"base": own}}),
    }[kind]()
    assert parsed(repeated(page))["load"] == ["ideas/my own.py"]


def test_a_policy_from_python_has_no_command():
    content = scored()
    content["arms"][0]["precision"] = "bf16, 2 kept"
    assert command.evaluate(content) is None
    content["request"]["policy"] = "policy.toml"
    assert "--policy policy.toml" in str(command.evaluate(content))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that one stands in, with files of one's own."""
    for name in ("my.yaml", "own/my idea.py", "text.txt", "results.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_command_works_from_any_folder(here):
    asked = {"models": [".", "llama"], "text": "text.txt", "load": ["own/my idea.py"]}
    asked["measures"] = {"change": {"against": "own"}}
    words = parsed(shlex.split(str(command.inspect({"options": asked}))))
    assert words["models"] == [str(here), "llama"] and words["text"] == str(here / "text.txt")
    assert words["load"] == [str(here / "own" / "my idea.py")]
    assert words["measures"] == f'change(against="{here / "own"}")'
    request = {"tasks": "my.yaml,arc_easy", "against": "results.json", "policy": "none.toml"}
    asked = {"arms": [{"source": "own"}], "request": request, "options": {}}
    words = parsed(shlex.split(str(command.evaluate(asked))))
    assert words["model"] == [str(here / "own")] and words["policy"] == "none.toml"
    assert words["tasks"] == f"{here / 'my.yaml'},arc_easy"
    assert words["against"] == str(here / "results.json")
    proof = {"tokenizer": "own", "corpus": ["text.txt", "wiki-zh"], "size": "+9"}
    words = parsed(shlex.split(command.change_vocabulary(proof)))
    assert words["tokenizer"] == str(here / "own")
    assert words["corpus"] == [str(here / "text.txt"), "wiki-zh"]


@pytest.mark.full
def test_a_recipe_names_its_files_from_any_folder(here):
    arm = {"variant": "mine", "set": {"model.load": ["own/my idea.py"]}}
    recipe = {"data": {"sources": [{"text": "text.txt"}]}, "compare": {"arms": ["llama", arm]}}
    page = comparison.render({**race(), "recipe": recipe})
    assert parsed(repeated(page))["load"] == [str(here / "own" / "my idea.py")]
    shown = html.unescape(page)
    assert f'text = "{here / "text.txt"}"' in shown
    assert f'"{here / "own" / "my idea.py"}"' in shown and '"own/my idea.py"' not in shown
