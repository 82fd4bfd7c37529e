"""A run in a process of its own: what is written for it, what it does, and how it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from layerlab.adaptation.pipeline import worker as stage_worker
from layerlab.corpus.corpus import extent, prepare
from layerlab.errors import UserError
from layerlab.experiments.executors import local
from layerlab.experiments.executors.local import run_all, run_one, wait_for
from layerlab.experiments.executors.process import ranks
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.experiments.executors.slots import RunSlot
from layerlab.experiments.plan.plan import plan
from layerlab.model.cost.match import matched
from layerlab.recipes.training import make_recipe
from layerlab.recipes.training_sections import RunSection
from layerlab.records.kept import warn_of_damage
from layerlab.records.result import read_result
from layerlab.records.run import read_record
from layerlab.system.locks import is_locked, lock_folder
from layerlab.training.run_spec import RunSpec, read_run, write_run
from layerlab.training.worker import LAUNCHED, main
from tests.experiments.executors.test_local import POSIX, Heard, gone, runs
from tests.experiments.executors.test_local import command as standin
from tests.support.forked import Forked, python
from tests.support.refused import refuses

WORKER = ("-m", "layerlab.training.worker")
WORDS = "the cat sat on the mat and the dog lay by the door while rain fell on the roof\n"
SMALL = {
    "name": "small",
    "model": {"width": 16, "layers": 1, "heads": 2, "context": 16},
    "train": {"max_steps": 6, "batch_size": 4},
    "evaluate": {"max_eval_blocks": 4},
    "run": {"save_steps": 2, "save_model": False},
}


@pytest.fixture
def small(tmp_path: Path) -> RunSpec:
    """A run of moments on a text of its own."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{number} {WORDS}" for number in range(400)))
    source = {"sources": [{"text": str(text)}], "vocab_size": 300}
    recipe = make_recipe({**SMALL, "data": source})
    (found,) = plan(recipe, extent(prepare(recipe.data), 16))
    return found


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    (one,) = runs("first")
    write_run(one, tmp_path / "one")
    assert read_run(tmp_path / "one") == one
    both = RunSpec(arm="a", recipe=one.recipe, digest="text", match=matched("llama", "gpt2"))
    write_run(both, tmp_path / "two")
    assert read_run(tmp_path / "two") == both


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory; expected the folder of a run"),
        ("[", "it is not JSON; expected the folder of a run"),
        ("[]", "it holds no table; expected the folder of a run"),
        ("{}", "it is of another version of layerlab"),
    ],
)
def test_a_folder_of_something_else_is_told_in_one_line(content, said, tmp_path, capsys):
    write_run(runs("first")[0], tmp_path)
    (tmp_path / "run.json").unlink()
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    refuses(said, read_run, tmp_path)
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "cannot read" in lines[0] and lines[1].startswith("type: python -m")


