"""One hostile input: the command that meets it, and what has to come of it."""

import contextlib
import functools
import io
import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from typer.main import get_command

from layerlab.cli.app import app
from layerlab.cli.ledger import CODES
from layerlab.console.ending import run_app

SLOW = 10.0  # seconds of this process until it refuses, where libraries are loaded by then
ROOM = 4 * 2**30  # bytes of addresses: a command that wants more fails, and not its machine
HANGING = 60.0  # seconds by the clock, on a machine that others use too


@contextlib.contextmanager
def unblock_pipes(folder: Path) -> Iterator[None]:
    """Open the other end of all pipes after a while: who waits for it fails, and does not hang."""
    helper = threading.Timer(5, lambda: [_open(one) for one in folder.rglob("*") if one.is_fifo()])
    helper.start()
    try:
        yield
    finally:
        helper.cancel()
        helper.join()


def _open(pipe: Path) -> None:
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit code, and what it said."""

    code: int
    out: str
    err: str
    seconds: float
    busy: float

    def refused(self, said: str = "") -> "Ended":
        """One line that a user can act on, soon, and nothing that steers a terminal."""
        assert self.code == 2, (self.code, self.err, self.out[-300:])
        assert self.err.startswith("layerlab: ") and self.err.count("\n") == 1, self.err
        assert said in self.err, self.err
        return self.survived()

    def survived(self) -> "Ended":
        """No traceback, no escape sequence, no waiting; what does its work may take its time."""
        assert self.code in {0, 1, 2, *CODES.values()}, (self.code, self.err)
        assert "Traceback" not in self.out + self.err
        assert "\x1b" not in self.out + self.err
        assert self.seconds < HANGING and (self.code != 2 or self.busy < SLOW)
        return self


@contextlib.contextmanager
def limit_memory() -> Iterator[None]:
    """Let this process have so much more memory, and no more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@functools.cache
def _command() -> Any:
    """All commands; typer builds them for each call, which takes longer than most refusals."""
    return get_command(app)


def typed(*words: str) -> Ended:
    """A command as typed, in this process: an exception that nobody turned into words escapes."""
    out, err = io.StringIO(), io.StringIO()
    start, before = time.monotonic(), time.process_time()
    with limit_memory(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_app(lambda **options: _command()(list(words), **options))
    seconds, busy = time.monotonic() - start, time.process_time() - before
    return Ended(code, out.getvalue(), err.getvalue(), seconds, busy)
