"""Workers that carry out one run after another: nothing of one reaches the next."""

import json
import os
import signal
import subprocess
from pathlib import Path
from threading import Thread

import psutil
import pytest

from layerlab.experiments.executors import worker_pool as module
from layerlab.experiments.executors.local import run_all, run_one, wait_for
from layerlab.experiments.executors.slots import RunSlot
from layerlab.experiments.executors.worker_pool import Worker, WorkerPool
from layerlab.recipes.training_sections import RunSection
from layerlab.records.heartbeat import LOG
from layerlab.system.untrusted.trust import GRANTS, trust
from layerlab.training import fresh_start
from layerlab.training.fresh_start import FreshStart
from layerlab.training.run_spec import RunSpec, write_run
from layerlab.training.worker import PARENT
from tests.experiments.executors.test_local import POSIX, Heard
from tests.support.forked import OwnFork
from tests.training.test_worker import small  # noqa: F401

PLACE = RunSlot(threads=1)
# What Python says of a fork while another thread waits, as that of xdist does.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def seeded(run: RunSpec, seed: int, **settings: object) -> RunSpec:
    changed = run.recipe.change({"train.seed": seed, **settings})
    return RunSpec(arm=run.arm, recipe=changed, digest=run.digest)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[psutil.Process]:
    """The processes of the workers that are started."""
    found = []
    # They begin as copies of this process; tests/training/test_worker.py starts one as a user does.
    monkeypatch.setattr(subprocess, "Popen", OwnFork)

    class Counted(Worker):
        def __init__(self, place: RunSlot, log: Path) -> None:
            super().__init__(place, log)
            found.append(psutil.Process(self.process.pid))

    monkeypatch.setattr(module, "Worker", Counted)
    return found


def test_a_worker_carries_out_one_run_after_another(
    small: RunSpec,  # noqa: F811
    tmp_path: Path,
    started: list[psutil.Process],
) -> None:
    changed = RunSpec(arm="changed", recipe=small.recipe, digest="another text")
    plan = [seeded(small, 1), seeded(small, 2), changed, seeded(small, 3)]
    heard = Heard()
    settings = RunSection(max_parallel=1)
    first, second, failed, third = run_all(plan, tmp_path / "runs", settings, heard)
    assert len(started) == 2 and not any(one.is_running() for one in started)
    assert "is no longer what it was planned on" in failed.last_lines[-1] and failed.attempts == 1
    for run, found in zip((plan[0], plan[1], plan[3]), (first, second, third), strict=True):
        assert found.result is not None and found.ending == "finished"
        alone = run_one(run, tmp_path / "alone" / run.name)
        assert found.result["weights"] == alone["weights"]
        assert found.result["nats"] == alone["nats"]
        assert (found.folder / LOG).read_text() == ""
    peaks = [one.result["peak_memory_bytes"] for one in (first, second, third) if one.result]
    assert max(peaks) < 1.3 * min(peaks)  # pages of files come and go with what else runs


@pytest.mark.full
@POSIX
def test_a_worker_that_is_stopped_or_killed_is_replaced(
    small: RunSpec,  # noqa: F811
    tmp_path: Path,
    started: list[psutil.Process],
) -> None:
    run = seeded(small, 1, **{"train.max_steps": 20_000, "run.save_steps": 50})
    folder = tmp_path / run.name
    write_run(run, folder)
    pool = WorkerPool()
    kept = folder / "checkpoints"
    try:
        work = pool.start(folder, PLACE)
        assert wait_for(lambda: any(kept.glob("*")) or work.code() is not None, 60)
        work.stop()
        assert wait_for(lambda: work.code() is not None, 60)
        assert work.code() == 128 + signal.SIGTERM and any(kept.glob("*")), work.words()
        with (folder / LOG).open("a") as log:
            log.write("What an earlier attempt ended with.\n")
        again = pool.start(folder, PLACE)
        assert wait_for(lambda: (folder / "manifest.json").exists(), 60) and again.code() is None
        again.kill()
        assert again.code() == -signal.SIGKILL and again.code() is not None
        assert again.words() == []
    finally:
        pool.close()
    assert len(started) == 2 and not any(one.is_running() for one in started)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no cores to choose: not Linux")
