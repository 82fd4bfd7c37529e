"""Every page for beginners does what it says: its steps run in order, in one empty folder.

A block with a title is a file that the reader saves; a command and a program are run.
"""

import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from layerlab.cli.ledger import CODES
from layerlab.numerics.profiles.operations import OPERATIONS
from tests.support.forked import python

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# What a page's steps print, or leave, that shows that they did what the page says.
PROMISED = {
    "start.md": ("post-norm", "Series activation", "first/report.html"),
    "tutorials/own-model.md": (
        "Nothing crosses a threshold",
        "In bf16, rounding in the residual stream",
        "look/report.html",
        "pair/report.html",
        "rounded/report.html",
        "It predicts otherwise than the other checkpoint by",
        "quantized/report.html",
    ),
    "tutorials/inspect.md": (
        "relative_residual",
        "measured",
        "look/report.html",
        "pair/report.html",
    ),
    "tutorials/rounding.md": ("rounded/report.html", "bf16", "policy.toml"),
    "tutorials/residual.md": (
        "x <- x + F(RMS(x)) / 2",
        "not distinguishable",
        "runs/halved/report.html",
    ),
    "tutorials/judge.md": ("wide is better than plain by 0.0327", "fails", "judged/report.html"),
    "tutorials/judge-evaluations.md": (
        "question by question",
        "second is better than first by 10.99 percentage points",
        "exact test over clusters",
        "judged/report.html",
        "judged/paired.json",
    ),
    "tutorials/campaign.md": (
        "wide is undecided: it looks better",
        "wide is adopted",
        "1 adopted, 0 refuted, 0 undecided",
        "campaign-page/report.html",
    ),
    "tutorials/gap.md": (
        "closure",
        "autocast-bf16: float32 weights",
        "set `cache` in b as in a",
        "a bug, not rounding",
        "temperature 0.8",
        "'attention_weights'",
    ),
    "tutorials/law.md": ("no replay", "general", "adapted/law/report.html"),
    "add-a-measure.md": ("layer", "own/tables/silent.csv"),
    "add-a-language.md": ("chinese/report.html",),
}
Follow = Callable[[str], tuple[Path, str]]


def steps(page: str) -> list[tuple[str, str, str]]:
    """Language, title and content of every block."""
    return BLOCK.findall((DOCS / page).read_text("utf-8"))


def typed(code: str) -> list[list[str]]:
    """The commands of a block that are not of the set-up."""
    lines = [line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines if line.startswith("layerlab ")]


@pytest.fixture(scope="module")
def follow(tmp_path_factory: pytest.TempPathFactory) -> Follow:
    """Do what a page says, once: the folder of the reader, and all that was printed."""

    @cache
    def done(page: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("reader")
        printed = []
        for language, title, code in steps(page):
            if title:
                (folder / title).write_text(code, encoding="utf-8")
                continue
            programs = [["-m", *command] for command in typed(code)]
            for program in [["-c", code]] if language == "python" else programs:
                ended = python(*program, cwd=folder)
                codes = CODES.values() if program[2:4] == ["ledger", "judge"] else [0]
                assert ended.returncode in codes, f"{page}: {program}\n{ended.stdout}{ended.stderr}"
                printed.append(ended.stdout)
        return folder, "\n".join(printed)

    return done


@pytest.mark.full
@pytest.mark.parametrize("page", PROMISED)
def test_the_steps_run_and_show_what_the_page_says(page, follow):
    folder, printed = follow(page)
    for promised in PROMISED[page]:
        assert promised in printed or (folder / promised).is_file(), promised


def test_every_tutorial_is_followed():
    pages = {f"tutorials/{path.name}" for path in (DOCS / "tutorials").glob("*.md")}
    assert pages <= set(PROMISED)


@pytest.mark.parametrize("page", PROMISED)
def test_every_block_is_run_or_saved(page):
    text = (DOCS / page).read_text("utf-8")
    assert len(steps(page)) == len(re.findall(r"^```\w", text, re.MULTILINE)) > 1
    for language, title, code in steps(page):
        assert language in {"console", "python"} or title
        assert title or language == "python" or code.startswith("$ ")


def test_the_page_of_engines_names_every_operation_and_no_other():
    text = (DOCS / "tutorials" / "gap.md").read_text("utf-8")
    listed = text.partition("Operations are ")[2].partition(". Formats are")[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(OPERATIONS)


def test_set_up_exists():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lines = re.findall(r"^\$ (make \w+)$", (DOCS / "start.md").read_text("utf-8"), re.MULTILINE)
    assert lines == ["make demo"]
    assert "$ pip install torch==2.13.0 .\n" in (ROOT / "README.md").read_text("utf-8")
    assert re.search(r"^demo:", makefile, re.MULTILINE)


def test_a_translation_has_the_steps_of_its_page():
    translated = [path.relative_to(DOCS / "zh") for path in (DOCS / "zh").rglob("*.md")]
    assert translated
    for name in translated:
        assert steps(f"zh/{name}") == steps(str(name))
