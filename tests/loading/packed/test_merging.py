"""Merged adapters, which give the logits of the model with the adapter beside it."""

import json
import math
from functools import partial

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from layerlab.loading.packed.merging import merge
from layerlab.loading.weights.saved import load_saved
from tests.support.packed_folder import TOKENS, sizes, small_llama

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's


_llama = partial(small_llama, 32)
_tied = partial(_llama, tied=True)


def _gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4))


def _mixtral():
    return MixtralForCausalLM(MixtralConfig(**sizes(32), num_local_experts=4))


def _lora(*targets, **more):
    return peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=list(targets), **more)


def _save(model, settings, place, rows=None):
    """Save a model and an adapter of it that changes something, and return the adapted model."""
    model.bfloat16().save_pretrained(place / "base")
    model.float()  # as a trainer holds what it learns
    if rows is not None:
        model.resize_token_embeddings(rows)
    adapted = peft.get_peft_model(model, settings)
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data += 0.05 * torch.randn_like(weight)
    adapted.save_pretrained(place / "adapter", save_embedding_layers=rows is not None)
    return adapted.eval()


def _merge(place):
    return merge(place / "adapter" / "adapter_model.safetensors", place / "base")


MANY = {"intermediate_size": 64, "num_hidden_layers": 8}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
IA3 = {"target_modules": ["k_proj"], "feedforward_modules": []}
ENDS = ["embed_tokens", "lm_head"]
HEAD_ROWS = {"embed_tokens": [3], "lm_head": [4]}
BANK = {"num_vectors": 8, "vector_length": 8, "target_modules": ["q_proj"]}
CASES = {
    "linear": (_llama, _lora("q_proj", "down_proj", use_rslora=True), False),
    "magnitudes": (_llama, _lora("q_proj", use_dora=True), False),
    "inputs first": (_gpt2, _lora("c_attn", "c_proj", fan_in_fan_out=True), True),
    "embedding": (_tied, _lora("q_proj", "embed_tokens"), False),
    "head": (_tied, _lora("q_proj", "lm_head"), False),
    "both ends": (_tied, _lora("q_proj", modules_to_save=ENDS), False),
    "rows": (_tied, _lora("q_proj", trainable_token_indices=[3, 5]), True),
    "rows apart": (_tied, _lora("q_proj", trainable_token_indices=HEAD_ROWS), False),
    "rows of the head": (_tied, _lora("q_proj", trainable_token_indices={"lm_head": [4]}), False),
    "both ends by LoRA": (_tied, _lora(*ENDS, ensure_weight_tying=True), False),
    "norms": (_llama, _lora("q_proj", modules_to_save=["input_layernorm", "norm"]), False),
    "principal parts": (_llama, _lora("q_proj", init_lora_weights="pissa"), False),
    "bank of vectors": (_llama, peft.VBLoRAConfig(r=2, **BANK), False),
    "experts": (_mixtral, _lora("q_proj", target_parameters=EXPERTS), False),
    "scales": (_llama, peft.IA3Config(**IA3), False),
    "turned": (_llama, peft.OFTConfig(r=0, oft_block_size=8, target_modules=["q_proj"]), False),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_with_the_adapter_beside_the_model(case, tmp_path):
    torch.manual_seed(0)
    build, settings, tied = CASES[case]
    adapted = _save(build(), settings, tmp_path)
    merged, dtype = _merge(tmp_path)
    merged.save_pretrained(tmp_path / "merged")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    expected, plain = adapted(TOKENS).logits, load_saved(tmp_path / "base").float()(TOKENS).logits
    change = (expected - plain).abs().max()
    assert (read(TOKENS).logits - expected).abs().max() < 1e-4 * change + 2e-6
    assert dtype == "bfloat16" and read.config.tie_word_embeddings == tied


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("more", [{}, {"modules_to_save": ENDS}, {"trainable_token_indices": [70]}])
def test_takes_the_rows_of_an_adapter_with_more_tokens(more, tied, tmp_path):
    torch.manual_seed(0)
    adapted = _save(_llama(tied=tied), _lora("q_proj", **more), tmp_path, rows=72)
    merged, _ = _merge(tmp_path)
    assert merged.config.vocab_size == 72
    tokens = torch.cat([TOKENS, TOKENS + 49], 1)
    expected = adapted(tokens).logits
    torch.testing.assert_close(merged.float()(tokens).logits, expected, rtol=1e-5, atol=1e-5)


def test_refuses_an_adapter_of_layers_that_stand_twice(tmp_path):
    _save(_tied(), _lora("q_proj", layer_replication=[[0, 2], [1, 2]]), tmp_path)
    with pytest.raises(ValueError, match=r"q_proj\.weight is the weight of 2 modules"):
        _merge(tmp_path)


def test_refuses_a_start_that_is_drawn_anew(tmp_path):
    _save(_llama(), _lora("q_proj", init_lora_weights="pissa_niter_4"), tmp_path)
    with pytest.raises(ValueError, match="pissa_niter_4 begins with a part of the weights"):
        _merge(tmp_path)


def test_weights_in_another_precision_than_the_model_keep_it(tmp_path):
    _save(_llama(), _lora("q_proj"), tmp_path)
    model = load_saved(tmp_path / "base")
    model.model.norm.weight.data = torch.full([32], 1 + 2.0**-12)
    model.save_pretrained(tmp_path / "base")
    merged, _ = _merge(tmp_path)
    assert (merged.model.norm.weight == 1 + 2.0**-12).all()
    assert merged.model.embed_tokens.weight.dtype == torch.bfloat16


def test_refuses_a_model_larger_than_memory(tmp_path, monkeypatch):
    sizes = [one.numel() for one in _llama().parameters()]
    _save(_llama(), _lora("q_proj"), tmp_path)
    learned = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    own = sum(one.numel() for one in learned.values())
    # The model and its adapter, and of the weight that is being merged its change, their sum and a
    # check of it.
    need = 4 * (sum(sizes) + own + 3 * max(sizes))
    free = [need - 1, need]
    where = "layerlab.loading.packed.merging.free_memory"
    monkeypatch.setattr(where, lambda device: free.pop(0))
    with pytest.raises(MemoryError, match=r"GiB of weights, and 0\.0 are free"):
        _merge(tmp_path)
    assert _merge(tmp_path) and not free


def test_counts_the_numbers_that_packed_weights_stand_for(tmp_path, monkeypatch):
    config = GptOssConfig(**sizes(32) | MANY, num_local_experts=8, head_dim=8)
    model = GptOssForCausalLM(config)
    shapes = [one.shape for one in model.state_dict().values()]
    _save(model, _lora("q_proj"), tmp_path)
    weights = load_file(tmp_path / "base" / "model.safetensors")
    for name in [one for one in weights if one.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = weights.pop(name).shape
        groups = (experts, outputs, inputs // 32)
        weights[f"{name}_blocks"] = torch.zeros(*groups, 16, dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.full(groups, 120, dtype=torch.uint8)
    save_file(weights, tmp_path / "base" / "model.safetensors", {"format": "pt"})
    file = tmp_path / "base" / "config.json"
    method = {"quantization_config": {"quant_method": "mxfp4"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | method))
    free = 4 * sum(map(math.prod, shapes))
    monkeypatch.setattr("layerlab.loading.packed.merging.free_memory", lambda device: free)
    with pytest.raises(MemoryError, match="GiB of weights"):
        _merge(tmp_path)