def test_a_worker_computes_in_its_slot_and_may_do_what_is_granted_here(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    with trust(trust_remote_code=True):
        worker = Worker(RunSlot(threads=3, cores=(core,), gpus="7"), tmp_path / LOG)
    try:
        process = psutil.Process(worker.process.pid)
        given = process.environ()
        assert (given["OMP_NUM_THREADS"], given["CUDA_VISIBLE_DEVICES"]) == ("3", "7")
        assert json.loads(given[GRANTS])["remote_code"] and given[PARENT] == str(os.getpid())
        assert process.cpu_affinity() == [core]
    finally:
        worker.close()


@pytest.mark.full
def test_an_idle_worker_takes_runs_of_its_own_slot_alone(
    small: RunSpec,  # noqa: F811
    tmp_path: Path,
    started: list[psutil.Process],
) -> None:
    write_run(small, tmp_path)
    pool = WorkerPool()
    try:
        for slot in (PLACE, RunSlot(threads=1, gpus="1"), PLACE):
            work = pool.start(tmp_path, slot)
            assert wait_for(lambda work=work: work.code() is not None, 60) and work.code() == 0
    finally:
        pool.close()
    assert len(started) == 2


# Workers are copies of this process: to them, whatever is left is too much; or they are killed
# between the end of a run and the answer.
@pytest.mark.full
@pytest.mark.parametrize(
    ("place", "name", "one"),
    [
        (fresh_start, "LEFT", -(2**40)),
        (FreshStart, "restore", lambda _: os.kill(os.getpid(), signal.SIGKILL)),
    ],
)
def test_a_worker_that_keeps_memory_or_is_killed_is_replaced_and_its_run_counts(
    place: object,
    name: str,
    one: object,
    small: RunSpec,  # noqa: F811
    tmp_path: Path,
    started: list[psutil.Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = [seeded(small, 1), seeded(small, 2)]
    monkeypatch.setattr(place, name, one)
    found = run_all(plan, tmp_path / "runs", RunSection(max_parallel=1))
    assert len(started) == 2 and not any(one.is_running() for one in started)
    assert [(each.ending, each.attempts) for each in found] == [("finished", 1)] * 2
    for run, each in zip(plan, found, strict=True):
        alone = run_one(run, tmp_path / "alone" / run.name)
        assert each.result is not None and each.result["weights"] == alone["weights"]


@pytest.mark.full
@POSIX
def test_a_run_whose_worker_is_killed_goes_on_in_a_new_one_to_the_same_weights(
    small: RunSpec,  # noqa: F811
    tmp_path: Path,
    started: list[psutil.Process],
) -> None:
    settings = {"train.max_steps": 120, "run.save_steps": 10}
    plan = [seeded(small, seed, **settings) for seed in (1, 2)]
    kept = tmp_path / "runs" / plan[0].name / "checkpoints"

    def kill() -> None:
        assert wait_for(lambda: any(kept.glob("[!.]*")), 60)
        started[0].kill()

    heard, killer = Heard(), Thread(target=kill)
    killer.start()
    found = run_all(plan, tmp_path / "runs", RunSection(max_parallel=1), heard)
    killer.join()
    assert [(one.ending, one.attempts) for one in found] == [("finished", 2), ("finished", 1)]
    (note,) = heard.notes
    assert note == f"{plan[0].name}: killed by SIGKILL; it goes on from its last checkpoint"
    assert len(started) == 2
    for run, one in zip(plan, found, strict=True):
        alone = run_one(run, tmp_path / "alone" / run.name)
        assert one.result is not None and one.result["weights"] == alone["weights"]
