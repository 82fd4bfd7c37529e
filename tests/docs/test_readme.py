"""README.md does what it says: its commands and its Python run, in order, in one empty folder.

They run in processes that have imported already.
"""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from layerlab import builtin
from tests.support.forked import python

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line.removeprefix("$ ")
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]
RUN = [command for command in COMMANDS if "layerlab " in command]
REST = [command for command in COMMANDS if "layerlab " not in command]
OWN = "layerlab compare smoke --load my_idea.py --arms llama,my-idea"
# A command, and words behind it that make it small.
MORE = {
    "layerlab compare eight-residuals-twin --plan": (
        '--set \'compare.arms=["llama", "history-1"]\' --set compare.claims=[]'
    ),
    OWN: "--set train.max_steps=2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder that has the repository's examples, as a reader's own has."""
    empty = tmp_path_factory.mktemp("reader")
    (empty / "examples").symlink_to(ROOT / "examples")
    (empty / "MODEL").symlink_to(builtin.path("llama"))
    return empty


def test_a_first_report_takes_three_lines_and_an_own_comparison_five():
    assert COMMANDS[:2] == ["pip install torch==2.13.0 .", "layerlab inspect MODEL"]
    made = COMMANDS.index("layerlab variants --new my_idea.py")
    assert COMMANDS[made + 1] == OWN  # with the first line, three in all


def test_every_extra_is_named_by_what_it_is_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    start = (ROOT / "docs" / "start.md").read_text("utf-8").partition("Extras, as")[2]
    named = set(re.findall(r"`(\w+)`", start.partition("Or let")[0]))
    assert set(project["optional-dependencies"]) <= named


def test_an_error_names_an_extra_that_there_is_of_a_copy():
    sources = [path.read_text("utf-8") for path in (ROOT / "layerlab").rglob("*.py")]
    named = {one for text in sources for one in re.findall(r"describe_install\(.(\w+).\)", text)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"slurm", "spm"} <= named <= set(project["optional-dependencies"])
    assert not any("layerlab[" in text for text in sources)  # nothing is on PyPI


def test_the_tree_names_every_folder_of_the_package():
    (tree,) = blocks("text")
    folders = {path.parent.name for path in ROOT.glob("layerlab/*/__init__.py")}
    assert set(re.findall(r"(\w+)/", tree.partition("bench/")[0])) == folders | {"layerlab"}


def test_there_is_something_to_run():
    assert len(RUN) >= 4 and blocks("python")


@pytest.mark.parametrize("command", REST)
def test_a_command_of_set_up_exists(command):
    if command == ". .venv/bin/activate":
        assert "-m venv .venv" in MAKEFILE
    elif command.startswith("pip install "):
        # As the Makefile installs it: a looser torch brings gigabytes of CUDA.
        torch, place = command.split()[2:]
        assert f"$(PIP) {torch} " in MAKEFILE and place == "."
    else:
        tool, target = command.split()
        assert tool == "make" and re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


def piped(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What stands before the pipe is run by a shell."""
    before, _, after = command.partition(" | ")
    given = subprocess.run(["bash", "-c", before], cwd=folder, capture_output=True, text=True)
    assert given.returncode == 0, given.stderr
    return typed(after, folder, given.stdout)


def typed(command: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(command, comments=True)
    assert program == "layerlab"
    return python("-m", "layerlab", *arguments, cwd=folder, stdin=stdin)


def test_both_ways_are_taken():
    assert {"| layerlab" in command for command in RUN} == {True, False}
    assert set(MORE) <= set(RUN)


def carried_out(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command, after those that make what it names: they may have run in another process."""
    for word in shlex.split(command, comments=True):
        makes = {f"--out {word}", f"--new {word}"}
        maker = next((one for one in RUN if one != command and any(m in one for m in makes)), None)
        if maker is not None and not (folder / word).exists():
            carried_out(maker, folder)
    run = piped if "| layerlab" in command else typed
    done = run(f"{command} {MORE.get(command, '')}", folder)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.full
@pytest.mark.parametrize("command", RUN)
def test_command_runs(command, folder):
    done = carried_out(command, folder)
    assert str(folder) not in done.stdout  # paths begin where one stands
    out = re.search(r"--out (\S+)", command)
    if out:
        inside = {
            "retrofit": "config.json",
            "inspect": "report.html",
            "precision": "",
            "train": "smoke/runs",
            "adapt": "tokenizer.json",
            "compare": "smoke/report.html",
        }
        written = inside[re.findall(r"layerlab (\w+)", command)[-1]]
        assert (folder / out.group(1) / written).exists()


def test_the_chinese_edition_has_the_same_commands_python_and_links():
    chinese = (ROOT / "README.zh.md").read_text("utf-8")
    for language in ("console", "python"):
        assert blocks(language, chinese) == blocks(language)
    links = [set(re.findall(r"\]\(([^)]+)\)", text)) for text in (README, chinese)]
    assert links[0] - links[1] == {"README.zh.md"}
    headings = re.compile(r"^#+ (?=[^ ])", re.MULTILINE)
    assert len(headings.findall(chinese)) == len(headings.findall(README))


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code, folder):
    done = python("-c", code, cwd=folder)
    assert done.returncode == 0, done.stderr
