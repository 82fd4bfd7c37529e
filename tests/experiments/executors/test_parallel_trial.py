"""How many runs at once are fastest: what is tried, what is chosen, and that nothing stays."""

import signal
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from threading import Timer

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerlab.errors import UserError
from layerlab.experiments.executors import parallel_trial as module
from layerlab.experiments.executors import slots
from layerlab.experiments.executors.local import run_all
from layerlab.experiments.executors.parallel_trial import (
    WORTH,
    choose_parallel,
    is_worth,
    list_candidates,
    pick,
)
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.experiments.session import prepare, run
from layerlab.experiments.training_plan import TrainingPlan
from layerlab.recipes.training_sections import RunSection
from layerlab.records.run_files import RUNS
from layerlab.system.signals import Stopped
from layerlab.training.run_spec import RunSpec
from layerlab.training.trainer import Trainer
from tests.experiments.executors.test_local import POSIX, Heard
from tests.support.forked import OwnFork
from tests.support.refused import refuses
from tests.training.test_worker import SMALL, WORDS, small  # noqa: F401

# What Python says of a fork while another thread waits, as that of xdist does.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
AUTO = RunSection(max_parallel="auto")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two cores, which may be one, copies that are forked, and a folder for what they leave."""
    usable = (min(slots.cores()[0]),)
    monkeypatch.setattr(slots, "cores", lambda: [usable, usable])
    monkeypatch.setattr(subprocess, "Popen", OwnFork)
    monkeypatch.setattr(module, "WINDOW", 0.2)
    folder = tmp_path / "trials"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def runs_of(run: RunSpec, count: int) -> list[RunSpec]:
    seeds = [run.recipe.change({"train.seed": seed}) for seed in range(count)]
    return [RunSpec(arm=run.arm, recipe=one, digest=run.digest) for one in seeds]


@POSIX
def test_copies_of_a_run_are_measured_and_nothing_of_them_stays(two, small):  # noqa: F811
    heard, before = Heard(), psutil.Process().children()
    half = RunSpec(
        arm="half", recipe=small.recipe.change({"train.batch_size": 2}), digest=small.digest
    )
    found = choose_parallel([half, *runs_of(small, 4), half], AUTO, heard)
    assert list(found.speeds) == [1, 2] and all(speed > 0 for speed in found.speeds.values())
    assert found.count == pick(found.speeds, 2)
    first, both = (f"{speed:,.0f}" for speed in found.speeds.values())
    assert found.text == (
        f"run.max_parallel: {found.count} at once; tokens/s in all: {first} with 1, {both} with 2"
    )
    assert heard.notes == ["run.max_parallel: trying up to 2 copies of llama at once"]
    assert list(two.iterdir()) == [] and psutil.Process().children() == before


def test_where_one_fits_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(slots, "cores", lambda: [(0,)])
    found = choose_parallel([None] * 5, AUTO, heard := Heard())
    assert (found.count, found.speeds, heard.notes) == (1, {}, [])


@pytest.mark.parametrize(
    ("second", "third", "tried", "count"),
    [(105.0, 300.0, [1, 2], 1), (150.0, None, [1, 2], 2), (150.0, 290.0, [1, 2, 4], 4)],
)
def test_more_are_tried_while_they_fit_and_are_worth_it(
    second,
    third,
    tried,
    count,
    small,  # noqa: F811
    monkeypatch,
):
    speeds = {1: 100.0, 2: second, 4: third}
    monkeypatch.setattr(slots, "cores", lambda: [(0,)] * 4)
    monkeypatch.setattr(module._Copies, "_measure", lambda _, number: speeds[number])
    found = choose_parallel(runs_of(small, 5), AUTO, Heard())
    assert (found.count, found.speeds) == (count, {one: speeds[one] for one in tried})


@POSIX
def test_a_run_that_cannot_begin_leaves_it_at_what_is_usual(two, small):  # noqa: F811
    wrong = RunSpec(arm="wrong", recipe=small.recipe, digest="another text")
    found = choose_parallel(runs_of(wrong, 5), AUTO, Heard())
    assert found.speeds == {} and found.count == 2
    assert found.text == "run.max_parallel: 2 at once, as without a trial: none was possible"
    assert list(two.iterdir()) == []


@POSIX
@pytest.mark.full
def test_copies_that_say_nothing_are_not_waited_for(two, small, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Trainer, "start", lambda _: time.sleep(600))
    settings = RunSection(max_parallel="auto", timeout_minutes=0.02)
    found = choose_parallel(runs_of(small, 5), settings, Heard())
    assert found.speeds == {} and list(two.iterdir()) == []


@POSIX
@pytest.mark.full
def test_copies_that_remark_on_memory_are_no_choice(two, small, monkeypatch):  # noqa: F811
    whole = Trainer._accumulate_gradients

    def run_short(one, rows):
        if one.folder.name == "1" and one.split.size == len(rows):
            raise torch.OutOfMemoryError("of two copies one is short")
        return whole(one, rows)

    monkeypatch.setattr(Trainer, "_accumulate_gradients", run_short)
    found = choose_parallel(runs_of(small, 5), AUTO, Heard())
    assert list(found.speeds) == [1] and found.count == 1


@POSIX
@pytest.mark.full
def test_a_signal_ends_the_trial(two, small, monkeypatch):  # noqa: F811
    monkeypatch.setattr(module, "WINDOW", 300.0)
    before = psutil.Process().children()
    Timer(1.0, signal.raise_signal, [signal.SIGTERM]).start()
    with pytest.raises(Stopped):
        choose_parallel(runs_of(small, 5), AUTO, Heard())
    assert list(two.iterdir()) == [] and psutil.Process().children() == before


@POSIX
@pytest.mark.full
@pytest.mark.parametrize("count", [1, 2])
def test_runs_go_on_as_it_was_chosen(count, two, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("".join(f"{n} {WORDS}" for n in range(400)))
    content = {
        **SMALL,
        "data": {"sources": [{"text": str(tmp_path / "text.txt")}], "vocab_size": 300},
        "run": {"max_parallel": "auto", "save_model": False},
        "compare": {"arms": ["llama", "gpt2"], "seeds": [1, 2]},
    }
    monkeypatch.setattr(module, "pick", lambda speeds, otherwise: count)
    asked = []
    monkeypatch.setattr(
        "layerlab.experiments.session.run_all",
        lambda runs, out, settings, *rest, **more: (
            asked.append(settings.max_parallel) or run_all(runs, out, settings, *rest, **more)
        ),
    )
    task = prepare(content, tmp_path, progress=False)
    with lock_runs([task.folder(task.runs[-1])]), monkeypatch.context() as patch:
        patch.setattr("layerlab.experiments.session.choose_parallel", None)
        refuses("another run is writing", run, task, progress=False)
    told, *_ = TrainingPlan(task, []).remarks()
    assert told.startswith('run.max_parallel is "auto": a trial of about a minute')
    outcomes = run(task, progress=False)
    assert asked == [count] and [one.ending for one in outcomes] == ["finished"] * 4
    # All are finished: nothing is left to try.
    monkeypatch.setattr("layerlab.experiments.session.choose_parallel", None)
    assert [one.ending for one in run(task, progress=False)] == ["skipped"] * 4
    assert len(list((task.out / RUNS).iterdir())) == 4 and list(two.iterdir()) == []


@pytest.mark.parametrize("setting", [{"executor": "slurm"}, {"num_processes": 2}])
def test_what_cannot_be_tried_is_refused(setting):
    given = {**SMALL, "run": {"max_parallel": "auto", **setting}}
    name, value = next(iter(setting.items()))
    said = f'run.max_parallel is "auto", which tries runs of one process.*run.{name} is .?{value}'
    with pytest.raises(UserError, match=said):
        prepare({**given, "compare": {"arms": ["llama", "gpt2"]}}, Path(), progress=False)


@given(st.sampled_from(["cpu", "cuda"]), st.integers(1, 9), st.integers(1, 99))
def test_each_number_that_is_tried_is_larger_and_within_bounds(device, alone, runs):
    alone = min(alone, runs)
    found = list_candidates(device, alone, runs)
    assert found == sorted(set(found)) and found[-1] <= runs
    assert all(after <= 2 * before for before, after in pairwise(found))
    assert found[0] == (1 if device == "cpu" else alone)
    assert found[-1] == (alone if device == "cpu" else min(runs, module.MOST * alone))


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=5))
def test_what_is_picked_is_about_the_fastest_of_what_was_tried(speeds):
    tried: dict[int, float] = {}
    for number, speed in enumerate(speeds):  # as a trial goes on
        if not is_worth(tried):
            break
        tried[2**number] = speed
    assert tried[pick(tried, 1)] * (1 + WORTH) >= max(tried.values())


def test_a_last_core_has_to_bring_no_more_than_its_share():
    assert list_candidates("cpu", 17, 99)[-2:] == [16, 17]
    assert pick({16: 100.0, 17: 104.0}, 17) == 17 and pick({16: 100.0, 17: 100.5}, 17) == 16
    assert pick({8: 100.0, 16: 104.0}, 17) == 8
