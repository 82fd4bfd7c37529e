"""Runs as jobs: on a real Slurm where it starts, and on submitit's local executor everywhere."""

import os
import pickle
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from layerlab import UserError
from layerlab.experiments.executors import slurm as module
from layerlab.experiments.executors.local import run_all, wait_for
from layerlab.experiments.executors.slots import RunSlot
from layerlab.recipes.training_sections import RunSection, SlurmSection
from layerlab.system.files import check_links
from layerlab.system.signals import Stopped
from layerlab.training.run_spec import RunSpec
from tests.experiments.executors.test_local import Heard, attempts, command, runs, told
from tests.training.support.cluster import cluster, missing

LOCAL = RunSection(executor="submitit", max_parallel=2)


class Sudden(Heard):
    """Preempts the first run as soon as it is heard of."""

    def __init__(self, first: RunSpec, preempt: Any) -> None:
        super().__init__()
        self.first, self.preempt = first, preempt
        self.done = False

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        super().update(name, event)
        if name == self.first.name and not self.done:
            self.done = True
            self.preempt()


def jobs(word: str) -> list[psutil.Process]:
    """The processes that were started here whose command holds a word."""
    return [one for one in psutil.Process().children(recursive=True) if word in typed(one)]


def typed(process: psutil.Process) -> list[str]:
    """The words of its command; none of one that has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def preempt_local() -> None:
    """As a cluster does it: the signal that submitit listens to, to the job of the first run."""
    found = [
        one for one in jobs("submitit.core._submit") for kid in one.children() if first_of(kid)
    ]
    assert len(found) == 1
    found[0].send_signal(signal.SIGUSR2)


def first_of(process: psutil.Process) -> bool:
    return "first" in " ".join(typed(process)[-1:])


@pytest.mark.full
def test_the_local_executor_resumes_what_is_preempted(tmp_path):
    plan = runs("first", "second")
    heard = Sudden(plan[0], preempt_local)
    outcomes = run_all(plan, tmp_path / "runs", LOCAL, heard, command("preempted"))
    assert [one.ending for one in outcomes] == ["finished", "finished"]
    assert [one.attempts for one in outcomes] == [1, 1], "the job went back into the queue itself"
    assert [attempts(one, tmp_path / "runs") for one in plan] == [2, 1]
    assert told(plan[0], tmp_path / "runs")["start"] > 0, "it went on from its checkpoint"
    assert heard.ends == {one.name: "finished" for one in plan}


@pytest.mark.full
def test_the_local_executor_tells_of_failures_and_stops_no_other(tmp_path):
    plan, heard = runs("first", "second"), Heard()
    settings = LOCAL.model_copy(update={"max_attempts": 1})
    outcomes = run_all(plan, tmp_path / "runs", settings, heard, command("crash"))
    assert [one.ending for one in outcomes] == ["failed", "finished"]
    assert outcomes[0].text == "failed (exit code 1): ValueError: a model that cannot be"


@pytest.mark.full
def test_ctrl_c_leaves_checkpoints_and_no_jobs(tmp_path):
    (plan,) = runs("first")
    heard = Sudden(plan, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Stopped):
        run_all([plan], tmp_path / "runs", LOCAL, heard, command("slow"))
    assert (tmp_path / "runs" / plan.name / "kept").exists()
    assert wait_for(lambda: not jobs("submitit.core._submit"), 20.0)


def test_what_is_not_installed_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no srun here; type the command on a machine of"):
        module.Cluster(tmp_path, RunSection(executor="slurm"))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"which needs submitit; in a copy .*install '\.\[slurm\]'"):
        module.Cluster(tmp_path, LOCAL)


@pytest.fixture
def typed_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the commands that a cluster was given: one that takes all jobs and runs none.

    Its jobs are those of the file `queue` beside it; without one it does not answer.
    """
    file = tmp_path / "typed"
    for name, rest in {
        "srun": "",
        "sbatch": f"echo Submitted batch job $(grep -c sbatch {file})",
        "squeue": f"cat {tmp_path / 'queue'}",
        "scancel": "",
    }.items():
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\necho {name} "$@" >> {file}\n{rest}\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(module, "LOOK", 0.1)
    return file


def first_words(file: Path) -> list[str]:
    return [line.split()[0] for line in file.read_text().splitlines()]


