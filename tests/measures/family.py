"""Tiny models of many families, and what their attention layers multiplied."""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from layerlab.observe.architecture.head_weights import HeadWeights, project
from layerlab.observe.architecture.structure import anatomy, text_config
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.records import Layer
from layerlab.observe.tracing.trace import trace

FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PLAIN = {**FALCON, "max_position_embeddings": 64}
LLAMA = {**PLAIN, "intermediate_size": 48, "num_key_value_heads": 2}
HEAD = {**LLAMA, "head_dim": 8}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BERT = {**PLAIN, "intermediate_size": 48, "is_decoder": True}
EXPERT = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 16,
}
OPT = {**PLAIN, "ffn_dim": 48, "word_embed_proj_dim": 32}

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gpt2 by layer": {**GPT, "scale_attn_by_inverse_layer_idx": True},
    "openai-gpt": GPT,
    "gptj": {**GPT, "rotary_dim": 4},
    "codegen": {**GPT, "rotary_dim": 4},
    "gpt_bigcode": GPT,
    "gpt_bigcode interleaved": {**GPT, "multi_query": False},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 8,
        "max_position_embeddings": 64,
    },
    "gpt_neox": BERT,
    "gpt_neox_japanese": {k: v for k, v in BERT.items() if k != "intermediate_size"},
    "persimmon": BERT,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": FALCON,
    "falcon alibi": {**FALCON, "alibi": True, "multi_query": False, "bias": True},
    "falcon grouped": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4},
    "phi": {**LLAMA, "num_key_value_heads": 4},
    "phi qk": {**LLAMA, "num_key_value_heads": 4, "qk_layernorm": True},
    "phi3": LLAMA,
    "opt": OPT,
    "opt post": {**OPT, "do_layer_norm_before": False},
    "biogpt": BERT,
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "ctrl": {"n_embd": 32, "dff": 48, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": LLAMA,
    "llama bias": {**LLAMA, "attention_bias": True},
    "llama yarn": {**LLAMA, "rope_parameters": YARN},
    "mistral": {**LLAMA, "sliding_window": 8},
    "mixtral": {**LLAMA, **EXPERT},
    "qwen2": LLAMA,
    "qwen3": HEAD,
    "qwen3_next": {
        **HEAD,
        **EXPERT,
        "shared_expert_intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "gemma": HEAD,
    "gemma2": {**HEAD, "sliding_window": 8},
    "gemma3_text": {**HEAD, "sliding_window": 8},
    "olmo": LLAMA,
    "olmo clip": {**LLAMA, "clip_qkv": 0.05},
    "olmo2": LLAMA,
    "stablelm": LLAMA,
    "stablelm qk": {**LLAMA, "qk_layernorm": True},
    "starcoder2": LLAMA,
    "cohere": LLAMA,
    "cohere qk": {**LLAMA, "use_qk_norm": True},
    "granite": LLAMA,
    "gpt_oss": {**HEAD, **EXPERT, "sliding_window": 8},
    "glm": HEAD,
    "glm4": HEAD,
    "nemotron": LLAMA,
    "nanochat": HEAD,
    "apertus": LLAMA,
    "lfm2": {**LLAMA, "layer_types": ["conv", "full_attention"]},
    "bitnet": LLAMA,
    "deepseek_v3": {
        **LLAMA,
        **LATENT,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
}


def built(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A tiny model whose norms have gains and shifts that matter, and whose scores spread."""
    options = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        config = AutoConfig.for_model(family.split()[0], **{**options, **FAMILIES[family]})
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4)
                else:
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype)


def layers(model: PreTrainedModel) -> list[tuple[HeadWeights, AttentionRecord, Tensor, Tensor]]:
    """Weights of every attention layer, with what the model multiplied, read and gave there."""
    stack, inputs, found = anatomy(model), {}, []
    fronts: dict[int, nn.Module] = {}
    hooks = [
        part.module.register_forward_pre_hook(
            lambda module, args, options, number=part.number: inputs.__setitem__(
                number, (args[0] if args else options["hidden_states"])[0]
            ),
            with_kwargs=True,
        )
        for part in stack.attentions
    ]

    def read(layer: Any) -> None:
        if layer.attention is None:
            return
        part = stack.attention(layer.attention.name)
        front = fronts.get(part.block)
        weights = project(layer.block, part, config=text_config(model), front=front)
        left = layer.sublayers["attention"].left
        found.append((weights, layer.attention, inputs[part.number], left))

    trace(model, stack, [torch.arange(3, 27)], read, fronts=fronts)
    for hook in hooks:
        hook.remove()
    return found


def traced(model: PreTrainedModel, *sequences: Iterable[int]) -> list[Layer]:
    """Every block of every sequence with its weights; only tests keep more than one."""
    stack, layers = anatomy(model), list[Layer]()
    trace(model, stack, [torch.tensor([*ids]) for ids in sequences], layers.append)
    weights = [
        project(stack.blocks[part.block], part, config=model.config) for part in stack.attentions
    ]
    return [replace(one, weights=weights[one.layer]) for one in layers if one.layer >= 0]
