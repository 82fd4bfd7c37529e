"""The processes of one run: they end together, with the code of the one that failed first."""

import os
import signal
import sys
import time

import pytest

from layerlab.experiments.executors.local import run_all, wait_for
from layerlab.experiments.executors.process import RunProcess
from layerlab.experiments.executors.slots import RunSlot
from layerlab.recipes.training import make_recipe
from layerlab.recipes.training_sections import RunSection
from layerlab.training.run_spec import RunSpec
from layerlab.training.worker import LOST
from tests.support import mounted

# Each rank ends with its own code, or sleeps until it is killed.
PROGRAM = """
import os, sys, time
code = sys.argv[1].split(",")[int(os.environ["RANK"])]
if code == "waits":
    time.sleep(600)
print("the text is gone; put it back", flush=True)
sys.exit(int(code))
"""


def ranks(*codes: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, ",".join(codes)]


@pytest.mark.parametrize(
    ("codes", "found"),
    [(("waits", "2"), 2), (("1", "waits"), 1), (("waits", "3", "waits"), 3), (("0", "0"), 0)],
)
def test_the_first_that_fails_says_how_it_ended(codes, found, tmp_path):
    own = RunProcess(tmp_path, [RunSlot(threads=1)] * len(codes), ranks(*codes))
    try:
        assert wait_for(lambda: own.code() is not None, 60.0)
        # Whoever waited has been killed, and that is not what is told.
        assert [own.code(), own.code()] == [found, found]
        assert all(one.poll() is not None for one in own._all)
    finally:
        own.kill()


def test_what_a_user_can_mend_comes_before_what_fell_over_it(tmp_path):
    """Both are gone before anybody looks."""
    own = RunProcess(tmp_path, [RunSlot(threads=1)] * 2, ranks("1", "2"))
    for one in own._all:
        one.wait()
    assert own.code() == 2


@pytest.mark.skipif(os.name != "posix", reason="no signals: Windows")
def test_a_process_that_was_killed_comes_before_those_that_fell_over_it(tmp_path):
    program = PROGRAM.replace("sys.exit", "int(code) < 0 and os.kill(os.getpid(), 9); sys.exit")
    command = [sys.executable, "-c", program, "1,-9"]
    own = RunProcess(tmp_path, [RunSlot(threads=1)] * 2, command)
    for one in own._all:
        one.wait()
    assert own.code() == -9


@pytest.mark.skipif(os.name != "posix", reason="no signals: Windows")
def test_a_run_whose_second_process_refuses_is_not_tried_again(tmp_path):
    settings = RunSection(num_processes=2, max_parallel=1, max_attempts=3)
    one = RunSpec(arm="first", recipe=make_recipe({"train": {"max_steps": 4}}), digest="text")
    (outcome,) = run_all([one], tmp_path, settings, None, ranks("waits", "2"))
    assert outcome.attempts == 1 and outcome.text == "failed: the text is gone; put it back"


def test_what_fell_over_the_end_of_another_process_is_not_why_a_run_failed(tmp_path):
    settings = RunSection(num_processes=2, max_parallel=1)
    one = RunSpec(arm="first", recipe=make_recipe({"train": {"max_steps": 4}}), digest="text")
    # The second speaks last.
    program = """
import os, sys, time
if os.environ["RANK"] == "0":
    print("no space is left on the disk", flush=True)
    open(sys.argv[2] + "/said", "w").close()
    time.sleep(600)
while not os.path.exists(sys.argv[2] + "/said"):
    time.sleep(0.01)
print(sys.argv[1] + ", or was silent; see what it said", flush=True)
sys.exit(2)
"""
    command = [sys.executable, "-c", program, LOST]
    (outcome,) = run_all([one], tmp_path, settings, None, command)
    assert outcome.text == "failed: no space is left on the disk"


def test_a_process_that_is_silent_is_why_the_others_end(tmp_path):
    settings = RunSection(num_processes=2, max_parallel=1, max_attempts=1)
    one = RunSpec(arm="first", recipe=make_recipe({"train": {"max_steps": 4}}), digest="text")
    program = PROGRAM.replace("the text is gone; put it back", f"{LOST}, or was silent")
    command = [sys.executable, "-c", program, "1,waits"]
    (outcome,) = run_all([one], tmp_path, settings, None, command)
    why = "one of its processes said nothing for longer than run.timeout_minutes"
    assert outcome.text == f"failed ({why}): {LOST}, or was silent"


def test_a_run_that_is_silent_because_the_disk_is_full_says_so(tmp_path):
    settings = RunSection(max_parallel=1, max_attempts=1)
    one = RunSpec(arm="first", recipe=make_recipe({"train": {"max_steps": 4}}), digest="text")
    fills = ["sh", "-c", "head -c 1000000 /dev/zero > $0/rest 2> /dev/null; echo ended; exit 1"]
    with mounted.disk(tmp_path / "disk", "200k"):
        (outcome,) = run_all([one], tmp_path / "disk", settings, None, fills)
        assert "no space is left on the disk of" in outcome.text and "make room" in outcome.text


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="this system has no real-time signals")
@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ("exit 1", "exit code 1"),
        ("exit 137", "stopped by SIGKILL"),
        ("exit 170", "exit code 170"),
        ("kill -9 $$", "killed by SIGKILL"),
        ("kill -42 $$", "killed by signal 42"),
    ],
)
def test_a_run_that_is_silent_has_at_least_an_end(ending, why, tmp_path):
    settings = RunSection(max_parallel=1, max_attempts=1)
    one = RunSpec(arm="first", recipe=make_recipe({"train": {"max_steps": 4}}), digest="text")
    (outcome,) = run_all([one], tmp_path, settings, None, ["sh", "-c", ending])
    assert outcome.text == f"failed ({why}): its log is empty"


@pytest.mark.parametrize(
    ("count", "own", "expected"), [(1, None, ""), (2, None, str(4 << 20)), (2, "5", "5")]
)
def test_buffers_of_several_processes_are_given_back(count, own, expected, tmp_path, monkeypatch):
    name = "MALLOC_MMAP_THRESHOLD_"
    monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(name, own)
    program = f"import os, sys; sys.exit(os.environ.get({name!r}, '') != sys.argv[1])"
    command = [sys.executable, "-c", program, expected]
    work = RunProcess(tmp_path, [RunSlot(threads=1)] * count, command)
    while work.code() is None:
        time.sleep(0.01)
    assert work.code() == 0
