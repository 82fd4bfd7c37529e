"""All arms of a seed in one process: each learns what it learns alone."""

import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from layerlab import UserError
from layerlab.console.progress import NullProgress
from layerlab.corpus.corpus import extent, prepare
from layerlab.experiments.executors import lockstep
from layerlab.experiments.executors.lockstep import run_in_lockstep
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.arms import sides
from layerlab.recipes.checks import check_lockstep
from layerlab.recipes.training import make_recipe
from layerlab.records.result import read_result
from layerlab.system.hardware import with_threads
from layerlab.system.locks import lock_folder
from layerlab.system.signals import Stopped
from layerlab.training.run_spec import RunSpec
from layerlab.training.trainer import Trainer, train_run
from tests.support.refused import refuses

SMALL: dict[str, Any] = {
    "model": {"width": 16, "layers": 2, "heads": 2, "context": 16},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 4, "batch_size": 2, "learning_rate": 0.01},
    "evaluate": {"max_eval_blocks": 2},
}


def planned(**comparison: Any) -> list[RunSpec]:
    recipe = make_recipe({**SMALL, "compare": {"arms": ["llama", "history-3"], **comparison}})
    return plan(recipe, extent(prepare(recipe.data), 16))


@pytest.mark.full
def test_each_arm_learns_what_it_learns_alone(tmp_path, cache, monkeypatch):
    runs = planned(seeds=[1, 2])
    run_in_lockstep(runs, tmp_path / "together", NullProgress())
    for run in runs:
        alone = train_run(run, tmp_path / "alone" / run.name)
        together = read_result(tmp_path / "together" / run.name)
        assert together is not None and together["weights"] == alone["weights"]
        # What the process held was of all arms.
        assert together["peak_memory_bytes"] is None and alone["peak_memory_bytes"] > 0
    # What is finished is left alone, also where another process has just finished it.
    run_in_lockstep(runs, tmp_path / "together", NullProgress())
    first = [run for run in runs if run.seed == 1]

    def end(folders: Iterable[Path]) -> AbstractContextManager[None]:
        shutil.copytree(tmp_path / "together", tmp_path / "later")
        return lock_runs(folders)

    monkeypatch.setattr(lockstep, "lock_runs", end)
    run_in_lockstep(first, tmp_path / "later", NullProgress())
    for run in first:
        ended = [read_result(tmp_path / one / run.name) for one in ("later", "together")]
        assert ended[0] == ended[1]


@pytest.mark.full
def test_each_arm_has_the_threads_that_it_asks_for(tmp_path, monkeypatch, cache):
    def noted(self: Trainer) -> None:
        seen.append((self.run.arm, torch.get_num_threads()))
        own(self)

    seen: list[tuple[str, int]] = []
    own = Trainer._evaluate  # before the first update and after the last
    monkeypatch.setattr(Trainer, "_evaluate", noted)
    more = {"name": "more", "variant": "llama", "set": {"run.threads": 3}}
    before = torch.get_num_threads()
    with with_threads(2):
        run_in_lockstep(planned(seeds=[1], arms=["llama", more]), tmp_path, NullProgress())
        assert torch.get_num_threads() == 2
    assert set(seen) == {("llama", 1), ("more", 3)} and torch.get_num_threads() == before


@pytest.mark.full
def test_an_arm_that_diverges_drops_out_and_the_others_go_on(tmp_path, cache):
    wild = {"name": "wild", "variant": "llama", "set": {"train.learning_rate": 1e30}}
    runs = planned(seeds=[1], arms=[wild, "llama"])
    run_in_lockstep(runs, tmp_path / "together", NullProgress())
    lost, other = (read_result(tmp_path / "together" / run.name) for run in runs)
    assert lost is not None and lost["diverged"] and lost["updates"] < 4
    alone = train_run(runs[1], tmp_path / "alone" / runs[1].name)
    assert other is not None and other["weights"] == alone["weights"]


