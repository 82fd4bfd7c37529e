"""Many runs side by side: crashes stay alone, nothing is done twice, nothing is left behind."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from layerlab import UserError
from layerlab.console.progress import Progress
from layerlab.experiments.executors.local import run_all, run_one, wait_for
from layerlab.recipes.training import make_recipe
from layerlab.recipes.training_sections import RunSection
from layerlab.system.hardware import peak_memory, reset_peak_memory
from layerlab.system.signals import Stopped
from layerlab.training.run_spec import RunSpec
from tests.experiments.executors.test_lockstep import planned
from tests.support.forked import Forked

STANDIN = Path(__file__).parent / "standin.py"
POSIX = pytest.mark.skipif(os.name != "posix", reason="no signals: Windows")


def command(how: str) -> list[str]:
    return [sys.executable, str(STANDIN), how]


def runs(*arms: str) -> list[RunSpec]:
    recipe = make_recipe({"name": "side", "train": {"max_steps": 4}})
    return [RunSpec(arm=arm, recipe=recipe, digest="text") for arm in arms]


class Heard(Progress):
    """A display that writes down what it is told."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, int]] = []
        self.ends: dict[str, str] = {}
        self.notes: list[str] = []

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        self.updates.append((name, event["update"]))

    def end(self, name: str, outcome: str = "finished") -> None:
        self.ends[name] = outcome

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.full
def test_memory_is_that_of_the_run_and_not_of_what_came_before(tmp_path, cache):
    run = planned()[0]
    if not reset_peak_memory():
        pytest.skip("this system counts the peak of a whole process alone")
    held = torch.ones(100_000_000)  # of four bytes each
    high = peak_memory("cpu")
    del held
    found = run_one(run, tmp_path / run.name)
    assert 0 < found["peak_memory_bytes"] < high - 200 * 2**20


def told(run: RunSpec, out: Path) -> dict[str, Any]:
    return json.loads((out / run.name / "result.json").read_text())


def attempts(run: RunSpec, out: Path) -> int:
    return len(list((out / run.name).glob("attempt-*")))


@pytest.mark.full
def test_runs_in_their_order_on_cores_of_their_own(tmp_path):
    plan, heard = runs("first", "second", "third"), Heard()
    outcomes = run_all(plan, tmp_path, RunSection(max_parallel=2), heard, command("well"))
    assert [one.run for one in outcomes] == plan
    assert {one.ending for one in outcomes} == {"finished"}
    assert [one.result for one in outcomes] == [told(one, tmp_path) for one in plan]
    assert heard.ends == {one.name: "finished" for one in plan}
    assert {name for name, _ in heard.updates} == {one.name for one in plan}
    assert heard.updates[-1] == (plan[-1].name, 3)
    environment = told(plan[0], tmp_path)["environment"]
    assert environment == {"OMP_NUM_THREADS": "1", "RANK": None, "WORLD_SIZE": None}
    begun = [(tmp_path / one.name / "attempt-0").stat().st_mtime_ns for one in plan]
    assert begun[2] > max(begun[:2]), "two at once"
    if len(os.sched_getaffinity(0)) > 1:
        first, second = (told(one, tmp_path)["cores"] for one in plan[:2])
        assert first and second and not {*first} & {*second}


def test_what_is_finished_is_not_done_again(tmp_path):
    plan, heard = runs("first", "second"), Heard()
    run_all(plan[:1], tmp_path, RunSection(max_parallel=1), None, command("well"))
    outcomes = run_all(plan, tmp_path, RunSection(max_parallel=1), heard, command("well"))
    assert [one.ending for one in outcomes] == ["skipped", "finished"]
    assert [attempts(one, tmp_path) for one in plan] == [1, 1]
    assert heard.ends == {plan[0].name: "skipped", plan[1].name: "finished"}
    # What is no result of this run is neither believed nor written over.
    file = tmp_path / plan[0].name / "result.json"
    file.write_text(json.dumps({"run": "another"}))
    with pytest.raises(UserError, match=r"result\.json is not believed: it has no schema; delete"):
        run_all(plan[:1], tmp_path, RunSection(), None, command("well"))
    assert file.read_text() == '{"run": "another"}' and attempts(plan[0], tmp_path) == 1


@pytest.mark.parametrize(
    ("how", "why"), [("crash", "exit code 1"), ("killed", "killed by SIGKILL")]
)
def test_a_run_that_crashes_is_resumed_and_stops_no_other(how, why, tmp_path):
    plan, heard = runs("first", "second"), Heard()
    outcomes = run_all(plan, tmp_path, RunSection(max_parallel=1), heard, command(how))
    assert [one.ending for one in outcomes] == ["finished", "finished"]
    assert [one.attempts for one in outcomes] == [2, 1]
    assert told(plan[0], tmp_path)["start"] == 1, "from where it was cut off"
    (note,) = heard.notes
    assert note == f"{plan[0].name}: {why}; it goes on from its last checkpoint"
    log = (tmp_path / plan[0].name / "log.txt").read_text()
    assert "starts after update 0" in log and "starts after update 1" in log


