"""Adapters that are merged leave the model that was trained; where they cannot, none begins."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, ZambaConfig, ZambaForCausalLM

import layerlab
from layerlab import UserError
from layerlab.adaptation.pretraining.replay import ReplayData
from layerlab.adaptation.pretraining.result import PretrainingResult
from layerlab.adaptation.pretraining.train import pretrain
from layerlab.adaptation.trainer.lora import (
    add_adapters,
    check_mergeable,
    find_trained_whole,
    merge_adapters,
    merge_and_measure,
)
from layerlab.api.adapt import plan_adaptation
from layerlab.recipes.adaptation_sections import LoraSection, PretrainSection
from layerlab.records.events import read
from tests.adaptation.lessons import recipe
from tests.adaptation.small import LAW, llama, words, written
from tests.support.refused import refuses

SIZE = {"width": 32, "layers": 3, "heads": 4, "vocab": 300, "context": 32}
REFUSED = r"^LoRA cannot be merged into the weight of .*: what is learned for one would be added"


def zamba() -> PreTrainedModel:
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 6, "intermediate_size": 48}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_head_dim": 16}
    own = {"attention_hidden_size": 64, "mamba_d_state": 8, "n_mamba_heads": 2}
    kinds = {"layers_block_type": ["mamba", "hybrid"] * 3, "use_mamba_kernels": False}
    return ZambaForCausalLM(ZambaConfig(**sizes, **heads, **own, **kinds))


def learned(model: Any, lora: LoraSection) -> float:
    """Return how far the merged model is from the trained one, as a share of what was learned."""
    tokens = torch.arange(12)[None] * 5 % 64

    def logits(one: Any) -> torch.Tensor:
        with torch.no_grad():
            return one.eval()(input_ids=tokens, use_cache=False).logits.clone()

    before = logits(model)
    adapted = add_adapters(model, lora, 0)
    torch.manual_seed(1)
    for name, one in adapted.named_parameters():
        if one.requires_grad:
            one.data.add_(torch.randn_like(one), alpha=0.05 if "lora_B" in name else 0.0)
    trained = logits(adapted)
    return float((logits(merge_adapters(adapted)) - trained).norm() / (trained - before).norm())


@pytest.mark.parametrize("make", [lambda: layerlab.build("widenet", **SIZE), zamba])
def test_weights_that_layers_share_take_no_adapters(make):
    model = make()
    refuses(REFUSED, check_mergeable, model, LoraSection(r=4))
    assert learned(model, LoraSection(r=4)) > 0.1  # what would be saved is another model


def test_adapters_are_those_that_the_section_asks_for():
    section = LoraSection(
        r=4, lora_dropout=0.25, target_modules=("q_proj",), modules_to_save=("lm_head",)
    )
    first, again, other = (add_adapters(llama(), section, seed) for seed in (1, 1, 2))
    learned = [name for name, one in first.named_parameters() if one.requires_grad]
    assert {"lora_A" in name or "lora_B" in name or "lm_head" in name for name in learned} == {True}
    assert any("lm_head.modules_to_save" in name for name in learned)
    assert {one.p for one in first.modules() if isinstance(one, torch.nn.Dropout)} == {0.25}
    drawn = [
        next(one for name, one in model.named_parameters() if "lora_A" in name)
        for model in (first, again, other)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_a_module_is_named_by_whole_words_or_not_at_all():
    for lora in ({"modules_to_save": ("head",)}, {"target_modules": ("proj",)}):
        with pytest.raises(UserError, match=r"the model has no module .* for LoRA; expected names"):
            find_trained_whole(llama(), LoraSection(**lora))


@pytest.mark.parametrize(
    "lora",
    [
        {"target_modules": ("input_layernorm",)},
        {"target_modules": ("q_proj",), "modules_to_save": ("q_proj",)},
    ],
)
def test_modules_that_take_no_adapter_are_refused(lora):
    said = "PEFT cannot add these adapters: .*; name other modules under target_modules"
    refuses(said, add_adapters, llama(), LoraSection(**lora), 0)


def test_what_is_merged_into_float32_is_not_measured_again():
    def measure(model: Any) -> Any:
        raise AssertionError

    adapted = add_adapters(llama(), LoraSection(r=2), 0)
    assert merge_and_measure(adapted, {"domain": 1.0}, "bits per byte", measure)[1] == []


def test_what_is_not_shared_takes_adapters_beside_it():
    lora = LoraSection(r=4, target_modules=("in_proj", "out_proj"))
    check_mergeable(model := zamba(), lora)
    assert learned(model, lora) < 1e-3


@pytest.mark.parametrize(
    ("lora", "fits"),
    [
        ({}, True),
        ({"modules_to_save": ("embed_tokens", "lm_head")}, True),
        ({"target_modules": ("lm_head",)}, False),
        ({"target_modules": ("embed_tokens", "q_proj")}, False),
    ],
)
def test_a_head_tied_to_the_embeddings_takes_none(tiny, lora, fits):
    model = tiny("llama", tie_word_embeddings=True)
    section = LoraSection(r=4, **lora)
    if fits:
        check_mergeable(model, section)
        return
    refuses(REFUSED, check_mergeable, model, section)
    check_mergeable(tiny("llama", tie_word_embeddings=False), section)


@pytest.mark.parametrize("whole", ["router", "ffn"])
def test_a_module_trained_whole_is_no_layers_in_common(whole):
    lora = LoraSection(r=4, target_modules=("lm_head",), modules_to_save=(whole,))
    with pytest.raises(UserError, match=r"weight of model.layers.0.ffn.router, which model.layers"):
        check_mergeable(layerlab.build("widenet", **SIZE), lora)


def test_no_stage_begins_with_adapters_that_it_could_not_merge(tmp_path):
    section = PretrainSection(tokens=256, block_size=16, batch_size=4, lora=LoraSection(r=4))
    reading = ReplayData(
        domain=written(tmp_path / "law.jsonl", LAW, 60, 0), cache=tmp_path / "cache"
    )
    model = layerlab.build("widenet", **SIZE)
    out = tmp_path / "out"
    with pytest.raises(UserError, match=REFUSED):
        pretrain(model, words(), reading, section=section, merge=True, out=out, use_cpu=True)
    assert not out.exists()


def test_a_recipe_with_such_adapters_is_refused_before_any_stage(tmp_path):
    content = recipe(tmp_path, vocabulary=None, embedding=None, pretrain=None)
    content["base"]["recipe"]["model"] |= {"variant": "widenet", "layers": 2}
    plan_adaptation(content, tmp_path / "out")
    content["sft"]["lora"] = {"r": 4}
    refuses(REFUSED, plan_adaptation, content, tmp_path / "out")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_a_merged_model_of_few_digits_is_measured_as_it_is_saved(tmp_path):
    written(tmp_path / "law.jsonl", LAW, 60, 1)
    reading = ReplayData(domain=tmp_path / "law.jsonl", validation=0.2, cache=tmp_path / "cache")
    lora = LoraSection(r=4, lora_alpha=8)
    sizes = {"tokens": 512, "block_size": 16, "batch_size": 4, "learning_rate": 1e-2}
    section = PretrainSection(**sizes, lora=lora)

    def run(base: Path, out: str, merge: bool) -> PretrainingResult:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
        asked = {"section": section, "merge": merge, "out": tmp_path / out, "use_cpu": True}
        return pretrain(model, words(), reading, **asked)

    llama().save_pretrained(tmp_path / "base")
    found = run(tmp_path / "base", "run", True)
    again = run(tmp_path / "run" / "model", "again", False)
    apart = [one for one in read(tmp_path / "run") if one["kind"] == "evaluate"][-1]
    value, after = apart["bits_per_byte"]["domain"], found.after["domain"]
    assert again.before == found.after and after != value
    assert found.change["domain"].value == pytest.approx(after - found.before["domain"])
    (note,) = (one for one in found.notes if "merged into weights in bfloat16, which rounds" in one)
    assert f"domain {value:.5g} -> {after:.5g} bits per byte; the last are of the merged" in note
