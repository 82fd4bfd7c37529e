"""Headers of GGUF files: numbers that transformers leaves as its own configurations have them."""

import gguf
import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from layerlab.loading.packed.gguf_header import GgufHeader
from tests.support.gguf_file import finish

FREQUENT = [1.0, 2.0, 4.0, 8.0]


def header(file, architecture, fields, tensors=("token_embd.weight",), numbers=4):
    writer = gguf.GGUFWriter(file, architecture)
    for name, value in fields.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{architecture}.{name}", value)
    for name in tensors:
        writer.add_tensor(name, np.resize(np.float32(FREQUENT), numbers))
    finish(writer)
    return GgufHeader(file)


@pytest.mark.parametrize(
    ("architecture", "family", "fields", "expected"),
    [
        ("qwen3", "qwen3", {"attention.key_length": 96}, {"head_dim": 96}),
        ("gpt2", "gpt2", {"context_length": 64}, {"n_positions": 64}),
        ("falcon", "falcon", {"attention.key_length": 64}, {"head_dim": 64}),
        (
            "gemma2",
            "gemma2",
            {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 7.0},
            {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 7.0},
        ),
        (
            "qwen2moe",
            "qwen2_moe",
            {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 48},
            {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
        ),
        ("phi3", "phi3", {"attention.sliding_window": 2047}, {"sliding_window": 2047}),
        (
            "phi3",
            "phi3",
            {"rope.scaling.original_context_length": 32},
            {"original_max_position_embeddings": 32},
        ),
    ],
)
def test_a_number_of_the_file_is_that_of_the_model(
    architecture, family, fields, expected, tmp_path
):
    config = CONFIG_MAPPING[family]()
    header(tmp_path / "a.gguf", architecture, fields).complete(config)
    assert {name: getattr(config, name) for name in expected} == expected


def test_scores_of_the_largest_gemma_are_scaled_as_llama_cpp_does(tmp_path):
    config = CONFIG_MAPPING["gemma2"](
        num_hidden_layers=46, hidden_size=4608, num_attention_heads=32
    )
    header(tmp_path / "a.gguf", "gemma2", {}).complete(config)
    assert config.query_pre_attn_scalar == 144


@pytest.mark.parametrize(
    ("family", "fields", "expected"),
    [
        ("starcoder2", {"rope.freq_base": 1e6}, {"rope_theta": 1e6, "rope_type": "default"}),
        ("phi3", {"rope.dimension_count": 72}, {"partial_rotary_factor": 0.75}),
        (
            "gemma3",
            {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
            {"rope_type": "linear", "factor": 8.0},
        ),
        ("qwen2", {"rope.scaling.type": "none"}, {"rope_type": "default"}),
        ("qwen2", {"rope.scaling.type": "linear"}, {"rope_type": "default"}),
        (
            "qwen2",
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 1.0},
            {"rope_type": "default"},
        ),
    ],
)
def test_positions_are_turned_as_the_file_says(family, fields, expected, tmp_path):
    config = CONFIG_MAPPING["gemma3_text" if family == "gemma3" else family]()
    header(tmp_path / "a.gguf", family, fields).complete(config)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    assert {name: rope[name] for name in expected} == expected
    if family == "gemma3":
        assert config.rope_parameters["sliding_attention"]["rope_type"] == "default"


def test_what_transformers_knows_of_gemma_4_is_left_as_it_is(tmp_path):
    config = CONFIG_MAPPING["gemma4_text"]()
    before = config.to_dict()
    header(tmp_path / "a.gguf", "gemma4", {"attention.key_length": 512}).complete(config)
    assert config.to_dict() == before


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_tensors_without_a_place_are_listed(family, tmp_path):
    config = CONFIG_MAPPING[family](num_hidden_layers=1)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    names = ("token_embd.weight", "blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "rope_freqs.weight")
    found = header(tmp_path / "a.gguf", family, {"block_count": 1}, names)
    assert found.list_unread(model) == ["blk.1.ffn_up.weight"]


def test_long_and_short_texts_have_frequencies_of_their_own(tmp_path):
    config = CONFIG_MAPPING["phi3"]()
    names = [f"rope_factors_{one}.weight" for one in ("long", "short")]
    found = header(tmp_path / "a.gguf", "phi3", {"rope.scaling.attn_factor": 1.5}, names)
    found.complete(config)
    rope = config.rope_parameters
    assert (rope["rope_type"], rope["attention_factor"]) == ("longrope", 1.5)
    assert rope["long_factor"] == rope["short_factor"] == FREQUENT


def test_a_llama_whose_rows_would_keep_their_order_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"it has no attention\.head_count_kv"):
        header(tmp_path / "a.gguf", "llama", {}).complete(CONFIG_MAPPING["llama"]())


def test_tensors_that_share_their_numbers_are_refused(tmp_path):
    names = [f"blk.{layer}.attn_norm.weight" for layer in range(9)]
    header(tmp_path / "a.gguf", "llama", {}, names, numbers=999)
    content = (tmp_path / "a.gguf").read_bytes()
    for name in names[1:]:  # a dimension, a kind and where the numbers begin follow it
        at = content.index(name.encode()) + len(name) + 16
        content = content[:at] + bytes(8) + content[at + 8 :]
    (tmp_path / "a.gguf").write_bytes(content[:-8000])
    with pytest.raises(ValueError, match="two of its tensors share their numbers"):
        GgufHeader(tmp_path / "a.gguf")


def test_a_file_of_a_vocabulary_alone_is_refused(tmp_path):
    with pytest.raises(ValueError, match="it holds no weights"):
        header(tmp_path / "a.gguf", "llama", {}, ())
