"""Tiny random models of the families that can be rebuilt, with biases and gains that are not 0."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

WIDE = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
FAMILIES = {
    "llama": {**WIDE, "attention_bias": True, "mlp_bias": True},
    "mistral": {**WIDE, "sliding_window": None},
    "qwen2": {**WIDE, "tie_word_embeddings": True},
    "qwen3": {**WIDE, "head_dim": 16},
    "gpt2": {**GPT, "n_inner": 96},
    "openai-gpt": GPT,
}


def pretrained(kind: str, **changes: object) -> PreTrainedModel:
    """A model that looks trained: every parameter is away from its start."""
    sizes = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1, **FAMILIES[kind], **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()
