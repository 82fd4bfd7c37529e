"""A command and its function take the same: what only one of them has is listed here."""

import inspect

import pytest
from typer.main import get_command

import layerlab
from layerlab.cli.app import app

# How a command is shown, and where it writes.
TERMINAL = {"as_json", "quiet", "max_bytes", "opened", "fail_on", "figures", "planned"}
PYTHON = {"progress"}
# The same under two names, or a value that a terminal cannot hold.
COMMAND = {
    "inspect": {"models", "text", "samples", "out", "lang"},
    "evaluate": {"models", "listed", "export_tasks", "subjects"},
    "train": {"setting", "metrics"},
    "compare": {"setting", "arms"},
    "study": {"option", "every"},
    "retrofit": {"option", "out"},
    "runs": {"html", "lang", "every"},
}
FUNCTION = {
    "inspect": {"model", "texts", "input_ids", "attention_mask", "tokenizer"},
    "evaluate": {"model", "tokenizer"},
    "train": {"settings"},
    "compare": {"settings"},
    "study": {"options"},
    "retrofit": {"options", "shared"},
    "runs": set(),
}
# Functions of another name than their command.
NAMES = {"runs": "list_runs"}


@pytest.mark.parametrize("name", COMMAND)
def test_a_command_and_its_function_take_the_same(name: str) -> None:
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    typed = {one.name for one in command.params} - TERMINAL - COMMAND[name]
    function = getattr(layerlab, NAMES.get(name, name))
    taken = set(inspect.signature(function).parameters) - PYTHON - FUNCTION[name]
    assert typed == taken


@pytest.mark.parametrize(
    "path",
    [
        *("inspect", "variants", "retrofit", "precision", "train", "compare", "evaluate"),
        *("adapt recipe", "adapt embed", "bench latency"),
    ],
)
def test_every_command_that_takes_a_model_or_a_variant_takes_own_files(path: str) -> None:
    command = get_command(app)
    for name in path.split():
        command = command.commands[name]  # type: ignore[attr-defined]
    (option,) = [one for one in command.params if one.name == "load"]
    assert option.opts == ["--load"] and option.multiple
    assert option.help == "Python file with variants or measures of your own; may be repeated."


@pytest.mark.parametrize("name", ["precision", "adapt"])
def test_other_functions_take_them_too(name: str) -> None:
    assert "load" in inspect.signature(getattr(layerlab, name)).parameters
