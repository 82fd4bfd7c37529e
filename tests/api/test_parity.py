"""A command and its function take the same: what only one of them has is listed here."""

import inspect
from collections.abc import Iterator
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
    for each in typed:
        usual = parameters[each].default
        if isinstance(usual, str | int | float):
            default = options[each].default
            assert str(usual) == str(getattr(default, "value", default)), each


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
