"""What a configuration may say, up to the last number, of a model that is built without weights."""

import math
import sys
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, FineGrainedFP8Config, LlamaConfig, T5Config, ViTConfig

from layerlab.loading.weights.weightless import (
    Outline,
    check_blocks,
    check_causal,
    check_counts,
    check_kinds,
    check_method,
    check_number,
    check_unpacked,
    empty,
)
from tests.support.refused import refuses

MOST = sys.float_info.max
SMALL = {
    **{"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 2},
}
FP8 = {"quant_method": "fp8", "weight_block_size": [48, 48]}


def llama(**fields: Any) -> LlamaConfig:
    return LlamaConfig(**{**SMALL, **fields})


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("rms_norm_eps", [0, 1], [-5e-324, math.nextafter(1, 2), nan]),
        ("norm_epsilon", [0.0, 1.0], [1.5]),
        ("attention_dropout", [0, 0.5, 1], [-0.1, 1.1, nan]),
        ("resid_pdrop", [0, 1], [2]),
        ("rope_theta", [5e-324, 1e4, MOST], [0, -1.0, inf, nan]),
        ("layer_rope_theta", [0, 1e4], [inf]),
        ("max_position_embeddings", [1, 4096], [0, 0.5, inf]),
        ("rope_parameters.factor", [1, 8.0], [0.99, inf, nan]),
        ("factor", [0.5, -1], [inf]),
        ("num_hidden_layers", [-MOST, 0, 10**6], [10**6 + 1, inf, nan]),
        ("time_step_limit", [-inf, 0, inf], [nan]),
        ("initializer_range", [-MOST, 0, MOST], [inf, -inf, nan]),
    ],
)
def test_a_number_is_taken_up_to_its_limits_and_no_further(field, inside, outside):
    path = ("config.json", *field.split("."))
    for one in inside:
        check_number(path, one, "folder")
    for one in outside:
        refuses(rf"{path[-1]} is .* in 'folder'; expected a ", check_number, path, one, "folder")


@pytest.mark.parametrize("name", ["num_hidden_layers", "vocab_size", "intermediate_size"])
def test_a_model_has_one_of_each_size_at_least(name):
    check_counts(llama(**{name: 1}), "folder")
    refuses(f"{name} is 0 in config.json", check_counts, llama(**{name: 0}), "folder")


def test_a_size_is_called_as_its_family_calls_it():
    config = AutoConfig.for_model("gpt2", n_layer=0)
    refuses("n_layer is 0 in config.json in 'folder'", check_counts, config, "folder")


def test_more_layers_are_built_only_where_there_are_weights_of_them():
    stored = {f"model.layers.{at}.x": Outline("F32", (10**6,)) for at in (0, 1200)}
    said = "says 1,202 layers, and the weights beside it hold 1,201"
    refuses(said, empty, llama(num_hidden_layers=1202), "folder", stored)
    said = "says 1,001 layers, and 1,000 is the most"
    refuses(said, empty, llama(num_hidden_layers=1001), "folder")


@pytest.mark.parametrize(("packed", "times"), [(False, 4), (True, 32)])
def test_a_model_has_no_more_numbers_than_its_weights_may_stand_for(packed, times):
    config = llama(**({"quantization_config": FP8} if packed else {}))
    asked = sum(one.numel() for one in empty(config, "folder").parameters())
    held = -(-asked // times)
    assert empty(config, "folder", {"x": Outline("F32", (1, held))})
    said = rf"describes {asked:,} parameters, and the weights beside it hold {held - 1:,}"
    refuses(said, empty, config, "folder", {"x": Outline("F32", (1, held - 1))})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "nothing"}, "describes no model: hidden_act is 'nothing', which"),
        ({"head_dim": 0}, "head_dim is 0 in config.json"),
    ],
)
def test_what_describes_no_model_is_named(change, said):
    refuses(said, empty, llama(**change), "folder")


@pytest.mark.parametrize("kinds", ["LlamaForCausalLM", {"LlamaForCausalLM": 1}, [1]])
def test_classes_are_a_list_of_names(kinds):
    config = llama()
    config.architectures = kinds
    refuses("architectures is .* expected a list of names", check_causal, config, "folder")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (ViTConfig(), "'own' is a vit, not a causal language model"),
        (T5Config(architectures=["T5ForConditionalGeneration"]), "is a T5ForConditionalGeneration"),
        (llama(architectures=["Qwen2ForCausalLM"]), "Qwen2ForCausalLM is of another family"),
    ],
)
def test_what_is_no_language_model_or_of_two_families_is_named(config, said):
    refuses(said, check_causal, config, "own")


