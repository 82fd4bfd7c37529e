"""A shell for the commands of pages: each is run, or else named here, with the reason, and checked.

What would take long gets more words from the table `MORE`.
"""

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import typer
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from layerlab.cli.app import app
from layerlab.studies.engine.discovery import studies
from tests.support.forked import python
from tests.support.reader import DATA

ROOT = Path(__file__).resolve().parents[2]
# What a command begins with, and words that are put behind it.
MORE: Mapping[str, str] = {
    # Updates are tried before they are planned.
    "layerlab adapt yunshan-mini --plan": (
        "--set pretrain.batch_size=1 --set pretrain.block_size=32"
        " --set sft.batch_size=1 --set sft.block_size=128"
    ),
    "layerlab compare norm-placement --plan": "--set train.batch_size=1",
    "layerlab bench latency": "--repetitions 1 --threads 1 --new 4",
    "layerlab bench latency --accounting": "--shape 1b --context 8",
    "layerlab evaluate adapted": "--limit 1",
    "layerlab evaluate my/model": "--limit 1",
    "layerlab precision": "--samples 1 --context 16",
    "lm-eval run": "--limit 1",
}
# What an interpreter is given for a program. lm-eval reads the 14,000 files of its own tasks first,
# which takes ten seconds of a processor; here it does not.
LM_EVAL = """
from functools import partial
from lm_eval import tasks
tasks.TaskManager = partial(tasks.TaskManager, include_defaults=False)
from lm_eval.__main__ import cli_evaluate
cli_evaluate()
"""
PROGRAMS = {"layerlab": ["-m", "layerlab"], "lm-eval": ["-c", LM_EVAL], "python": []}


class Named(NamedTuple):
    """What is not run: why, and what is checked in its place."""

    reason: str
    check: Callable[[Sequence[str]], None]


@cache
def commands() -> Mapping[str, Any]:
    """What layerlab can be told, by its name."""
    found: Mapping[str, Any] = typer.main.get_command(app).commands
    return found


def parsed(words: Sequence[str]) -> None:
    """The words are a command of layerlab with its options, and of a study that there is."""
    name, *rest = words[1:]
    given = commands()[name].make_context(name, rest).params
    if name == "study":
        assert given["every"] or given["name"] in studies(), words


def extra(words: Sequence[str]) -> None:
    """The package has the extra that is named."""
    (name,) = re.findall(r"^\.\[(\w+)\]$", words[-1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert name in project["optional-dependencies"]


def target(words: Sequence[str]) -> None:
    """The Makefile has it."""
    assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def launched(words: Sequence[str]) -> None:
    """Accelerate knows the options, and a module that is started is there."""
    given = launch_command_parser().parse_args(list(words[2:]))
    assert find_spec(given.training_script) if given.module else given.training_script


def shared_out(words: Sequence[str]) -> None:
    """Torchrun knows the options."""
    assert get_args_parser().parse_args(list(words[1:])).training_script


def on_every_node(words: Sequence[str]) -> None:
    """What srun hands to a shell is a command of accelerate."""
    assert words[1:3] == ["bash", "-c"]
    launched(shlex.split(words[3]))


NAMED: Mapping[str, Named] = {
    "export FIRST=$(scontrol": Named("takes a cluster", lambda words: None),
    "layerlab compare NAME": Named("NAME stands for any recipe", parsed),
    "layerlab study": Named("takes minutes to hours; tests/studies has them small", parsed),
    "make": Named("writes the pages; tests/house/test_house.py compares them", target),
    "pip install": Named("takes a network", extra),
    "srun": Named("takes a cluster", on_every_node),
    "torchrun": Named("takes several GPUs", shared_out),
}


def lines(code: str) -> list[str]:
    """The commands of a block; one may go on in the next line."""
    whole = code.replace("\\\n", " ").splitlines()
    return [one.removeprefix("$ ") for one in whole if one and not one.startswith("#")]


def begins(line: str, table: Mapping[str, Any]) -> list[str]:
    return [words for words in table if f"{line} ".startswith(f"{words} ")]


def smaller(words: list[str], more: list[str]) -> list[str]:
    """A command with options in place of its own: all but --set count once."""
    for option in more:
        if option.startswith("--") and option != "--set" and option in words:
            at = words.index(option)
            words = words[:at] + words[at + 2 :]
    return words + more


class Shell:
    """As much of one as the pages need: commands, and names that hold words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = {"SLURM_NODEID": "0", "FIRST": "first"}
        self.env = {**os.environ, "LAYERLAB_DATA": str(folder / DATA), "COLUMNS": "120"}

    def type(self, line: str) -> str:
        """What a command prints; one that is named prints nothing."""
        named = begins(line, NAMED)
        assigned = re.fullmatch(r"(export )?(\w+)=(\S+|\$\((.*)\))", line)
        if assigned and not named:
            _, name, value, command = assigned.groups()
            self.held[name] = self.type(command).strip() if command else value
            self.env[name] = self.held[name]
            return ""
        for name, value in self.held.items():
            line = line.replace(f"${name}", value)
        words = shlex.split(line, comments=True)
        if named:
            NAMED[named[-1]].check(words)
            return ""
        return self.run(
            smaller(words, [more for one in begins(line, MORE) for more in MORE[one].split()])
        )

    def run(self, words: Sequence[str]) -> str:
        """Whatever is no program of `PROGRAMS` has to be named."""
        program, *rest = words
        assert program in PROGRAMS, f"{program!r} is neither run nor named: see NAMED"
        return self.interpret(*PROGRAMS[program], *rest)

    def interpret(self, *arguments: str) -> str:
        """What a process prints that does it with these arguments of an interpreter."""
        done = python(*arguments, cwd=self.folder, env=self.env)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
        return done.stdout


def correct(code: str) -> None:
    """A shell can read it."""
    plain = re.sub(r"^\$ ", "", code, flags=re.MULTILINE)
    said = subprocess.run(["bash", "-n"], input=plain, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and not said.stderr, said.stderr
