"""docs/add-a-variant.md does what it says: its steps run in order, in one empty folder."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from layerlab.variants.registry import PLUGINS
from tests.model.absent import fresh
from tests.support.forked import python

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add-a-variant.md").read_text("utf-8")
STEPS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ELSEWHERE = [code for language, code in STEPS if language == "python"][-1]
PROMISED = {
    "wrote my_idea.py": "what --new says",
    "at step 0  the same function as llama": "the card",
    "holds: a token sees nothing that comes later": "the laws",
    "loss 5": "the loop, which starts at the entropy of bytes",
    "matched by ffn to llama": "the equal sizes",
    "my-idea is not distinguishable from llama": "the comparison at the end",
    "this model needs the file 'my_idea.py'": "the refusal",
}


def run(language: str, code: str, folder: Path) -> str:
    """What a step prints; commands and Python run as a reader would run them."""
    lines = [line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")]
    typed = [("-m", *shlex.split(line, comments=True)) for line in lines]
    printed = []
    for command in typed if language == "console" else [("-c", code)]:
        done = python(*command, cwd=folder)
        assert done.returncode == 0, f"{code}\n{done.stderr}"
        printed.append(done.stdout)
    return "".join(printed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """The page, followed from top to bottom, but for what is for a machine without layerlab."""
    steps = [step for step in STEPS if step[0] in ("console", "python")]
    return "\n".join(run(*step, folder) for step in steps if step[1] != ELSEWHERE)


@pytest.mark.full
@pytest.mark.parametrize("words", PROMISED)
def test_the_steps_run_in_order_and_show_what_the_page_says(words, printed):
    assert " ".join(words.split()) in " ".join(printed.split()), PROMISED[words]


def test_every_step_is_run_or_read():
    assert {language for language, _ in STEPS} == {"console", "python", "toml"}


@pytest.mark.full
def test_the_saved_model_runs_where_layerlab_is_not(printed, folder):
    done = fresh(ELSEWHERE, folder, folder / "cache")
    assert done.returncode == 0, done.stderr
    assert "transformers_modules" in done.stdout


def test_the_entry_point_is_the_group_that_is_read():
    (text,) = [code for language, code in STEPS if language == "toml"]
    assert set(tomllib.loads(text)["project"]["entry-points"]) == {PLUGINS}
