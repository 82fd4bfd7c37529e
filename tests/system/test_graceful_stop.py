"""Signals: the first is noted, a later one ends the process; elsewhere nothing is touched."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from layerlab.system.signals import GracefulStop, Stopped

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_the_code_says_which(number):
    with GracefulStop() as halt:
        assert not halt.wanted
        os.kill(os.getpid(), number)
        assert halt.wanted
        with pytest.raises(Stopped) as ended:
            halt.leave()
    assert ended.value.code == 128 + number
    assert isinstance(ended.value, SystemExit)


def test_former_handlers_come_back_also_after_an_error():
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="inside"), GracefulStop():
        assert signal.getsignal(signal.SIGTERM) not in before
        raise ValueError("inside")
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_under_nohup_a_terminal_that_is_closed_is_not_heard():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with GracefulStop() as halt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not halt.wanted
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_touched():
    seen = []

    def work() -> None:
        with GracefulStop() as halt:
            seen.append((signal.getsignal(signal.SIGTERM), halt.wanted))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


TWICE = """
import os, signal, sys, time
from layerlab.system.signals import ECHO, GracefulStop
with GracefulStop() as halt:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here", flush=True)
    time.sleep(1.1 * ECHO)
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    print("never", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_second_signal_that_is_no_echo_ends_the_process_at_once(name, code):
    command = [sys.executable, "-c", TWICE, name]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "still here\n", "")
