"""A command and its function take the same: what only one of them has is listed here."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import layerlab
from layerlab.cli.app import app
from layerlab.recipes.adaptation_sections import CleanSection

# How a result is shown.
TERMINAL = {"as_json", "quiet", "opened", "fail_on", "figures", "subjects", "metrics", "most"}
PYTHON = {"progress"}
# The same under two names, or a value that a terminal cannot hold.
COMMAND = {
    "inspect": {"models", "text", "out", "lang"},
    "study": {"option", "every"},
    "retrofit": {"option", "out"},
    "precision": {"text", "out", "overwrite"},
    "gap": {"text"},
    "runs": {"html", "lang", "every"},
    "adapt vocabulary": {"allow_unused"},  # a tokenizer has no weights
    "bench latency": {"out"},
}
FUNCTION = {
    "inspect": {"model", "texts", "input_ids", "attention_mask", "tokenizer"},
    "evaluate": {"tokenizer"},
    "study": {"options", "tokenizer"},
    "retrofit": {"options", "shared"},
    "precision": {"texts", "input_ids", "tokenizer"},
    "gap": {"texts", "input_ids", "tokenizer"},
}
# Options that do something else than their command: each is a function of its own, which takes no
# argument that its command does not take.
OTHERS = {
    "train": {"planned": "estimate_runs"},
    "compare": {"planned": "estimate_runs"},
    "adapt recipe": {"planned": "estimate_adaptation"},
    "evaluate": {"listed": "list_benchmarks", "export_tasks": "export_tasks"},
    "gap": {"profiles": "list_profiles"},
}
# Functions of another name than their command.
NAMES = {
    "runs": "list_runs",
    "doctor": "diagnose",
    "adapt embed": "embed_tokenizer",
    "adapt clean": "clean_text",
    "adapt contamination": "find_contamination",
    "adapt catalogue": "list_corpora",
    "adapt vocabulary": "change_vocabulary",
    "adapt recipe": "adapt",
    "bench latency": "bench_latency",
    "ledger new": "create_ledger",
    "ledger add": "add_idea",
    "ledger judge": "judge_idea",
    "ledger status": "read_ledger",
}
# Left out, one does something else: a command lists the recipes or studies, says what to type, or
# reads samples of a text where a function is given sequences; only a command writes unasked.
DEFAULTS = {
    "train": {"recipe"},
    "compare": {"recipe"},
    "adapt recipe": {"recipe"},
    "study": {"name"},
    "evaluate": {"model", "out"},
    "inspect": {"samples"},
    "precision": {"samples"},
}
# It shows what several functions give: list_variants, build and matched.
SEVERAL = {"variants"}


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command by the words that are typed for it."""
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, one in command.commands.items():
        yield from leaves(one, *path, name)


COMMANDS = dict(leaves(get_command(app)))


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - SEVERAL))
def test_a_command_and_its_function_take_the_same(name):
    options = {one.name: one for one in COMMANDS[name].params}
    parameters = inspect.signature(getattr(layerlab, NAMES.get(name, name))).parameters
    typed = set(options) - TERMINAL - COMMAND.get(name, set()) - OTHERS.get(name, {}).keys()
    assert typed == set(parameters) - PYTHON - FUNCTION.get(name, set())
    assert COMMAND.get(name, set()) | OTHERS.get(name, {}).keys() <= set(options)
    assert FUNCTION.get(name, set()) <= set(parameters)
    differing = {
        each
        for each in typed
        if plain("required" if options[each].required else options[each].default)
        != plain(parameters[each].default)
    }
    assert differing == DEFAULTS.get(name, set())


def plain(default: Any) -> str:
    """Return a default in words, the same of a function, whose lists are empty, and a command."""
    if default is inspect.Parameter.empty:
        return "required"
    return str(None if default == () else getattr(default, "value", default))


@pytest.mark.parametrize("name", ["compare", "adapt recipe", "evaluate", "gap"])
def test_what_a_command_does_instead_is_a_function_of_its_own(name):
    known = {one.name for one in COMMANDS[name].params}
    assert set(OTHERS[name]) <= known
    for function in OTHERS[name].values():
        takes = inspect.signature(getattr(layerlab, function)).parameters
        assert set(takes) - PYTHON - {"folder"} <= known


def test_rules_that_clean_text_are_called_as_in_a_recipe():
    """What is no rule there: where text comes from and goes to; what is no option: other text."""
    rules = set(CleanSection.model_fields) - {"general", "benchmarks"}
    assert {*inspect.signature(layerlab.clean_text).parameters} == rules | {
        "source",
        "out",
        "field",
        "max_bytes",
        "progress",
    }


@pytest.mark.parametrize(
    "path",
    [
        *("inspect", "variants", "retrofit", "precision", "gap", "train", "compare", "evaluate"),
        *("adapt recipe", "adapt embed", "bench latency"),
    ],
)
def test_every_command_that_takes_a_model_or_a_variant_takes_own_files(path):
    (option,) = [one for one in COMMANDS[path].params if one.name == "load"]
    assert option.opts == ["--load"] and option.multiple
    assert option.help == "Python file with variants or measures of your own; may be repeated."


def methods() -> dict[str, dict[str, str]]:
    """Return what each method of each class of the package declares to return."""
    files = Path(layerlab.__file__).parent.rglob("*.py")
    return {
        node.name: {
            one.name: "" if one.returns is None else ast.unparse(one.returns)
            for one in node.body
            if isinstance(one, ast.FunctionDef)
        }
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def test_what_a_command_prints_as_json_its_result_gives_as_a_dict():
    known = methods()
    printed = [
        name for name in COMMANDS if "as_json" in {one.name for one in COMMANDS[name].params}
    ]
    # A list of results; and a tokenizer with its proof, of which the latter is printed.
    for name in sorted({*printed} - SEVERAL - {"adapt catalogue", "adapt vocabulary"}):
        function = getattr(layerlab, NAMES.get(name, name))
        returned = str(inspect.signature(function).return_annotation)
        found = [one for one in re.findall(r"\w+", returned) if one in known]
        assert found and all("to_dict" in known[one] for one in found), name


def test_a_name_of_a_method_has_one_meaning():
    for name, own in methods().items():
        assert own.get("to_dict", "dict").startswith("dict") or own["to_dict"] == "Any", name
        assert own.get("to_json", "str") == "str", name
        assert "to_json" not in own or "to_dict" in own, name
        if "to_dict" in own:  # a result: its summary is text, and its table is drawn
            assert own.get("summary", "str") == "str", name
            assert own.get("table", "Any").strip("'") in ("Any", "Group", "RenderableType"), name
