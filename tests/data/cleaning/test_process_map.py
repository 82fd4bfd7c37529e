"""Batches go to several processes and come back in order, a few at a time."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from layerlab.data.cleaning import process_map
from layerlab.data.cleaning.process_map import AHEAD, map_in_processes
from tests.support.refused import refuses


def work(number: int) -> tuple[int, int]:
    time.sleep(0.05 * (number % 3))
    return number, os.getpid()


def leave(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.full
def test_results_come_in_order_and_only_a_few_batches_wait(monkeypatch):
    monkeypatch.setattr(process_map, "_count_processes", lambda: 2)
    given: list[int] = []
    found = map_in_processes(work, (given.append(one) or one for one in range(20)))
    first = next(found)
    assert len(given) == 2 * AHEAD + 1
    rest = list(found)
    assert [number for number, _ in (first, *rest)] == list(range(20)) == given
    assert os.getpid() not in {process for _, process in rest}


@pytest.mark.parametrize(("batches", "processes"), [(1, 2), (3, 1), (0, 2)])
def test_what_one_process_can_do_starts_no_others(monkeypatch, batches, processes):
    monkeypatch.setattr(process_map, "_count_processes", lambda: processes)
    found = list(map_in_processes(work, range(batches)))
    assert found == [(number, os.getpid()) for number in range(batches)]


def test_without_loky_there_is_one_process(monkeypatch):
    monkeypatch.setattr(process_map, "find_spec", lambda name: None)
    assert {process for _, process in map_in_processes(work, range(3))} == {os.getpid()}


SCRIPT = """
import time
from layerlab.data.cleaning import process_map
process_map._count_processes = lambda: 2
for name in process_map.map_in_processes(str, ["x" * 2**20] * 99):
    print(process_map.os.getpid(), flush=True)
    time.sleep(0.5)
"""


@pytest.mark.full
def test_processes_end_with_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE)
    parent.stdout.readline()
    children = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.communicate()
    assert children and not psutil.wait_procs(children, timeout=30)[1]


@pytest.mark.full
def test_a_process_that_is_killed_is_told(monkeypatch):
    monkeypatch.setattr(process_map, "_count_processes", lambda: 2)
    refuses("set LOKY_MAX_CPU_COUNT=1", list, map_in_processes(leave, range(3)))