def test_the_first_of_several_processes_has_the_word(tmp_path, monkeypatch, capsys):
    # Whoever started them ends the others when it has spoken.

    def end(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", end)
    monkeypatch.setenv("RANK", "1")
    assert main([str(tmp_path)]) == 130 and not capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    assert main([str(tmp_path)]) == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.filterwarnings("default::layerlab.errors.DamageWarning")
@pytest.mark.parametrize("begin", [main, stage_worker.main])
def test_what_a_process_finds_damaged_is_one_line(begin, tmp_path, monkeypatch, capsys):
    with suppress(OSError, UserError):
        begin([str(tmp_path)])
    capsys.readouterr()
    warn_of_damage("a table in the cache does not count")
    assert capsys.readouterr().err == "a table in the cache does not count\n"


@pytest.mark.full
def test_a_worker_carries_out_a_run_once(small, tmp_path, monkeypatch):
    folder = tmp_path / "runs" / small.name
    heard = Heard()
    # A Python that greets whoever starts it.
    (tmp_path / "sitecustomize.py").write_text("print('good morning')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    (outcome,) = run_all([small], folder.parent, RunSection(), heard)
    assert outcome.ending == "finished" and outcome.last_lines == (), outcome
    assert read_result(folder) == outcome.result and outcome.result["updates"] == 6
    assert heard.updates[-1] == (small.name, 6) and heard.ends == {small.name: "finished"}
    # Done again it is done at once: here, where torch sees another number of threads.
    before = (folder / "result.json").stat().st_mtime_ns
    assert main([str(folder)]) == 0
    assert run_one(small, folder) == outcome.result
    assert (folder / "result.json").stat().st_mtime_ns == before
    # And alone, in this process, it comes to the same weights.
    other = run_one(small, tmp_path / "here" / small.name, heard)
    assert other["weights"] == outcome.result["weights"]


@pytest.mark.full
def test_a_worker_computes_with_the_threads_of_each_run(small, tmp_path):
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            folder = tmp_path / str(threads)
            write_run(replace(small, recipe=small.recipe.change({"run.threads": threads})), folder)
            assert main([str(folder)]) == 0 and torch.get_num_threads() == threads
            told = json.loads((folder / "manifest.json").read_text())["machine"]["threads"]
            assert told == threads
    finally:
        torch.set_num_threads(before)


def test_a_run_that_shares_its_device_has_no_speed(small, tmp_path, monkeypatch):
    alone = run_one(small, tmp_path / "alone")
    assert alone["tokens_per_second"] > 0
    for name, told in RunSlot(threads=1, shared=True).environment().items():
        monkeypatch.setenv(name, told)
    beside = run_one(small, tmp_path / "beside")
    assert beside["tokens_per_second"] is None and beside["seconds"] > 0
    assert beside["weights"] == alone["weights"]
    told = [read_record(tmp_path / name) for name in ("alone", "beside")]
    assert [one is not None and one.shares_device for one in told] == [False, True]


def test_a_folder_that_another_worker_holds_is_left_alone(small, tmp_path, capsys):
    folder = tmp_path / "runs" / small.name
    write_run(small, folder)
    with lock_folder(folder):
        assert main([str(folder)]) == 2
        refuses("another run is writing to", run_one, small, folder)
    assert "another run is writing to" in capsys.readouterr().err
    assert read_result(folder) is None


def test_a_run_that_another_process_ends_meanwhile_is_not_done_again(small, tmp_path, monkeypatch):
    folder = tmp_path / "runs" / small.name
    done = run_one(small, tmp_path / "done" / small.name)
    assert read_run(tmp_path / "done" / small.name) == small

    def end(folders: Iterable[Path]) -> AbstractContextManager[None]:
        shutil.copytree(tmp_path / "done", folder.parent)
        return lock_runs(folders)

    monkeypatch.setattr(local, "lock_runs", end)
    assert run_one(small, folder) == done
    with lock_folder(folder):  # what is finished is only read
        assert run_one(small, folder) == done


@pytest.mark.full
def test_a_run_that_fails_alone_says_why(small, tmp_path, monkeypatch):
    """Over two processes, which are not this one; who says it stands in for a worker."""
    both = RunSpec(
        arm="a", recipe=small.recipe.change({"run.num_processes": 2}), digest=small.digest
    )
    monkeypatch.setattr(local, "run_all", partial(run_all, command=standin("wrong")))
    assert "failed: the text is gone; put it back" in refuses(
        "all that it said is in", run_one, both, tmp_path / "runs" / both.name
    )


def test_a_run_whose_text_has_changed_since_it_was_planned_fails(small, tmp_path, capsys):
    changed = RunSpec(arm="a", recipe=small.recipe, digest="of another text")
    write_run(changed, tmp_path / "run")
    assert main([str(tmp_path / "run")]) == 2
    assert "is no longer what it was planned on" in capsys.readouterr().err


@pytest.mark.full
@POSIX
def test_a_run_that_is_told_to_stop_goes_on_bit_for_bit(small, tmp_path):
    settings = {"train.max_steps": 120, "run.save_steps": 60, "evaluate.eval_steps": 60}
    long = RunSpec(arm="long", recipe=small.recipe.change(settings), digest=small.digest)
    folder = tmp_path / "runs" / long.name
    write_run(long, folder)
    events = folder / "events.jsonl"
    own = Forked("-m", "layerlab.training.worker", folder)
    assert wait_for(lambda: events.exists() and "train" in events.read_text(), 120.0)
    own.process.terminate()
    assert own.wait(60.0).returncode == 143
    update = json.loads(events.read_text().splitlines()[-1])["update"]
    assert list((folder / "checkpoints").glob("step-*")) and 0 < update < 120
    resumed = run_one(long, folder)
    whole = run_one(long, tmp_path / "whole" / long.name)
    assert resumed["resumes"] == 1 and whole["resumes"] == 0
    assert resumed["weights"] == whole["weights"]


@POSIX
def test_a_worker_stops_when_its_parent_is_gone(tmp_path):
    """Also where what it says goes to a pipe that nobody reads any more."""
    (one,) = runs("first")
    folder = tmp_path / one.name
    folder.mkdir()
    code = (
        "import subprocess, sys, os, time;"
        "own = {**os.environ, 'LAYERLAB_PARENT': str(os.getpid())};"
        "subprocess.Popen(sys.argv[1:], env=own); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, *standin("slow"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert wait_for((folder / "events.jsonl").exists, 120.0)
        parent.kill()
        assert parent.stdout is not None
        parent.stdout.close()
    assert gone(tmp_path, [one])
    assert (folder / "kept").exists(), "it has left a checkpoint"


def begun(small: RunSpec, folder: Path, **settings: object) -> list[Forked]:
    """Two processes of a run of minutes, as torchrun starts them, after their first checkpoint."""
    long = {"train.max_steps": 10**5, "run.save_steps": 5, "run.num_processes": 2, **settings}
    write_run(replace(small, recipe=small.recipe.change(long)), folder)
    launched = {**os.environ, LAUNCHED: "one"}
    both = [Forked(*WORKER, folder, env={**launched, **rank}) for rank in ranks(2)]
    assert wait_for(lambda: list((folder / "checkpoints").glob("step-*")) != [], 120.0)
    return both


@pytest.mark.full
@POSIX
def test_what_one_of_two_processes_is_told_stops_both_and_is_said_once(small, tmp_path):
    both = begun(small, tmp_path / "run")
    os.kill(both[1].process.pid, signal.SIGUSR1)
    first, second = (one.wait(60.0) for one in both)
    assert first.returncode == second.returncode == 128 + signal.SIGUSR1
    (line,) = first.stderr.splitlines()
    assert line.startswith("interrupted; what is finished is kept in") and not second.stderr


@pytest.mark.full
@POSIX
@pytest.mark.parametrize("sign", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_hangs_or_dies_ends_the_other_in_one_line(sign, small, tmp_path):
    both = begun(small, tmp_path / "run", **{"run.timeout_minutes": 0.2})
    os.kill(both[1].process.pid, sign)
    first = both[0].wait(60.0)
    both[1].kill()
    assert first.returncode == 1
    (line,) = first.stderr.splitlines()
    assert line.startswith("another process of this run has ended, or was silent for run.timeout")


@pytest.mark.full
@POSIX
def test_what_ends_a_compiler_with_its_run_is_no_fault_of_either(small, tmp_path):
    # A terminal and torchrun signal the compiler as well; a linker then leaves an empty file.
    run = replace(small, recipe=small.recipe.change({"train.torch_compile": True}))
    folder, cache = tmp_path / "run", tmp_path / "cache"
    write_run(run, folder)
    own = Forked(*WORKER, folder, env={**os.environ, "LAYERLAB_CACHE": str(cache)})
    assert wait_for(lambda: "evaluation" in journal(folder) and compilers(own) != [], 120.0)
    own.process.terminate()
    while own.process.is_alive():
        for one in compilers(own):
            with suppress(psutil.NoSuchProcess):
                one.terminate()
    done = own.wait(60.0)
    assert done.returncode == 143 and len(done.stderr.splitlines()) == 1, done.stderr[-2000:]
    for file in cache.glob("inductor/*/*.so"):
        file.write_bytes(b"")
    assert python(*WORKER, folder, env={**os.environ, "LAYERLAB_CACHE": str(cache)}).returncode == 0


def compilers(own: Forked) -> list[psutil.Process]:
    try:
        return psutil.Process(own.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


# The second of two is killed while both read a checkpoint, as one that takes too much memory is.
DIES = """
import os, signal, sys
import torch.distributed.checkpoint as dcp
from layerlab.training.worker import main

if os.environ["RANK"] == "1":
    dcp.load = lambda *given, **more: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full
@POSIX
def test_a_checkpoint_is_not_blamed_for_a_process_that_dies_over_it(small, tmp_path):
    folder = tmp_path / "run"
    both = begun(small, folder, **{"run.sharding": "fsdp"})
    for one in both:
        one.kill()
    both = [Forked("-c", DIES, folder, env={**os.environ, **rank}) for rank in ranks(2)]
    first, second = (one.wait(60.0) for one in both)
    assert (first.returncode, second.returncode) == (1, -signal.SIGKILL)
    assert first.stderr.startswith("another process of this run has ended, or was silent")


@pytest.mark.full
@POSIX
def test_processes_stop_when_torchrun_is_gone(small, tmp_path):
    folder = tmp_path / "run"
    write_run(replace(small, recipe=small.recipe.change({"train.max_steps": 10**5})), folder)
    code = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    command = [sys.executable, "-c", code, sys.executable, *WORKER, str(folder)]
    with subprocess.Popen(command, env={**os.environ, LAUNCHED: "one"}) as parent:
        assert wait_for(lambda: "train" in journal(folder), 120.0)
        parent.kill()
    assert wait_for(lambda: not is_locked(folder), 60.0)
    assert list((folder / "checkpoints").glob("step-*")) and read_result(folder) is None


def journal(folder: Path) -> str:
    file = folder / "events.jsonl"
    return file.read_text() if file.exists() else ""
