"""What Trainer is told, and what a stage keeps to itself."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.adaptation.trainer.arguments import (
    block_of,
    check_trained,
    context_of,
    section_arguments,
    split_batch,
    step_counts,
    trainer_arguments,
)
from layerlab.adaptation.trainer.lora import check_learner
from layerlab.recipes.adaptation_sections import LoraSection, StepSection
from tests.adaptation.small import llama, words
from tests.support.refused import refuses

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


def test_the_settings_of_a_stage_are_those_of_its_trainer(tmp_path):
    same = {"learning_rate": 3e-3, "lr_scheduler_type": "cosine", "weight_decay": 0.2}
    same |= {"adam_beta2": 0.9, "save_steps": 7}
    own = {"batch_size": 8, "micro_batch_size": 2, "warmup_ratio": 1.0}
    section = StepSection(**same, **own, mixed_precision="bf16", gradient_checkpointing=True)
    given = {**section_arguments(section), "use_cpu": True}
    found = trainer_arguments(tmp_path, {}, given, seed=0)
    assert {name: getattr(found, name) for name in same} == same
    assert found.per_device_train_batch_size == 2 and found.train_sampling_strategy == "sequential"
    assert found.bf16 and found.activation_checkpointing
    assert found.get_warmup_steps(10) == 10


def test_a_run_has_a_hundred_lines_and_ten_checkpoints():
    found = step_counts(2000)
    steps = found["max_steps"]
    assert (steps, steps / found["logging_steps"], steps / found["save_steps"]) == (2000, 100, 10)


def test_a_row_is_as_long_as_the_context_up_to_1024(tiny):
    assert block_of(llama(), StepSection()) == block_of(llama(), StepSection(block_size=64)) == 64
    long = tiny("llama", max_position_embeddings=4096)
    assert block_of(long, StepSection()) == 1024
    assert block_of(long, StepSection(block_size=4096)) == 4096
    refuses("write block_size = 64", block_of, llama(), StepSection(block_size=65))


def test_weights_that_do_not_learn_may_have_few_digits():
    model = llama().to(torch.bfloat16)
    refuses("in bfloat16, in which most updates are rounded away", check_trained, model)
    check_trained(model.requires_grad_(False))


def test_a_model_of_which_nothing_is_trained_is_refused():
    frozen, adapters = llama().requires_grad_(False), LoraSection()
    said = "all weights of LlamaForCausalLM are frozen, so that nothing would be learned; call"
    refuses(said, check_learner, frozen, words(), None, merge=False)
    check_learner(frozen, words(), adapters, merge=False)


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
