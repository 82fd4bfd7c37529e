"""A run that is stopped from outside says what is kept, and ends with the signal's code."""

import signal
import sys
import threading

import pytest

from layerlab.errors import Interrupted
from layerlab.system.signals import SENT, hear_interruptions
from tests.evaluation.written import boolq
from tests.support.forked import python

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without words")


@POSIX
@pytest.mark.parametrize("name", ["SIGINT", *SENT[1:]])
def test_a_signal_ends_it_at_once_in_words(name, tmp_path):
    number, reached = getattr(signal, name), False
    own = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    former = signal.signal(number, own)  # a shell in the background may ignore interrupts for us
    try:
        with pytest.raises(Interrupted) as caught, hear_interruptions(tmp_path):
            try:
                signal.raise_signal(number)
            except Exception:  # nobody who catches errors holds it up
                reached = True
            reached = True
        assert not reached and signal.getsignal(number) == own
    finally:
        signal.signal(number, former)
    assert caught.value.code == 128 + number
    assert str(caught.value) == (
        f"interrupted; what is finished is kept in {tmp_path}: type the same command to go on"
    )


@POSIX
def test_who_listens_already_goes_on_listening(tmp_path):
    heard: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with hear_interruptions(tmp_path):
            signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, former)


def test_outside_the_main_thread_nothing_is_heard(tmp_path):
    done: list[bool] = []

    def run() -> None:
        with hear_interruptions(tmp_path):
            done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]


# The command itself; the first task is told to end the process when its first prompts are run.
SCRIPT = """
import os, signal, sys
from layerlab.console.progress import NullProgress
from layerlab.__main__ import main

NullProgress.step = lambda self, now="", steps=1: os.kill(os.getpid(), signal.SIGTERM)
sys.argv = ["layerlab", "evaluate", "pre-norm", "--suite", "boolq", "--quiet", *sys.argv[1:]]
main()
"""


@pytest.mark.full
@POSIX
def test_a_command_that_a_scheduler_ends_says_what_is_kept(tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    boolq(tmp_path, "true", "false")
    out = tmp_path / "out"
    run = python("-c", SCRIPT, "--data", tmp_path, "--out", out)
    assert (run.returncode, run.stdout) == (128 + signal.SIGTERM, "")
    assert run.stderr == (
        f"layerlab: interrupted; what is finished is kept in {out / 'leaves'}: type the same "
        "command to go on\n"
    )
    assert not [one for one in tmp_path.rglob(".*")]
