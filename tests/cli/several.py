"""Several commands in one process that has imported everything once; each is told apart."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.forked import python

PROGRAM = """
import contextlib, io, json, sys
from layerlab.cli.app import app
from layerlab.console.ending import run_app

found = []
for words in json.loads(sys.argv[1]):
    out, error = io.StringIO(), io.StringIO()
    sys.argv = ["layerlab", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = run_app(app)
    found.append([code, out.getvalue(), error.getvalue()])
print(json.dumps(found))
"""


class Said(NamedTuple):
    """What one command gave back."""

    code: int
    out: str
    error: str


def several(commands: Sequence[Sequence[str]], folder: Path) -> list[Said]:
    """Run commands one after the other, in a folder."""
    words = json.dumps([list(map(str, one)) for one in commands])
    done = python("-c", PROGRAM, words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [Said(*one) for one in json.loads(done.stdout.splitlines()[-1])]