def test_the_job_of_a_run_ends_with_its_exit_code_and_goes_back_into_the_queue_as_it_was(tmp_path):
    task = module.SlurmTask(tmp_path, (RunSlot(threads=1),), ("sh", "-c", "exit 7"), "granted")
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert task() == 7
    finally:
        signal.signal(signal.SIGTERM, before)
    again = task.checkpoint().function
    for name in ("folder", "run_slots", "command", "grants"):
        assert getattr(again, name) == getattr(task, name), name
    assert again.grants == "granted"


@pytest.fixture
def job(typed_slurm: Path, tmp_path: Path) -> module.Job:
    cluster = module.Cluster(tmp_path / "jobs", RunSection(executor="slurm"))
    return cluster.start(tmp_path, cluster.rows([tmp_path])[0])


def test_a_job_has_failed_where_slurm_shows_it_no_longer_at_two_looks(job, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def look(shown):
        (tmp_path / "queue").write_text(shown)
        now[0] += 1.0
        return job.code()

    (tmp_path / "bin" / "squeue").rename(tmp_path / "kept")
    (tmp_path / "bin" / "squeue").symlink_to("/bin/false")
    assert [look(""), look("")] == [None, None]
    (tmp_path / "kept").rename(tmp_path / "bin" / "squeue")
    assert [look(f"1 {one}\n") for one in ("PENDING", "", "RUNNING", "COMPLETING")] == [None] * 4
    assert [job.find_delay(), look(""), look("")] == [None, None, 1]


@pytest.mark.parametrize(("outcome", "code"), [(("success", 7), 7), (("error", "a trace"), 1)])
def test_a_job_has_the_exit_code_that_it_left(outcome, code, job, tmp_path):
    assert job.code() is None
    place = next((tmp_path / "jobs").iterdir()) / "1_0_result.pkl"
    place.write_bytes(pickle.dumps(outcome))
    assert job.code() == code


def test_a_job_is_cancelled_until_it_has_ended_and_though_slurm_may_refuse(
    job, typed_slurm, tmp_path
):
    scancel = tmp_path / "bin" / "scancel"
    scancel.write_text(f"{scancel.read_text()}false\n")
    for act in (job.stop, job.kill):
        typed_slurm.write_text("")
        act()
        assert typed_slurm.read_text() == "scancel 1\n"
    (next((tmp_path / "jobs").iterdir()) / "1_0_result.pkl").touch()
    job.kill()
    assert typed_slurm.read_text() == "scancel 1\n"


def test_what_a_recipe_asks_of_slurm_stands_in_the_script(typed_slurm, tmp_path, monkeypatch):
    monkeypatch.setenv(module.SAFE, "mine")
    names = {"partition": "lab", "account": "ours", "qos": "low", "extra": {"nice": 4}}
    asked = SlurmSection(**names, minutes=7, gpus=2, cpus=5, memory_gb=3)
    module.Cluster(tmp_path / "jobs", RunSection(executor="slurm", slurm=asked)).rows([tmp_path])
    (script,) = tmp_path.rglob("*_submission.sh")
    told = "partition=lab account=ours qos=low nice=4 time=7 gpus-per-node=2 mem=3GB requeue"
    for one in [*told.split(), "cpus-per-task=5"]:
        assert f"#SBATCH --{one}\n" in script.read_text("utf-8")
    assert os.environ[module.SAFE] == "mine"


@pytest.mark.full
def test_a_job_that_slurm_no_longer_shows_is_cancelled_before_the_next_one(typed_slurm, tmp_path):
    (tmp_path / "queue").write_text("")
    settings = RunSection(executor="slurm")
    (outcome,) = run_all(runs("first"), tmp_path / "runs", settings, None, command("well"))
    assert outcome.ending == "failed" and outcome.attempts == 2
    acts = [word for word in first_words(typed_slurm) if word in {"sbatch", "scancel"}]
    assert acts == ["sbatch", "scancel"] * 2
    assert "scancel 1\n" in typed_slurm.read_text()


def test_a_folder_that_runs_were_submitted_from_can_be_written_into_again(typed_slurm, tmp_path):
    module.Cluster(tmp_path / "jobs", RunSection(executor="slurm")).rows([tmp_path])
    assert list(tmp_path.rglob("*_submission.sh"))
    check_links(tmp_path)


def test_a_run_that_waits_in_the_queue_is_not_submitted_again(typed_slurm, tmp_path):
    settings, queue = RunSection(executor="slurm"), tmp_path / "queue"
    module.Cluster(tmp_path / "jobs", settings).rows([tmp_path])
    queue.write_text("1 PENDING\n")
    with pytest.raises(UserError, match=f"^job 1 .* carry out {tmp_path.name} .* type: scancel 1$"):
        module.Cluster(tmp_path / "jobs", settings).rows([tmp_path])
    module.Cluster(tmp_path / "jobs", settings).rows([tmp_path / "bin"])
    queue.write_text("")
    module.Cluster(tmp_path / "jobs", settings).rows([tmp_path])
    assert first_words(typed_slurm).count("sbatch") == 3


def test_jobs_are_taken_back_where_slurm_refuses_the_rest(typed_slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ARRAY", 1)
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(f"{sbatch.read_text()}test $(grep -c sbatch {typed_slurm}) = 1\n")
    with pytest.raises(UserError, match="Slurm takes no jobs"):
        module.Cluster(tmp_path / "jobs", RunSection(executor="slurm")).rows(
            [tmp_path, tmp_path / "bin"]
        )
    assert typed_slurm.read_text().splitlines()[-1] == "scancel 1"


def test_several_arrays_run_no_more_jobs_at_once_than_one(typed_slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ARRAY", 2)
    settings = RunSection(executor="slurm", slurm=SlurmSection(parallel=2))
    folders = [tmp_path / name for name in "abcd"]
    for folder in folders:
        folder.mkdir()
    module.Cluster(tmp_path / "jobs", settings).rows(folders)
    scripts = [file.read_text("utf-8") for file in tmp_path.rglob("*_submission.sh")]
    assert [script.count("--array=0-1%1\n") for script in scripts] == [1, 1]


@pytest.mark.full
def test_a_run_that_slurm_does_not_take_again_stops_no_other(typed_slurm, tmp_path):
    (tmp_path / "queue").write_text("")
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(f"{sbatch.read_text()}test $(grep -c sbatch {typed_slurm}) = 1\n")
    settings = RunSection(executor="slurm")
    outcomes = run_all(runs("first", "second"), tmp_path / "runs", settings, None, command("well"))
    assert [(one.ending, one.attempts) for one in outcomes] == [("failed", 1)] * 2
    assert outcomes[0].text.startswith("failed: Slurm takes no jobs: ")


def test_a_job_that_left_nothing_is_told_apart_from_what_an_earlier_one_said(typed_slurm, tmp_path):
    (tmp_path / "log.txt").write_text("an earlier attempt ran out of memory\n")
    cluster = module.Cluster(tmp_path / "jobs", RunSection(executor="slurm"))
    job = cluster.start(tmp_path, cluster.rows([tmp_path])[0])
    (said,) = job.words()
    assert said.startswith("its job 1 left nothing in ") and "all machines of the cluster" in said
    (next((tmp_path / "jobs").iterdir()) / "1_0_log.err").write_text("Slurm ended it\n")
    assert job.words() == ["Slurm ended it"]
    with (tmp_path / "log.txt").open("a") as log:
        log.write("no such file\n")
    assert job.words() == ["no such file"]


def test_slurm_is_asked_once_about_all_jobs(typed_slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK", 60.0)
    names = [f"77_{number}" for number in range(50)]
    (tmp_path / "queue").write_text("".join(f"{name} RUNNING\n" for name in names[1:]))
    queue = module.Queue()
    for name in names:
        queue.add(name)
    assert [queue.state(name) for name in names] == [None, *["RUNNING"] * 49]
    assert first_words(typed_slurm) == ["squeue"]


def test_a_run_that_waits_is_told_with_the_reason_of_slurm(typed_slurm, tmp_path):
    queue, heard = tmp_path / "queue", []

    class Told(Heard):
        def note(self, text):
            heard.append(text)
            queue.write_text("")

    queue.write_text("1 PENDING (launch failed requeued held)\n")
    (outcome,) = run_all(
        runs("first"), tmp_path / "runs", RunSection(executor="slurm"), Told(), command("well")
    )
    assert outcome.ending == "failed"
    told = f"{outcome.run.name} waits in the queue: PENDING, (launch failed requeued held)"
    assert heard[0] == told and heard.count(told) == 1


def test_a_reason_is_shown_where_slurm_has_one(typed_slurm, tmp_path):
    (tmp_path / "queue").write_text("1 PENDING None\n2 PENDING Resources\n3 RUNNING None\n")
    queue = module.Queue()
    assert [queue.state(job) for job in "1234"] == ["PENDING", "PENDING", "RUNNING", None]
    assert [queue.find_reason(job) for job in "12"] == ["PENDING", "PENDING, Resources"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of this machine."""
    if missing():
        pytest.skip(f"no Slurm: apt-get install slurm-wlm munge ({missing()[0]} is not there)")
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        started = cluster(folder)
        try:
            file = started.__enter__()
        except AssertionError as error:
            pytest.skip(f"Slurm does not start here: {error}")
        try:
            patch.setenv("SLURM_CONF", str(file))
            yield
        finally:
            started.__exit__(None, None, None)


def asked(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def requeue_first() -> None:
    """Preempt the first job of the array, and spare it the two minutes that it would wait."""
    listed = ["squeue", "--me", "--noheader", "--array", "--format=%i %T"]
    job = min(line.split()[0] for line in asked(*listed).splitlines())
    asked("scontrol", "requeue", job)
    assert wait_for(lambda: f"{job} PENDING" in asked(*listed), 30.0)
    asked("scontrol", "update", f"JobId={job}", "StartTime=now")


@pytest.mark.full
@pytest.mark.usefixtures("slurm")
def test_slurm_runs_an_array_and_resumes_what_is_preempted(tmp_path):
    plan = runs("first", "second")
    heard = Sudden(plan[0], requeue_first)
    settings = RunSection(executor="slurm", slurm=SlurmSection(partition="lab", minutes=30))
    outcomes = run_all(plan, tmp_path / "runs", settings, heard, command("preempted"))
    assert [one.ending for one in outcomes] == ["finished", "finished"], outcomes
    assert [one.attempts for one in outcomes] == [1, 1], "the job went back into the queue itself"
    assert [attempts(one, tmp_path / "runs") for one in plan] == [2, 1]
    assert told(plan[0], tmp_path / "runs")["start"] > 0, "it went on from its checkpoint"
    assert wait_for(lambda: asked("squeue", "--noheader") == "", 20.0)


@pytest.mark.usefixtures("slurm")
def test_what_slurm_refuses_is_said_in_its_words(tmp_path):
    settings = RunSection(executor="slurm", slurm=SlurmSection(partition="nowhere"))
    with pytest.raises(UserError, match=r"Slurm takes no jobs: .*Invalid partition"):
        run_all(runs("first"), tmp_path / "runs", settings, None, command("well"))


@pytest.mark.parametrize(
    ("last", "remedy"),
    [
        ("fatal: Could not establish a configuration source", "Slurm is not set up or not running"),
        ("No such file or directory: 'sbatch'", "Slurm is not set up or not running"),
        ("error: Batch job submission failed: Invalid qos", r"mend \[run\.slurm\] of the recipe$"),
        ("unrecognized option '--gress=gpu:1'", r"mend \[run\.slurm\] of the recipe$"),
    ],
)
def test_what_sbatch_says_comes_in_one_line_with_what_fits_the_cause(
    tmp_path, monkeypatch, capfd, last, remedy
):
    lines = ["sbatch: error: first", f"sbatch: {last}"]
    if "option" in last:  # a hint comes after it
        lines.append('Try "sbatch --help" for more information')
    (tmp_path / "said").write_text("\n".join(lines) + "\n")
    said = f"#!/bin/sh\ncat {tmp_path / 'said'} >&2\nexit 1\n"
    for name in ("srun", "sbatch"):
        script = tmp_path / name
        script.write_text(said)
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match=f"^Slurm takes no jobs: sbatch: {last}; {remedy}"):
        run_all(
            runs("first"), tmp_path / "runs", RunSection(executor="slurm"), None, command("well")
        )
    assert "sbatch" not in "".join(capfd.readouterr())


def test_submitit_is_imported_only_where_it_is_used():
    source = Path(module.__file__).read_text("utf-8")
    assert "\n    from submitit" in source and "\nfrom submitit" not in source