@pytest.mark.full
def test_a_signal_leaves_a_checkpoint_of_every_arm_to_go_on_from(tmp_path, monkeypatch, cache):
    def stopped(self: Trainer) -> None:
        own(self)
        if self.run.arm == "history-3" and self.update == 2:
            for run in runs:
                refuses("another run is writing to", lock_folder(out / run.name).__enter__)
            os.kill(os.getpid(), signal.SIGTERM)

    # None of them would leave one by itself before its end.
    arms = [
        {"name": arm, "variant": arm, "set": {"run.save_steps": 4}}
        for arm in ("llama", "history-3")
    ]
    runs, out = planned(seeds=[1], arms=arms), tmp_path / "together"
    own = Trainer.advance
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "advance", stopped)
        with pytest.raises(Stopped):
            run_in_lockstep(runs, out, NullProgress())
    kept = [{one.name for one in (out / run.name / "checkpoints").iterdir()} for run in runs]
    assert kept == [{"step-00000002"}] * 2
    run_in_lockstep(runs, out, NullProgress())
    for run in runs:
        found = read_result(out / run.name)
        assert found["weights"] == train_run(run, tmp_path / "alone" / run.name)["weights"]


@pytest.mark.full
def test_a_signal_in_the_last_update_of_a_seed_keeps_the_next_from_beginning(
    tmp_path, monkeypatch, cache
):
    def stopped(self: Trainer) -> None:
        own(self)
        if self.run.arm == "history-3" and self.done:
            os.kill(os.getpid(), signal.SIGTERM)

    runs, own = planned(seeds=[1, 2]), Trainer.advance
    monkeypatch.setattr(Trainer, "advance", stopped)
    with pytest.raises(Stopped):
        run_in_lockstep(runs, tmp_path, NullProgress())
    finished = {run.seed: read_result(tmp_path / run.name) is not None for run in runs}
    assert finished == {1: True, 2: False}


def test_memory_that_runs_out_is_one_line(tmp_path, monkeypatch, cache):
    def fail(self: Trainer) -> None:
        raise MemoryError

    monkeypatch.setattr(Trainer, "start", fail)
    said = "out of memory .*; write a smaller train.micro_batch_size"
    refuses(said, run_in_lockstep, planned(seeds=[1]), tmp_path, NullProgress())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train.mixed_precision": "bf16"}, r"they ask for \['bf16', 'fp32'\]; expected one"),
        (
            {"data.vocab_size": 400},
            "'own' has another text or tokenizer than 'llama'; write lockstep",
        ),
        ({"data.sources": [{"text": "brown"}]}, "'own' has another text or tokenizer"),
        ({"data.document_masking": True}, "'own' has another text or tokenizer"),
        (
            {"run.executor": "slurm"},
            'run.executor is "slurm"; write lockstep = false, or executor = "lo',
        ),
        ({"run.executor": "submitit"}, 'run.executor is "submitit"'),
        (
            {"run.num_processes": 2},
            "run.num_processes is 2; write lockstep = false, or num_processes = 1",
        ),
    ],
)
def test_what_one_process_cannot_take_in_turn_is_refused(settings, said):
    shared = {path: one for path, one in settings.items() if path.startswith("run.")}
    own = {"name": "own", "variant": "llama", "set": {} if shared else settings}
    compare = {"arms": ["llama", own], "lockstep": True}
    with pytest.raises(UserError, match=said) as told:
        check_lockstep(sides(make_recipe({**SMALL, "compare": compare}, settings=shared)))
    assert str(told.value).startswith("compare.lockstep ") and "\n" not in str(told.value)


def test_arms_of_other_blocks_go_in_lockstep():
    own = {"name": "own", "variant": "llama", "set": {"data.block_size": 8}}
    check_lockstep(
        sides(make_recipe({**SMALL, "compare": {"arms": ["llama", own], "lockstep": True}}))
    )
