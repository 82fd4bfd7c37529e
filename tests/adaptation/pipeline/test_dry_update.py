"""What an update takes is counted without weights as it is with them."""

import json
from functools import partial
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from layerlab.adaptation.pipeline.dry_update import (
    DryUpdate,
    _Ledger,
    dry_update,
    pass_forward,
    prepare_recomputation,
)
from layerlab.adaptation.trainer.lora import add_adapters
from layerlab.recipes.adaptation_sections import LoraSection, StepSection
from tests.support.forked import python

CASES = {
    "full": {},
    "checkpointing": {"gradient_checkpointing": True},
    "bf16": {"mixed_precision": "bf16"},
    "lora": {"lora": LoraSection(r=4)},
    "lora, checkpointing": {"lora": LoraSection(r=4), "gradient_checkpointing": True},
}
ROWS, BLOCK = 2, 64


def model(tied: bool = True, device: str = "meta", **options: Any) -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = LlamaConfig(vocab_size=500, tie_word_embeddings=tied, **sizes, **heads)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, **options)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_real_tensors_take_as_much_as_those_without_numbers(case):
    """The same update, with weights."""
    section = StepSection(**CASES[case])
    dry = dry_update(model, section, ROWS, BLOCK)
    learner: Any = model(device="cpu")
    if section.lora is not None:
        learner = add_adapters(learner, section.lora, 0)
    prepare_recomputation(learner.train(), section)
    learned = [one for one in learner.parameters() if one.requires_grad]
    assert dry.weights == sum(one.nbytes for one in learner.parameters())
    assert dry.learned == sum(one.nbytes for one in learned)
    with _Ledger() as ledger:
        for one in (*learner.parameters(), *learner.buffers()):
            ledger.take(one)
        tokens = torch.zeros(ROWS, BLOCK, dtype=torch.long)
        pass_forward(learner, tokens, section.mixed_precision, "cpu").backward()
    # Without numbers a product in each of three feed-forwards lives a little longer.
    longer = 3 * 4 * ROWS * BLOCK * 128
    assert 0 <= dry.peak - dry.moments - ledger.peak <= longer
    assert ledger.flops == dry.flops > 3 * dry.forward - dry.forward * (section.lora is not None)


@pytest.mark.full
def test_checkpointing_takes_less_and_computes_more():
    plain = dry_update(model, StepSection(), ROWS, BLOCK)
    again = dry_update(model, StepSection(gradient_checkpointing=True), ROWS, BLOCK)
    assert again.peak < plain.peak and 1.1 * plain.flops < again.flops <= 4 / 3 * plain.flops


@pytest.mark.full
def test_what_is_tied_counts_once_and_what_is_frozen_has_no_moments():
    tied, loose = (
        dry_update(partial(model, one), StepSection(), ROWS, BLOCK) for one in (True, False)
    )
    assert loose.shared == 0 and tied.shared == 4 * 500 * 64
    assert loose.weights - tied.weights == 4 * 500 * 64 == loose.edge - tied.edge
    low = {"dtype": torch.bfloat16}
    frozen = dry_update(lambda: model(**low), StepSection(lora=LoraSection(r=4)), ROWS, BLOCK)
    assert frozen.learned_edge == 0 and frozen.learned < frozen.weights / 2
    assert frozen.parameters == tied.parameters and frozen.weights < tied.weights


def test_processes_share_what_stands_and_not_what_they_work_on():
    found = DryUpdate(
        parameters=25,
        weights=100,
        learned=100,
        layer=10,
        edge=20,
        learned_edge=20,
        shared=15,
        peak=420,
        inside=30,
        flops=1,
        forward=1,
        tokens=1,
        build=0.0,
    )
    assert found.memory(1, "none") == 420 and found.memory(2, "none") == 520
    # A half of weights and moments, embedding and head whole, then activations and two layers.
    assert found.memory(2, "fsdp") == 150 + 20 + max(30 + 20, 20 + 30 + 20 + 50)
    assert found.memory(8, "fsdp") < found.memory(4, "fsdp") < found.memory(2, "fsdp")


PROGRAM = """
import json
from layerlab.api.adapt import estimate_adaptation
from layerlab.system.hardware import peak_memory, reset_peak_memory

reset_peak_memory()
found = estimate_adaptation("yunshan", out="out")
print(json.dumps([found.to_dict(), found.remarks()[0], peak_memory("cpu")]))
"""


@pytest.mark.full
def test_seven_billion_are_planned_in_two_gigabytes():
    said = python("-c", PROGRAM)
    assert said.returncode == 0, said.stderr
    told, remark, taken = json.loads(said.stdout)
    assert told["parameters"] > 6.7e9 and taken < 2e9 < psutil.virtual_memory().total
    assert told["fits"] is True and told["room"] == 80e9
    trained = [one for one in told["stages"] if one["memory"] is not None]
    assert [one["key"].partition("-")[0] for one in trained] == ["pretrain", "tune"]
    # Weights, gradients and moments of a share, and never less.
    assert all(16 / 8 * told["parameters"] < one["memory"] < 80e9 for one in trained)
    assert "of training left, without tune, whose texts are not here: of updates" in remark
    first, texts, rows = told["absent"]
    assert "model pangu-pi-7b" in first and "corpora/lexfiles" in texts and "chatlaw" in rows
