import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from layerlab.measures.agreement import checked, verify
from layerlab.measures.anatomy import anatomy, text_config
from layerlab.measures.attended import Attended
from layerlab.measures.front import front_norm, norm
from layerlab.measures.layout import layout
from layerlab.measures.projection import LayerWeights, project
from layerlab.measures.trace import trace

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
HEAD = {**LLAMA, "head_dim": 8}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BERT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "is_decoder": True,
}
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
OPT = {
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 64,
}
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}

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

# What must be refused; everything else must be found, and agree.
REFUSED = {
    "bloom": {"scores"},
    "mpt": {"scores"},
    "falcon alibi": {"scores"},
    "qwen3_next": {"output"},
    "bitnet": {"output"},
    "deepseek_v3": {"query", "key", "value", "output"},
}
NO_FRONT = {"openai-gpt", "opt post", "olmo2", "deepseek_v3"}


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


def layers(model: PreTrainedModel) -> list[tuple[LayerWeights, Attended, Tensor, Tensor]]:
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
        part = stack.attentions[layer.attention.layer]
        weights = project(
            layer.block,
            part.module,
            name=part.name,
            layer=part.number,
            config=text_config(model),
            front=fronts.get(part.block),
        )
        left = layer.sublayers["attention"].left
        found.append((weights, layer.attention, inputs[part.number], left))

    trace(model, stack, [torch.arange(3, 27)], read, fronts=fronts)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_give_the_queries_keys_values_and_outputs_of_the_model(family: str) -> None:
    found = layers(built(family))
    assert found
    for weights, attended, entered, left in found:
        assert set(weights.refused) == REFUSED.get(family, set())
        faults = verify(weights, attended, entered, left)
        assert faults is None or set(weights.refused) == {"scores"}, faults
        for part in {"query", "key", "value", "output"} - set(weights.refused):
            assert getattr(weights, part) is not None
        assert (weights.gain is None) == (
            family in NO_FRONT and (weights.layer == 0 or family in ("olmo2", "deepseek_v3"))
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("family", ["llama yarn", "gpt2", "cohere qk", "gemma2"])
def test_the_check_allows_the_rounding_of_every_precision(family: str, dtype: torch.dtype) -> None:
    for weights, attended, entered, left in layers(built(family, dtype)):
        assert weights.gain is not None
        assert verify(weights, attended, entered, left) is None


@pytest.mark.parametrize("family", ["gpt2", "llama", "llama yarn", "qwen3", "olmo2", "gptj"])
def test_a_wrong_cut_of_the_queries_is_refused(family: str) -> None:
    weights, attended, entered, left = layers(built(family))[1]
    assert weights.query is not None
    wrong = replace(weights, query=weights.query.flip(0), query_bias=None)
    assert "query" in checked(wrong, attended, entered, left).refused
    assert checked(wrong, attended, entered, left).query is None
    inside = replace(weights, query=weights.query.roll(1, 1))
    assert "query" in checked(inside, attended, entered, left).refused


@pytest.mark.parametrize(
    ("field", "part"),
    [("value", "value"), ("output", "output"), ("key", "key"), ("gain", "gain")],
)
def test_every_other_wrong_part_is_refused(field: str, part: str) -> None:
    weights, attended, entered, left = layers(built("gpt2"))[1]
    wrong = getattr(weights, field).flip(0)
    found = checked(replace(weights, **{field: wrong}), attended, entered, left)
    assert set(found.refused) == {part}
    assert getattr(found, field) is None


def test_a_wrong_scale_is_refused() -> None:
    for family in ("gpt2", "qwen3"):
        weights, attended, entered, left = layers(built(family))[0]
        wrong = replace(weights, scaling=weights.scaling * 2)
        assert "query" in checked(wrong, attended, entered, left).refused


def test_an_input_of_another_length_is_refused() -> None:
    weights, attended, entered, left = layers(built("gpt2"))[0]
    assert "tokens" in checked(weights, attended, entered[:-1], left[:-1]).refused["query"]


def test_the_window_that_was_seen_replaces_the_one_that_was_read() -> None:
    weights, attended, entered, _ = layers(built("mistral"))[0]
    assert weights.window == 8
    seen = replace(attended, window=5)
    assert checked(weights, seen, entered).window == 5


def test_a_reason_known_before_the_trace_is_kept() -> None:
    weights, attended, entered, _ = layers(built("mistral"))[0]
    known = replace(weights, window=None, refused={"scores": "known before"})
    holes = torch.zeros(1, attended.tokens, attended.tokens)
    holes[:, 5:, 2] = -torch.inf
    found = checked(known, replace(attended, bias=holes), entered)
    assert found.refused["scores"] == "known before"


def test_rows_that_use_other_keys_than_expected_leave_no_bound_on_the_norm() -> None:
    weights, attended, entered, left = layers(built("gpt2"))[0]
    assert "scores" not in checked(weights, attended, entered, left).refused
    holes = torch.zeros(1, attended.tokens, attended.tokens)
    holes[:, 5:, 2] = -torch.inf
    found = checked(weights, replace(attended, bias=holes), entered)
    assert "keys" in found.refused["scores"]


def test_an_added_bias_leaves_no_bound_on_the_scores() -> None:
    weights, attended, entered, _ = layers(built("gpt2"))[0]
    slope = torch.arange(attended.tokens, dtype=torch.float32).expand(1, attended.tokens, -1)
    found = checked(weights, replace(attended, bias=slope), entered)
    assert found.refused == {"scores": "a bias is added to the scores"}


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("width", [4, 7, 32])
def test_a_norm_is_read_from_what_it_gives_back(kind: str, width: int) -> None:
    weight, bias = torch.randn(2, width, generator=torch.Generator().manual_seed(width))
    module = nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width)
    module.weight.data.copy_(weight)
    if kind == "layer":
        module.bias.data.copy_(bias)
    found = norm(module, width)
    assert found is not None and found.kind == kind
    assert torch.equal(found.gain, weight)
    assert found.shift is None if kind == "rms" else torch.equal(found.shift, bias)