@pytest.mark.full
def test_a_run_that_crashes_too_often_is_given_up_with_its_last_words(tmp_path):
    plan, heard = runs("first", "second"), Heard()
    settings = RunSection(max_parallel=2, max_attempts=1)
    failed, other = run_all(plan, tmp_path, settings, heard, command("crash"))
    assert (failed.ending, other.ending) == ("failed", "finished")
    assert "ValueError: a model that cannot be" in failed.last_lines
    assert failed.text == heard.ends[plan[0].name]
    assert failed.text == "failed (exit code 1): ValueError: a model that cannot be"
    (again,) = run_all(plan[:1], tmp_path, settings, None, command("crash"))
    assert again.ending == "finished", "a later call tries again"


def test_what_a_user_has_to_mend_is_not_tried_twice(tmp_path):
    (plan,) = runs("first")
    (failed,) = run_all([plan], tmp_path, RunSection(max_attempts=5), None, command("wrong"))
    assert failed.ending == "failed" and attempts(plan, tmp_path) == 1
    assert failed.text == "failed: the text is gone; put it back"


@pytest.mark.full
def test_a_run_that_says_nothing_is_ended_and_resumed(tmp_path):
    plan, heard = runs("first"), Heard()
    settings = RunSection(timeout_minutes=1 / 60)
    (outcome,) = run_all(plan, tmp_path, settings, heard, command("hangs"))
    assert outcome.ending == "finished" and outcome.attempts == 2
    assert "it said nothing for longer than run.timeout_minutes" in heard.notes[0]
    assert not psutil.pid_exists(int((tmp_path / plan[0].name / "attempt-0").read_text()))


def test_processes_of_one_run_know_each_other_and_end_together(tmp_path):
    (plan,) = runs("second")
    run_all([plan], tmp_path, RunSection(num_processes=2), None, command("well"))
    environment = told(plan, tmp_path)["environment"]
    assert environment["WORLD_SIZE"] == "2" and environment["RANK"] in {"0", "1"}


def test_a_display_that_fails_leaves_no_process(tmp_path):
    class Broken(Heard):
        def update(self, name: str, event: Mapping[str, Any]) -> None:
            raise ValueError("no terminal")

    (plan,) = runs("first")
    with pytest.raises(ValueError, match="no terminal"):
        run_all([plan], tmp_path, RunSection(), Broken(), command("slow"))
    assert gone(tmp_path, [plan])


@pytest.mark.full
@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_every_run_can_go_on_later(number, tmp_path):
    class Impatient(Heard):
        def update(self, name: str, event: Mapping[str, Any]) -> None:
            super().update(name, event)
            if {one.name for one in plan} == {name for name, _ in self.updates} and not self.ends:
                self.ends["told"] = ""
                os.kill(os.getpid(), number)

    plan, heard = runs("first", "second"), Impatient()
    with pytest.raises(Stopped) as ended:
        run_all(plan, tmp_path, RunSection(max_parallel=2), heard, command("slow"))
    assert ended.value.code == 128 + number
    assert gone(tmp_path, plan)
    assert [heard.ends[one.name] for one in plan] == ["stopped", "stopped"]
    kept = [int((tmp_path / one.name / "kept").read_text()) for one in plan]
    assert all(0 < one < 299 for one in kept), "each has left a checkpoint"
    outcomes = run_all(plan, tmp_path, RunSection(max_parallel=2), None, command("well"))
    assert [told(one.run, tmp_path)["start"] for one in outcomes] == kept


# A runner of its own, so that signals can be sent to it.
RUNNER = """
import sys
from pathlib import Path
from layerlab.experiments.executors.local import run_all
from layerlab.recipes.training_sections import RunSection
from tests.experiments.executors.test_local import command, runs
settings = RunSection(max_parallel=2)
run_all(runs("first", "second"), Path(sys.argv[1]), settings, None, command("slow"))
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Forked]:
    """A runner, both of whose runs are on their way."""
    journals = [tmp_path / one.name / "events.jsonl" for one in runs("first", "second")]
    own = Forked("-c", RUNNER, tmp_path)
    try:
        assert wait_for(lambda: all(one.exists() for one in journals), 120.0)
        yield own
    finally:
        own.kill()


def gone(out: Path, plan: list[RunSpec]) -> bool:
    """Whether the processes of all runs have ended, soon."""
    folders = [out / one.name for one in plan]
    pids = [int((folder / "attempt-0").read_text()) for folder in folders]
    return wait_for(lambda: not any(map(_alive, pids)), 20.0)


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@POSIX
def test_a_runner_that_is_killed_leaves_no_orphans(running, tmp_path):
    running.kill()
    assert gone(tmp_path, runs("first", "second"))
    # They have not been cut off: each has left a checkpoint.
    assert all((tmp_path / one.name / "kept").exists() for one in runs("first", "second"))
