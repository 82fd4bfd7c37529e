"""Merged adapters, which give the logits of the model with the adapter beside it."""

import peft
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from layerlab.loading.packed.merging import merge
from layerlab.loading.weights.saved import load_saved

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
TOKENS = torch.arange(3, 23)[None]


def _llama(tied=False):
    return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, tie_word_embeddings=tied))


def _gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4))


def _mixtral():
    return MixtralForCausalLM(MixtralConfig(**SIZES, **HEADS, num_local_experts=4))


def _lora(*targets, **more):
    return peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=list(targets), **more)


def _save(model, settings, place, rows=None):
    """Save a model and an adapter of it that changes something, and return the adapted model."""
    model.bfloat16().save_pretrained(place / "base")
    if rows is not None:
        model.resize_token_embeddings(rows)
    adapted = peft.get_peft_model(model, settings)
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data += 0.05 * torch.randn_like(weight)
    adapted.save_pretrained(place / "adapter", save_embedding_layers=rows is not None)
    return adapted.float().eval()


EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
IA3 = {"target_modules": ["k_proj"], "feedforward_modules": []}
ENDS = ["embed_tokens", "lm_head"]
CASES = {
    "linear": (_llama, _lora("q_proj", "down_proj", use_rslora=True), False),
    "magnitudes": (_llama, _lora("q_proj", use_dora=True), False),
    "inputs first": (_gpt2, _lora("c_attn", "c_proj", fan_in_fan_out=True), True),
    "embedding": (lambda: _llama(True), _lora("q_proj", "embed_tokens"), False),
    "head": (lambda: _llama(True), _lora("q_proj", "lm_head"), False),
    "both ends": (lambda: _llama(True), _lora("q_proj", modules_to_save=ENDS), False),
    "rows": (lambda: _llama(True), _lora("q_proj", trainable_token_indices=[3, 5]), True),
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
    merged, dtype = merge(tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "base")
    merged.save_pretrained(tmp_path / "merged")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    expected, plain = adapted(TOKENS).logits, load_saved(tmp_path / "base").float()(TOKENS).logits
    change = (expected - plain).abs().max()
    assert (read(TOKENS).logits - expected).abs().max() < 1e-2 * change
    assert dtype == "bfloat16" and read.config.tie_word_embeddings == tied


def test_takes_the_rows_of_an_adapter_with_more_tokens(tmp_path):
    torch.manual_seed(0)
    adapted = _save(_llama(), _lora("q_proj"), tmp_path, rows=72)
    merged, _ = merge(tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "base")
    assert merged.config.vocab_size == 72
    torch.testing.assert_close(
        merged.float()(TOKENS).logits, adapted(TOKENS).logits, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        (_lora(*ENDS, ensure_weight_tying=True), "embed_tokens"),
        (_lora("q_proj", layer_replication=[[0, 2], [1, 2]]), "q_proj"),
    ],
    ids=["head and embedding", "layers twice"],
)
def test_refuses_an_adapter_of_one_of_several_that_hold_a_weight(settings, changed, tmp_path):
    _save(_llama(True), settings, tmp_path)
    with pytest.raises(ValueError, match=rf"{changed}\.weight is the weight of 2 modules"):
        merge(tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "base")


def test_refuses_a_model_larger_than_memory(tmp_path, monkeypatch):
    _save(_llama(), _lora("q_proj"), tmp_path)
    monkeypatch.setattr("layerlab.loading.packed.merging.free_memory", lambda device: 1000)
    with pytest.raises(MemoryError, match=r"GiB of weights, and 0\.0 are free"):
        merge(tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "base")
