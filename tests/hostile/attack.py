"""One hostile input: the command that meets it, and what has to come of it."""

import contextlib
import io
import time
from dataclasses import dataclass

from layerlab.cli.app import app
from layerlab.cli.ending import run_app

SLOW = 10.0  # seconds; libraries are loaded by then


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit code, and what it said."""

    code: int
    out: str
    err: str
    seconds: float

    def refused(self, said: str = "") -> "Ended":
        """One line that a user can act on, soon, and nothing that steers a terminal."""
        assert self.code == 2, (self.code, self.err, self.out[-300:])
        assert self.err.startswith("layerlab: ") and self.err.count("\n") == 1, self.err
        assert said in self.err, self.err
        return self.survived()

    def survived(self) -> "Ended":
        """No traceback, no escape sequence, no waiting."""
        assert self.code in {0, 1, 2}, (self.code, self.err)
        assert "Traceback" not in self.out + self.err
        assert "\x1b" not in self.out + self.err
        assert self.seconds < SLOW
        return self


def typed(*words: str) -> Ended:
    """A command as typed, in this process: an exception that nobody turned into words escapes."""
    out, err, start = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_app(lambda **options: app(list(words), **options))
    return Ended(code, out.getvalue(), err.getvalue(), time.monotonic() - start)
