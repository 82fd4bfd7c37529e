"""A command of the user's that scores a finished model: without a shell, and with a limit."""

import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from layerlab.data.fingerprint import hash_files
from layerlab.data.places import list_shown
from layerlab.errors import UserError
from layerlab.experiments.executors.process import end_group
from layerlab.recipes.comparison_sections import MODEL, Command, split_option
from layerlab.recipes.paths import is_there
from layerlab.records.file_digests import hash_file
from layerlab.records.parse import json_of
from layerlab.records.scores import LARGEST, ModelScore, TaskPart
from layerlab.system.untrusted.python_file import hash_beside
from layerlab.system.untrusted.trust import check_command
from layerlab.system.write_errors import make_temporary
from layerlab.validation import short_repr

EXPECTED = 'a last line of standard output with a number, {"score": 0.5}, or a list of numbers'
PYTHON = "python"  # the one that layerlab runs in
LONGEST = 1 << 24  # bytes of the last line


def hash_command(command: Command) -> str:
    """Return a digest of a command and of the files that it names, wherever they lie.

    With a script counts what it imports of its own folder, with a folder all files in it, unless
    the working folder lies in there. `--data=FILE` names a file, too.

    Raises:
        UserError: a file cannot be read.
    """
    found: list[Any] = []
    beside = []
    try:
        for number, word in enumerate(command.run):
            before, path = _find_named(word)
            if path and path.is_file():
                found.append([before + path.name, hash_file(path)])
                beside += [hash_beside(path)] if path.suffix == ".py" else []
            elif path and number and _is_apart(path):
                found.append([before + path.name, _hash_folder(path)])
            else:
                found.append(word)
    except OSError as error:
        raise UserError(
            f"cannot read a file that the command {shlex.join(command.run)} names: {error}"
        ) from None
    found += filter(None, beside)
    return command.digest + hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]


def _find_named(word: str) -> tuple[str, Path | None]:
    """Find what a word names, itself or behind `--data=`; return what stands before it, too."""
    for before, name in (("", word), split_option(word)):
        if name and is_there(Path(name)):
            return before, Path(name)
    return "", None


def _is_apart(path: Path) -> bool:
    """Return whether a place is a folder, and none in which all that is done here is written."""
    return path.is_dir() and not Path.cwd().is_relative_to(path.resolve())


def _hash_folder(folder: Path) -> str:
    inside = ((file, file.relative_to(folder).as_posix()) for file in list_shown(folder))
    return hash_files((one for one in inside if "__pycache__" not in one[1]), full=False)


def check_program(name: str, command: Command) -> None:
    """Refuse a command whose program, or the file that Python is to run, is not here.

    Raises:
        UserError: it is not.
    """
    program, *arguments = command.run
    if program == PYTHON:
        there = not arguments[0].endswith(".py") or is_there(Path(arguments[0]))
        program = arguments[0]
    else:
        there = MODEL in program or shutil.which(program) is not None
    if not there:
        raise UserError(
            f"the command {name!r} is to run {short_repr(program)}, which is not here; write a "
            'program or a file that is: run = ["python", "score.py", "{model}"]'
        )


def run_command(name: str, command: Command, model: Path, run: str) -> ModelScore:
    """Score a model by a command.

    Args:
        name: of the command.
        model: its folder.
        run: that it is of.

    Raises:
        UserError: nobody has asked for it, it fails, takes too long, prints no score, or was
            changed meanwhile.
    """
    check_command(name, command.run)
    asked = hash_command(command)
    argv = [word.replace(MODEL, str(model.resolve())) for word in command.run]
    argv[0] = sys.executable if argv[0] == PYTHON else argv[0]
    reporter, start = _Told(name, run, argv), time.monotonic()
    temporary = partial(make_temporary, tempfile.TemporaryFile)
    with temporary() as out, temporary() as err:
        try:
            own = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise reporter.error(f"cannot be started: {error}") from None
        try:
            code = own.wait(60 * command.timeout_minutes)
        except subprocess.TimeoutExpired:
            raise reporter.error(
                f"took longer than its timeout_minutes = {command.timeout_minutes:g}"
            ) from None
        finally:
            end_group(own)
            with suppress(OSError, AttributeError):  # nothing is left, or Windows
                os.killpg(own.pid, signal.SIGKILL)
        if code:
            raise reporter.error(f"ended with exit code {code}: {_last(err) or 'it said nothing'}")
        line = _last(out)
    if hash_command(command) != asked:
        raise reporter.error("was changed while it ran, or wrote into a folder that it names")
    found = _read(line, reporter)
    # A single number has no questions behind it; a list has one each.
    worth = found if isinstance(found, list) else [found]
    score = math.fsum(worth) / len(worth)
    questions = {str(index): one for index, one in enumerate(worth) if worth is found}
    return ModelScore(
        score=score,
        asked=asked,
        seconds=round(time.monotonic() - start, 3),
        parts=[TaskPart(task=name, weight=1.0, score=score, questions=questions)],
    )


class _Told:
    """A command, as an error names it."""

    def __init__(self, name: str, run: str, argv: Sequence[str]) -> None:
        self.name, self.run, self.argv = name, run, argv

    def error(self, why: str) -> UserError:
        """Return the error that a command gave no score, and why."""
        return UserError(
            f"the command {self.name!r} gave no score of {self.run}: it {why}; expected "
            f"{EXPECTED}; try it: {shlex.join(self.argv)}"
        )


def _read(line: str, reporter: _Told) -> float | list[float]:
    """Read the last line: a number, or a list of them.

    Raises:
        UserError: it has none, or others than finite ones.
    """
    try:
        found: Any = json_of(line)
    except ValueError:
        found = None
    if isinstance(found, dict):
        found = found.get("score")
    if found == []:
        raise reporter.error("printed an empty list")
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, bool) or not isinstance(one, int | float):
            raise reporter.error(f"printed {short_repr(line)} last")
        if not abs(one) <= LARGEST:
            raise reporter.error(f"printed {short_repr(one)}, which is no finite score")
    return [float(one) for one in found] if isinstance(found, list) else float(found)


def _last(file: Any) -> str:
    """Return the last line of a file that is not empty."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - LONGEST))
    lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
