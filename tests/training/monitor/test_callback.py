"""The monitor inside a real Trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from layerlab import Monitor
from tests.training.support.watched import batch


class Texts(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = batch(index, rows=1)[0]
        return {"input_ids": tokens, "labels": tokens}


def made(model: Any, folder: Path, callbacks: list[Any], **options: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        dataloader_pin_memory=False,
        **{"max_steps": 6, "logging_steps": 2, "learning_rate": 1e-3, **options},
    )
    return Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=callbacks)


def fitted(model: Any, folder: Path, callbacks: list[Any], **options: Any) -> Trainer:
    trainer = made(model, folder, callbacks, **options)
    trainer.train()
    return trainer


@pytest.mark.full
def test_a_trainer_logs_what_was_read_and_trains_the_same(tiny, tmp_path):
    plain, seen = (tiny("gpt2") for _ in range(2))
    fitted(plain, tmp_path, [])
    monitor = Monitor(seen, every=3, on_alarm="raise")
    trainer = fitted(seen, tmp_path, [monitor.callback()])
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), seen.parameters(), strict=True)
    )
    assert not monitor.notes
    assert sorted({row["update"] for row in monitor.rows}) == [0, 3]
    entries = [one for one in trainer.state.log_history if "monitor/score" in one]
    assert [one["step"] for one in entries] == [1, 4]
    assert entries[1]["monitor/score"] == monitor.latest["score"]
    assert {"monitor/gradient", "monitor/querykey_norm", "monitor/sink_mass"} <= set(entries[0])
    assert not any(module._forward_pre_hooks for module in seen.modules())


@pytest.mark.full
def test_pieces_of_a_batch_count_as_one_update(tiny, tmp_path):
    model = tiny("llama")
    monitor = Monitor(model, every=2)
    fitted(model, tmp_path, [monitor.callback()], gradient_accumulation_steps=2, max_steps=4)
    assert monitor.updates == 4
    assert sorted({row["update"] for row in monitor.rows}) == [0, 2]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*update:RuntimeWarning")
def test_alarms_are_logged_and_warned_of(tiny, tmp_path):
    model = tiny("llama")
    monitor = Monitor(model, every=1, on_alarm="warn")
    options = {"learning_rate": 3.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    trainer = fitted(model, tmp_path, [monitor.callback()], max_steps=12, **options)
    logged = [text for one in trainer.state.log_history for text in one.get("monitor/alarms", [])]
    assert logged == [str(alarm) for alarm in monitor.alarms]
    assert any("largest score" in text for text in logged)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*update:RuntimeWarning")
def test_an_alarm_of_the_last_log_is_logged_too(tiny, tmp_path):
    model = tiny("llama")
    monitor = Monitor(model, every=100)
    options = {"max_steps": 4, "logging_steps": 1, "logging_nan_inf_filter": False}
    trainer = fitted(model, tmp_path, [Break(after=3), monitor.callback()], **options)
    logged = [text for one in trainer.state.log_history for text in one.get("monitor/alarms", [])]
    assert logged == [str(alarm) for alarm in monitor.alarms] != []


class Told(TrainerCallback):
    """What a reporter, such as that of W&B, is told."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        self.entries.append((state.global_step, dict(logs)))


@pytest.mark.full
def test_readings_go_to_what_a_trainer_reports_to(tiny, tmp_path):
    model, reporter = tiny("llama"), Told()
    monitor = Monitor(model, every=3)
    trainer = made(model, tmp_path, [reporter], logging_steps=1)
    trainer.add_callback(monitor.callback(trainer.log))
    trainer.train()
    read = [(step, one) for step, one in reporter.entries if "monitor/score" in one]
    assert [step for step, _ in read] == [1, 4]
    assert read[-1][1]["monitor/score"] == monitor.latest["score"]
    # None of the Trainer's own is lost.
    assert [step for step, one in reporter.entries if "loss" in one] == [1, 2, 3, 4, 5, 6]
    kept = [one["step"] for one in trainer.state.log_history if "monitor/score" in one]
    assert kept == [1, 4]


class Break(TrainerCallback):
    """Loses a weight behind an update, as a faulty device or a kernel may."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == self.after:
            with torch.no_grad():
                next(given["model"].parameters()).fill_(torch.nan)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*update:RuntimeWarning")
@pytest.mark.parametrize(
    ("hidden", "said"), [(True, "gradient's norm is nan"), (False, "the loss")]
)
def test_a_model_that_is_lost_is_told_before_the_next_reading(tiny, tmp_path, hidden, said):
    """Trainer hides a loss that is no number from its callbacks, unless it is told not to."""
    model = tiny("llama")
    monitor = Monitor(model, every=100)
    options = {"max_steps": 24, "logging_steps": 1, "logging_nan_inf_filter": hidden}
    fitted(model, tmp_path, [Break(after=3), monitor.callback()], **options)
    alarm = monitor.alarms[0]
    assert said in alarm.text and alarm.update == (20 if hidden else 4), str(alarm)
