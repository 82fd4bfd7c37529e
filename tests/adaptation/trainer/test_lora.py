"""Adapters that are merged leave the model that was trained; where they cannot, none begins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, ZambaConfig, ZambaForCausalLM

import layerlab
from layerlab import UserError
from layerlab.adaptation.pretraining.replay import ReplayData
from layerlab.adaptation.pretraining.train import pretrain
from layerlab.adaptation.trainer.lora import add_adapters, check_mergeable, merge_adapters
from layerlab.api.adapt import plan_adaptation
from layerlab.recipes.adaptation_sections import LoraSection, PretrainSection
from tests.adaptation.lessons import recipe
from tests.adaptation.small import LAW, words, written

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
def test_weights_that_layers_share_take_no_adapters(make: Callable[[], Any]) -> None:
    model = make()
    with pytest.raises(UserError, match=REFUSED):
        check_mergeable(model, LoraSection(r=4))
    assert learned(model, LoraSection(r=4)) > 0.1  # what would be saved is another model


def test_what_is_not_shared_takes_adapters_beside_it() -> None:
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
def test_a_head_tied_to_the_embeddings_takes_none(
    tiny: Callable[..., PreTrainedModel], lora: dict[str, Any], fits: bool
) -> None:
    model = tiny("llama", tie_word_embeddings=True)
    section = LoraSection(r=4, **lora)
    if fits:
        check_mergeable(model, section)
        return
    with pytest.raises(UserError, match=REFUSED):
        check_mergeable(model, section)
    check_mergeable(tiny("llama", tie_word_embeddings=False), section)


def test_a_module_trained_whole_is_no_layers_in_common() -> None:
    lora = LoraSection(r=4, target_modules=("lm_head",), modules_to_save=("router",))
    with pytest.raises(UserError, match=r"weight of model.layers.0.ffn.router, which model.layers"):
        check_mergeable(layerlab.build("widenet", **SIZE), lora)


def test_no_stage_begins_with_adapters_that_it_could_not_merge(tmp_path: Path) -> None:
    section = PretrainSection(tokens=256, block_size=16, batch_size=4, lora=LoraSection(r=4))
    reading = ReplayData(
        domain=written(tmp_path / "law.jsonl", LAW, 60, 0), cache=tmp_path / "cache"
    )
    model = layerlab.build("widenet", **SIZE)
    out = tmp_path / "out"
    with pytest.raises(UserError, match=REFUSED):
        pretrain(model, words(), reading, section=section, merge=True, out=out, use_cpu=True)
    assert not out.exists()


def test_a_recipe_with_such_adapters_is_refused_before_any_stage(tmp_path: Path) -> None:
    content = recipe(tmp_path, vocabulary=None, embedding=None, pretrain=None)
    content["base"]["recipe"]["model"] |= {"variant": "widenet", "layers": 2}
    plan_adaptation(content, tmp_path / "out")
    content["sft"]["lora"] = {"r": 4}
    with pytest.raises(UserError, match=REFUSED):
        plan_adaptation(content, tmp_path / "out")
