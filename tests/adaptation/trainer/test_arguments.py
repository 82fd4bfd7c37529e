"""What Trainer is told, and what a stage keeps to itself."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.adaptation.trainer.arguments import context_of, split_batch, trainer_arguments
from tests.adaptation.small import llama

share: Any = getattr(split_batch, "__wrapped__", split_batch)


def settings(processes: int, most: int) -> Any:
    return SimpleNamespace(
        world_size=processes, per_device_train_batch_size=most, gradient_accumulation_steps=1
    )


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 64))
def test_processes_and_passes_make_up_the_batch(each, processes, most):
    told = settings(processes, most)
    share(told, each * processes, "rows")
    micro, passes = told.per_device_train_batch_size, told.gradient_accumulation_steps
    assert micro * passes * processes == each * processes and micro <= most


def test_the_caller_comes_before_the_stage(tmp_path):
    own = {"learning_rate": 1.0, "logging_steps": 3}
    found = trainer_arguments(tmp_path, own, {"learning_rate": 2.0, "use_cpu": True}, seed=4)
    assert (found.learning_rate, found.logging_steps, found.seed) == (2.0, 3, 4)


def test_the_context_of_a_wrapped_model_is_its_own():
    model = llama()
    wrapped = torch.nn.Module()
    wrapped.get_base_model = lambda: model  # type: ignore[assignment]
    assert context_of(wrapped) == context_of(model) == 64


def test_who_shares_the_model_out_is_said(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="this is one process: nothing can be shared out; start"):
        trainer_arguments(tmp_path, {}, {"use_cpu": True}, seed=0, sharding="fsdp")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(
        UserError, match=r'what it leaves cannot be resumed here; .* sharding="fsdp"'
    ):
        trainer_arguments(tmp_path, {}, {"use_cpu": True}, seed=0)