@pytest.mark.parametrize("given", ["spin", {"quant_method": "spin"}])
def test_a_quantization_that_transformers_does_not_know_is_named(given):
    config = SimpleNamespace(quantization_config=given)
    refuses("quantized by 'spin', which this transformers does not", check_method, config, "own")


def test_positions_of_which_none_rotate_are_a_size():
    check_counts(AutoConfig.for_model("deepseek_v3", qk_rope_head_dim=0), "folder")


@pytest.mark.parametrize(
    ("side", "scales", "block", "refused"),
    [
        (64, 2, 48, True),
        (96, 2, 48, False),  # whole blocks
        (40, 1, 48, False),  # one, which is the side
        (64, 4, 48, False),  # blocks of some other number
    ],
)
def test_blocks_are_refused_only_where_the_last_is_a_part_of_one(
    side, scales, block, refused, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bare: Any = SimpleNamespace(
        config=SimpleNamespace(quantization_config={"weight_block_size": [48, block]})
    )
    stored = {
        "w": Outline("F8_E4M3", (48, side)),
        "w_scale_inv": Outline("F32", (1, scales)),
        "v": Outline("F8_E4M3", (side,)),
        "v_scale_inv": Outline("F32", (scales,)),
    }
    if not refused:
        check_blocks(bare, "folder", stored)
        return
    said = "'w' in the weights of 'folder' is quantized in blocks of 48, and 2 of them are not"
    refuses(said, check_blocks, bare, "folder", stored)
    bare.config.quantization_config = FineGrainedFP8Config(weight_block_size=(48, 48))
    refuses(said, check_blocks, bare, "folder", stored)
    for odd in (48, [48], None):
        bare.config.quantization_config = {"weight_block_size": odd}
        check_blocks(bare, "folder", stored)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for ability, exact in (((8, 9), True), ((9, 0), True), ((8, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda ability=ability: ability)
        bare.config.quantization_config = {"weight_block_size": [48, 48]}
        if exact:
            check_blocks(bare, "folder", stored)
            bare.config.quantization_config["dequantize"] = True
        refuses(said, check_blocks, bare, "folder", stored)


def test_whole_numbers_are_refused_under_the_names_of_weights_and_in_eight_bits():
    bare = empty(llama(), "folder")
    refuses("'left' in", check_kinds, bare, "folder", {"left": Outline("I8", (1,))})
    bare._keys_to_ignore_on_load_unexpected = ["left"]
    own = "layers.0.mlp.up_proj.weight"
    for name, kind, refused in (
        (f"model.{own}", "I64", True),
        (own, "U16", True),
        (own, "F16", False),
        ("elsewhere", "I8", True),
        ("elsewhere", "I64", False),
        ("left", "I8", False),
        ("rotary_emb.inv_freq", "I8", False),  # a buffer
    ):
        stored = {name: Outline(kind, (1,))}
        if refused:
            refuses(f"'{name}' in .* holds whole numbers", check_kinds, bare, "folder", stored)
        else:
            check_kinds(bare, "folder", stored)


@pytest.mark.parametrize(
    ("beside", "kind", "refused"),
    [([], "I8", True), (["bias"], "I8", True), (["scale"], "I8", False), ([], "F8_E4M3", False)],
)
def test_whole_numbers_of_a_quantized_model_have_a_scale_beside_them(beside, kind, refused, tiny):
    name = "model.layers.0.mlp.up_proj"
    stored = {f"{name}.{one}": Outline("F32", (1,)) for one in beside}
    stored[f"{name}.weight"] = Outline(kind, (16, 16))
    stored["model.elsewhere"] = Outline("I8", (1,))
    if refused:
        refuses("unpacks them by no scale", check_unpacked, tiny("llama"), "folder", stored)
    else:
        check_unpacked(tiny("llama"), "folder", stored)


def test_a_tied_weight_is_looked_at_under_both_names_and_what_a_quantizer_made_under_none(tiny):
    class Packed(torch.nn.Parameter):
        pass

    model = tiny("gpt2")
    stored = {"lm_head.weight": Outline("I8", (64, 16))}
    refuses("'lm_head.weight' in", check_unpacked, model, "folder", stored)
    model.lm_head.weight = Packed(model.lm_head.weight)
    check_unpacked(model, "folder", stored)
