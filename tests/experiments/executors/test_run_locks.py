"""Two runners on one folder: the second is told so on its own terminal, and changes nothing."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.api import train
from layerlab.experiments.executors.local import run_all, wait_for
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.recipes.training_sections import RunSection
from layerlab.system.locks import lock_folder
from tests.experiments.executors.test_local import POSIX, command, runs
from tests.support.forked import Forked
from tests.support.refused import refuses

# One at a time: the second run waits in the first runner's queue.
RUNNER = """
import sys
from pathlib import Path
from tests.experiments.executors.test_local import command, runs
from layerlab.experiments.executors.local import run_all
from layerlab.recipes.training_sections import RunSection
settings = RunSection(max_parallel=1)
run_all(runs("first", "second"), Path(sys.argv[1]), settings, None, command("slow"))
"""


def written(out: Path) -> dict[str, bytes]:
    """What does not change by itself while a run goes on."""
    moving = {"events.jsonl", "kept"}
    files = [file for file in out.rglob("*") if file.is_file() and file.name not in moving]
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.full
@POSIX
def test_a_second_runner_writes_nothing_into_the_first_ones_log(tmp_path):
    first, second = runs("first", "second")
    own = Forked("-c", RUNNER, tmp_path)
    try:
        assert wait_for((tmp_path / first.name / "events.jsonl").exists, 120.0)
        before = written(tmp_path)
        # The one that goes on, and the one that has not begun.
        for plan in ([first], [second], [second, first]):
            said = rf"another run is writing to {tmp_path}/(first|second)-\S+; wait until"
            with pytest.raises(UserError, match=said):
                run_all(plan, tmp_path, RunSection(max_parallel=1), None, command("well"))
        assert written(tmp_path) == before
        # Another one beside them goes on as ever.
        (third,) = run_all(runs("third"), tmp_path, RunSection(), None, command("well"))
        assert third.ending == "finished"
    finally:
        own.process.terminate()
        own.wait(60.0)
    outcomes = run_all([first, second], tmp_path, RunSection(max_parallel=2), None, command("well"))
    assert [one.ending for one in outcomes] == ["finished", "finished"]
    assert not list(tmp_path.rglob(".*.lock"))


def test_who_comes_second_is_told_the_folder_that_is_held(tmp_path):
    with lock_runs([tmp_path / "run"]):
        said = f"another run is writing to {tmp_path / 'run'}; wait until"
        refuses(said, lock_runs([tmp_path / "run"]).__enter__)


def test_a_run_that_goes_on_without_a_runner_is_held_too(tmp_path):
    (one,) = runs("first")
    with lock_folder(tmp_path / one.name):
        with pytest.raises(UserError, match=r"another run is writing to .*; wait until"):
            run_all([one], tmp_path, RunSection(), None, command("well"))
        assert not (tmp_path / one.name / "log.txt").exists()


def test_more_runs_are_held_than_files_may_be_open(tmp_path):
    free = os.open(tmp_path, os.O_RDONLY)
    os.close(free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 10, before[1]))
    try:
        with lock_runs(tmp_path / str(number) for number in range(40)):
            assert len(list(tmp_path.rglob(".log.txt.lock"))) == 40
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# In a process of its own: a limit that was lowered may not be raised again.
LIMITED = """
import resource, sys
from pathlib import Path
from layerlab.experiments.executors.run_locks import lock_runs
own, most = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (own, most))
with lock_runs([Path(sys.argv[1]) / "run"]):
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


# One run asks for 1 + 1024.
@pytest.mark.parametrize(
    ("own", "most", "expected"), [(64, 512, 512), (64, 2000, 1025), (1200, 2000, 1200)]
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be_and_never_lowered(
    own, most, expected, tmp_path
):
    argv = [sys.executable, "-c", LIMITED, str(tmp_path), str(own), str(most)]
    found = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(expected), str(most)]


def test_a_second_comparison_neither_runs_nor_writes_a_page(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(
        "".join(f"{number} the cat sat on the mat by the door\n" for number in range(400))
    )
    recipe = {
        "name": "small",
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 16},
        "data": {"sources": [{"text": str(text)}], "vocab_size": 300},
        "train": {"max_steps": 2, "batch_size": 2},
        "compare": {"arms": ["llama", "gpt2"], "seeds": [1, 2]},
    }
    for lockstep in (False, True):
        settings = {"compare.lockstep": lockstep}
        task = train.prepare(recipe, tmp_path / "out", settings, progress=False)
        with lock_runs(task.folder(run) for run in task.runs[:2]):
            refuses("another run is writing to", train.compare_task, task, progress=False)
            assert not list((tmp_path / "out").rglob("*.html"))
            assert not list((tmp_path / "out").rglob("log.txt"))
