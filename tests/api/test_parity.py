"""A command and its function take the same: what only one of them has is listed here."""

import inspect

import pytest
from typer.main import get_command

import layerlab
from layerlab.cli.app import app

# How a command is shown, where it writes, and what Python has as a function of its own (load).
TERMINAL = {"as_json", "quiet", "load", "max_bytes", "opened", "fail_on", "figures", "planned"}
PYTHON = {"progress"}
# The same under two names, or a value that a terminal cannot hold.
COMMAND = {
    "inspect": {"models", "text", "samples", "out", "lang"},
    "evaluate": {"models", "listed", "export_tasks", "subjects"},
    "train": {"setting", "metrics"},
    "compare": {"setting"},
    "study": {"option", "every"},
    "retrofit": {"option", "out"},
}
FUNCTION = {
    "inspect": {"model", "texts", "input_ids", "attention_mask", "tokenizer"},
    "evaluate": {"model", "tokenizer"},
    "train": {"settings"},
    "compare": {"settings"},
    "study": {"options"},
    "retrofit": {"options", "shared"},
}


@pytest.mark.parametrize("name", COMMAND)
def test_a_command_and_its_function_take_the_same(name: str) -> None:
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    typed = {one.name for one in command.params} - TERMINAL - COMMAND[name]
    taken = set(inspect.signature(getattr(layerlab, name)).parameters) - PYTHON - FUNCTION[name]
    assert typed == taken
