"""Each run has cores of its own, or a GPU; where there are too few, nobody is pinned."""

import os
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

from layerlab import UserError
from layerlab.experiments.executors import slots as module
from layerlab.experiments.executors.slots import RunSlot, cores, gpus, share_devices, slots
from layerlab.recipes.training_sections import RunSection
from layerlab.system.hardware import SHARED_DEVICE
from tests.support.forked import empty_python
from tests.support.refused import refuses

MANY = 24
FOUR = [(0, 4), (1, 5), (2, 6), (3, 7)]


def settings(**given: object) -> RunSection:
    return RunSection.model_validate(given)


def pinned(found: list[tuple[RunSlot, ...]]) -> list[list[tuple[int, ...]]]:
    return [[slot.cores for slot in row] for row in found]


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of four cores with two hardware threads each."""
    monkeypatch.setattr(module, "cores", lambda: FOUR)


@pytest.mark.usefixtures("four")
def test_a_run_for_every_physical_core():
    assert pinned(slots(settings(), MANY)) == [[(0, 4)], [(1, 5)], [(2, 6)], [(3, 7)]]
    assert pinned(slots(settings(threads=2), MANY)) == [[(0, 4, 1, 5)], [(2, 6, 3, 7)]]
    assert pinned(slots(settings(num_processes=2), MANY)) == [[(0, 4), (1, 5)], [(2, 6), (3, 7)]]
    assert pinned(slots(settings(max_parallel=1), MANY)) == [[(0, 4)]]
    assert pinned(slots(settings(threads=3), MANY)) == [[(0, 4, 1, 5, 2, 6)]]


@pytest.mark.usefixtures("four")
def test_more_than_there_is_room_for_is_pinned_nowhere():
    assert pinned(slots(settings(max_parallel=5), MANY)) == [[()]] * 5
    assert pinned(slots(settings(threads=8), MANY)) == [[()]]
    assert pinned(slots(settings(max_parallel=2, num_processes=4), MANY)) == [[()] * 4] * 2


@pytest.mark.full
def test_cores_are_those_that_this_process_may_use():
    found = cores()
    usable = os.sched_getaffinity(0)
    assert found and {one for core in found for one in core} <= usable
    every = [one for core in found for one in core]
    assert len(every) == len(set(every)), "a hardware thread belongs to one core"
    only = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from layerlab.experiments.executors.slots import cores; print(cores())"
    )
    told = empty_python("-c", only, check=True)
    assert told.stdout.strip() == str([(min(usable),)])


def test_hardware_threads_are_read_as_the_system_writes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SIBLINGS", str(tmp_path / "{}"))
    (tmp_path / "0").write_text("0-1,6\n")
    (tmp_path / "2").write_text("nonsense")
    assert module._siblings(0) == {0, 1, 6}
    assert module._siblings(2) == {2} and module._siblings(9) == {9}


def test_a_container_is_not_given_more_than_its_time(tmp_path, monkeypatch):
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(module, "_QUOTA", str(quota))
    told = {"200000 100000": 2, "max 100000": 64, "50000 100000": 1, "9900000 100000": 64}
    for text, count in told.items():
        quota.write_text(text)
        assert module._allow(64) == count
    quota.unlink()
    assert module._allow(64) == 64


def test_a_process_and_all_that_it_starts_stay_where_they_are_put():
    """Threads that a process starts later keep to its cores, too."""
    core = max(os.sched_getaffinity(0))
    code = (
        "import os, sys, threading; sys.stdin.readline();"
        "t = threading.Thread(target=lambda: print(os.sched_getaffinity(0))); t.start(); t.join()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as own:
        RunSlot(threads=1, cores=(core,)).pin(own.pid)
        told, _ = own.communicate("go\n", timeout=60)
    assert told.strip() == str({core})
    RunSlot(threads=1, cores=(core,)).pin(own.pid)  # it has ended; nobody minds


def test_threads_and_gpus_are_told_by_the_environment():
    assert RunSlot(threads=3).environment() == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
    assert RunSlot(threads=1, gpus="2,3").environment()["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert RunSlot(threads=1, shared=True).environment()[SHARED_DEVICE] == "1"


def test_a_run_is_told_that_others_compute_on_its_device(monkeypatch):
    monkeypatch.setattr(module, "gpus", lambda: ["0", "1", "2"])

    def shared(**given: Any) -> list[bool]:
        return [row[0].shared for row in slots(settings(**given), MANY)]

    assert shared(device="cuda") == [False] * 3
    assert shared(device="cuda", max_parallel=4) == [True, False, False, True]
    assert shared(device="cuda", max_parallel=2, num_processes=2) == [True, True]
    assert shared(device="cuda:1", max_parallel=1) == [False]
    assert shared(device="cuda:1", max_parallel=2) == [True] * 2
    # Two runs have a GPU each, however many might have gone on at once.
    alone = slots(settings(device="cuda", max_parallel=6), 2)
    assert [row[0].shared for row in alone] == [False] * 2


@pytest.mark.usefixtures("four")
def test_a_run_is_told_that_others_compute_on_its_cores():
    def shared(runs: int = MANY, **given: Any) -> list[bool]:
        return [row[0].shared for row in slots(settings(**given), runs)]

    assert shared(max_parallel=4) == [False] * 4 and shared(max_parallel=5) == [True] * 5
    assert shared(max_parallel=3, threads=2) == [True] * 3
    # Its own threads and processes are not those of other runs.
    assert shared(threads=8) == shared(num_processes=8) == [False]
    assert shared(3, max_parallel=5) == [False] * 3


def test_a_gpu_for_every_run(monkeypatch):
    monkeypatch.setattr(module, "gpus", lambda: ["0", "3", "GPU-7"])
    assert [row[0].gpus for row in slots(settings(device="cuda"), MANY)] == ["0", "3", "GPU-7"]
    assert [row[0].gpus for row in slots(settings(device="cuda", max_parallel=4), MANY)] == [
        *("0", "3", "GPU-7"),
        "0",
    ]
    # The processes of one run see all its GPUs: each takes the one with its own number.
    (both,) = slots(settings(device="cuda", num_processes=2), MANY)
    assert [slot.gpus for slot in both] == ["0,3", "0,3"]
    # A device by its number is left to the run.
    assert slots(settings(device="cuda:1"), MANY) == [(RunSlot(threads=1),)]
    with pytest.raises(
        UserError, match=r"one GPU each, and there are 3 here; write num_processes = 3"
    ):
        slots(settings(device="cuda", num_processes=4), MANY)


@pytest.mark.usefixtures("four")
def test_a_plan_counts_the_places_that_there_are(monkeypatch):
    def count(runs: int = MANY, **given: Any) -> int:
        return len(share_devices(settings(**given), runs))

    assert count() == 4 and count(3) == 3
    assert count(threads=2) == count(num_processes=2) == 2
    assert count(max_parallel=9) == count(max_parallel=9, executor="submitit") == 9
    assert count(max_parallel=9, executor="slurm", slurm={"parallel": 5}) == 5
    assert count(device="npu") == 1
    monkeypatch.setattr(module, "gpus", list)
    assert count(device="cuda") == 1 and count(9, device="cuda", max_parallel=2) == 2
    monkeypatch.setattr(module, "gpus", lambda: ["0", "3", "4"])
    assert count(device="cuda") == 3


@pytest.mark.usefixtures("four")
def test_a_run_asks_for_its_cores_and_for_whole_gpus(monkeypatch):
    def asked(**given: Any) -> list[Any]:
        return share_devices(settings(**given), MANY)

    assert asked(threads=2) == [{"cpu": Fraction(1, 2)}] * 2
    assert asked(threads=2, max_parallel=5) == [{"cpu": Fraction(1, 2)}] * 5
    # Of more threads than cores the seconds that were measured tell; of processes they do not.
    assert asked(threads=8) == [{"cpu": 1}]
    assert asked(num_processes=8) == [{"cpu": 2}]
    assert asked(device="cuda:1", max_parallel=2) == [{"cuda:1": 1}] * 2
    assert asked(executor="slurm", slurm={"parallel": 2}) == [{}] * 2
    monkeypatch.setattr(module, "gpus", list)
    assert asked(device="cuda", max_parallel=2) == [{"cuda": 1}] * 2
    monkeypatch.setattr(module, "gpus", lambda: ["0", "3"])
    assert asked(device="cuda", max_parallel=3) == [{"0": 1}, {"3": 1}, {"0": 1}]
    assert asked(device="cuda", num_processes=2) == [{"0": 1, "3": 1}]


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpus() == []
    refuses("there is no GPU here that PyTorch can use", slots, settings(device="cuda"), MANY)


def test_gpus_that_the_environment_hides_are_not_used(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 6")
    assert gpus() == ["5", "6"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpus() == ["0", "1"]
