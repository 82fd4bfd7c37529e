"""States of Trainer: the last of each run, which checkpoints and the run keep."""

import json
import math

import pytest
import torch

from tests.logs.written import ROWS, check, put, read
from tests.support.refused import refuses


def test_the_trainer_of_hugging_face_is_read_from_its_last_checkpoint(tiny, tmp_path):
    from transformers import Trainer, TrainingArguments

    model = tiny("gpt2")
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
    given = {"max_steps": 4, "eval_steps": 2, "save_steps": 2, "logging_steps": 1, "seed": 7}
    fixed = {"eval_strategy": "steps", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = TrainingArguments(output_dir=str(tmp_path / "tiny-s7"), **given, **fixed)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    (found,) = read(tmp_path)
    assert (found.arm, found.seed, found.loss_name) == ("tiny", "7", "eval_loss")
    logged = [one for one in trainer.state.log_history if "eval_loss" in one]
    assert found.steps.tolist() == [2, 4]
    assert found.losses.tolist() == [one["eval_loss"] for one in logged]
    (train,) = read(tmp_path, loss="loss")
    assert train.steps.tolist() == [1, 2, 3, 4]
    trainer.save_state()
    (whole,) = read(tmp_path, loss="train_loss")
    assert whole.mean and not train.mean and not found.mean


def test_checkpoints_of_a_run_are_one_also_where_each_is_given(tmp_path):
    states = []
    for last in (2, 3):
        state = tmp_path / "plain" / f"checkpoint-{last}" / "trainer_state.json"
        state.parent.mkdir(parents=True)
        states.append(put(state, json.dumps({"log_history": ROWS[:last]})))
    (found,) = read(*states)
    check(found, "plain", None)


def test_a_state_beside_a_checkpoint_that_knows_more_is_refused(tmp_path):
    whole, further = (tmp_path / "plain" / place for place in ("", "checkpoint-3"))
    further.mkdir(parents=True)
    put(further / "trainer_state.json", json.dumps({"log_history": ROWS[:3]}))
    state = put(whole / "trainer_state.json", json.dumps({"log_history": ROWS[:2]}))
    for given in (tmp_path, state.parent):
        refuses(r"at step 20, and checkpoint-3 .* step 30: two runs", read, given)
    put(state, json.dumps({"log_history": ROWS[:3]}))
    (found,) = read(tmp_path)
    check(found, "plain", None)


@pytest.mark.parametrize("top", [False, True])
def test_checkpoints_of_an_earlier_run_in_the_same_folder_are_refused(top, tmp_path):
    """Trainer does not empty its folder, and the highest number may be of the run before."""
    history = [{"step": 100 * one, "eval_loss": 4 - 0.1 * one, "grad": math.nan} for one in (1, 2)]
    former = [{**one, "eval_loss": 5.0} for one in [*history, {"step": 300}]]
    kept = {"checkpoint-100": history[:1], "checkpoint-200": history, "checkpoint-300": former}
    if top:
        kept = {
            "checkpoint-100": former[:1],
            "checkpoint-200": history,
            "": [*history, {"step": 9}],
        }
    for name, rows in kept.items():
        (tmp_path / "plain" / name).mkdir(parents=True, exist_ok=True)
        state = tmp_path / "plain" / name / "trainer_state.json"
        put(state, json.dumps({"log_history": rows}))
    refuses("tells of step 100 otherwise than .* two runs in one folder; delete", read, tmp_path)
