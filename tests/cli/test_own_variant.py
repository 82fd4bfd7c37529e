"""`--load` as typed: a saved model whose block stands in a file of one's own, in every command."""

import os
import subprocess
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import layerlab
from layerlab import builtin
from layerlab.variants import registry
from layerlab.variants.template import write_template
from tests.evaluation.written import boolq
from tests.support.forked import python

MODEL, FILE = "own-model", "my_idea.py"
SHORT = ("--samples", "1", "--context", "16", "-q")
# What each command is typed with, and words of what it prints.
COMMANDS = {
    "inspect": (MODEL, "--measures", "stream", *SHORT),
    "precision": (MODEL, *SHORT, "--out", "policy.toml"),
    "bench latency": (
        MODEL,
        "--threads",
        "1",
        "--repetitions",
        "3",
        "--new",
        "2",
        "--context",
        "16",
        "-q",
    ),
    "evaluate": (MODEL, "--suite", "boolq", "--data", "data", "-q"),
    "adapt embed": (MODEL, "--tokenizer", "words", "--out", "grown"),
}
PRINTED = {
    "inspect": f"{MODEL}  LabForCausalLM",
    "precision": "place, in float32",
    "bench latency": MODEL,
    "evaluate": f"{MODEL}: ",
    "adapt embed": "The model: grown",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file, a model of it, a larger tokenizer, and questions."""
    folder = tmp_path_factory.mktemp("own")
    tokenizer = AutoTokenizer.from_pretrained(builtin.path("llama"))
    before = dict(registry._ADDED)
    layerlab.load(write_template(folder / FILE))
    sizes = {"width": 32, "layers": 1, "heads": 2, "vocab": len(tokenizer), "context": 64}
    layerlab.build("my-idea", **sizes).save_pretrained(folder / MODEL)
    registry._ADDED.clear()
    registry._ADDED.update(before)
    tokenizer.save_pretrained(folder / MODEL)
    tokenizer.add_tokens(["lamplight"])
    tokenizer.save_pretrained(folder / "words")
    boolq(folder / "data", True, False, True)
    return folder


def typed(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "layerlab", *words, cwd=place, env={**os.environ, "COLUMNS": "100"})


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_a_model_with_a_block_of_ones_own(command, place):
    words = (*command.split(), *COMMANDS[command])
    refused = typed(place, *words)
    assert refused.returncode == 2 and f"needs the file {FILE!r}" in refused.stderr
    assert refused.stderr.count("\n") == 1 and "--load" in refused.stderr
    done = typed(place, *words, "--load", FILE)
    assert done.returncode == 0 and "not run" not in done.stderr, done.stderr
    assert PRINTED[command] in done.stdout