def test_the_gain_of_gemma_is_one_plus_its_weight() -> None:
    model = built("gemma")
    layer = model.model.layers[0]
    found = norm(layer.input_layernorm, 32)
    assert found is not None
    torch.testing.assert_close(found.gain, 1 + layer.input_layernorm.weight, rtol=2**-23, atol=0)


def test_a_norm_without_weights_has_gain_one() -> None:
    model = built("olmo")
    weights = layers(model)[0][0]
    assert weights.norm == "layer" and weights.shift is None
    torch.testing.assert_close(weights.gain, torch.ones(32), rtol=8 * 2**-23, atol=0)


@pytest.mark.parametrize("module", [nn.Identity(), nn.Linear(8, 8), nn.Tanh(), nn.Conv1d(1, 1, 1)])
def test_what_is_not_a_norm_is_not_taken_for_one(module: nn.Module) -> None:
    assert norm(module, 8) is None


def test_a_post_norm_block_has_no_norm_in_front() -> None:
    for family, path in (("openai-gpt", "transformer.h.1"), ("opt post", "model.decoder.layers.1")):
        model = built(family)
        block = model.get_submodule(path)
        part = anatomy(model).attentions[1]
        assert front_norm(block, part.module) is None


def test_broken_weights_do_not_hide_the_norm() -> None:
    module = nn.LayerNorm(8)
    module.weight.data[3] = torch.nan
    found = norm(module, 8)
    assert found is not None and found.kind == "layer" and bool(found.gain[3].isnan())


def test_rotary_factor_is_that_of_the_models_own_tables() -> None:
    model = built("llama yarn")
    for weights, *_ in layers(model):
        assert weights.rotary == model.model.rotary_emb.attention_scaling > 1
    assert layers(built("llama"))[0][0].rotary == 1
    assert layers(built("gpt2"))[0][0].rotary is None


def test_experts_stay_one_matrix_of_three_axes() -> None:
    shapes = {name: m.ndim for name, m in layers(built("mixtral"))[0][0].matrices.items()}
    assert 3 in shapes.values() and shapes["self_attn.q_proj.weight"] == 2


def test_grouped_heads_keep_their_own_count() -> None:
    weights = layers(built("llama"))[0][0]
    assert weights.query is not None and weights.key is not None
    assert (len(weights.query), len(weights.key)) == (4, 2)


class StrangeAttention(nn.Module):
    """A fused projection that no table knows."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.head_dim = 4
        self.add_module(part, nn.Linear(8, 24))
        self.o_proj = nn.Linear(8, 8)


@pytest.mark.parametrize("part", ["query_key_value", "Wqkv", "mystery_proj"])
def test_an_unknown_layout_is_refused_and_not_guessed(part: str) -> None:
    module = StrangeAttention(part)
    config = AutoConfig.for_model("llama", **LLAMA)
    found = layout(nn.ModuleDict({"attention": module}), module, config)
    assert found.query is None and "StrangeAttention" in found.refused["query"]
