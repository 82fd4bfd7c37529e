"""docs/add-a-variant.md does what it says: its steps run in order, in one empty folder."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from layerlab.variants.inventory import PLUGINS
from tests.model.absent import fresh

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "add-a-variant.md").read_text("utf-8")
STEPS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PROMISED = {
    "wrote my_idea.py": "what --new says",
    "at step 0  the same function as llama": "the card",
    "holds: a token sees nothing that comes later": "the laws",
    "loss 5": "the loop, which starts at the entropy of bytes",
    "matched by ffn to llama": "the equal sizes",
    "this model needs the file 'my_idea.py'": "the refusal",
}


def run(language: str, code: str, folder: Path) -> str:
    """What a step prints; commands and Python run as a reader would run them."""
    program = f"{shlex.quote(sys.executable)} -m layerlab "
    lines = [line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")]
    console = " && ".join(re.sub(r"^layerlab ", program, line) for line in lines)
    command = ["bash", "-c", console] if language == "console" else [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """The page, followed from top to bottom."""
    return "\n".join(run(*step, folder) for step in STEPS if step[0] in ("console", "python"))


@pytest.mark.parametrize("words", PROMISED)
def test_the_steps_run_in_order_and_show_what_the_page_says(words: str, printed: str) -> None:
    assert " ".join(words.split()) in " ".join(printed.split()), PROMISED[words]


def test_every_step_is_run_or_read() -> None:
    assert {language for language, _ in STEPS} == {"console", "python", "toml"}


def test_the_saved_model_runs_where_layerlab_is_not(printed: str, folder: Path) -> None:
    code = [code for language, code in STEPS if language == "python"][-1]
    done = fresh(code, folder, folder / "cache")
    assert done.returncode == 0, done.stderr
    assert "transformers_modules" in done.stdout


def test_the_entry_point_is_the_group_that_is_read() -> None:
    (text,) = [code for language, code in STEPS if language == "toml"]
    assert set(tomllib.loads(text)["project"]["entry-points"]) == {PLUGINS}
