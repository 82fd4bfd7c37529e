import json

import pytest

from layerlab.loading.packed.packing import MLX_FAMILIES, VARIETIES, find_packing
from tests.support.refused import refuses

LLAMA = {"model_type": "llama"}
MLX = {"bits": 4, "group_size": 64}


def packing_of(folder, config, aside=None):
    (folder / "config.json").write_text(json.dumps(config))
    if aside is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(aside))
    return find_packing(folder)


@pytest.mark.parametrize(
    ("given", "tool", "layout"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq", "gptq"),
        ({"quant_method": "awq", "version": "gemm"}, "awq", "awq"),
        ({"quant_method": "awq", "version": "GEMM"}, "awq", "awq"),
        ({"quant_method": "auto-round"}, "auto-round", "gptq"),
        (
            {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"},
            "auto-round",
            "awq",
        ),
        (MLX, "mlx", "mlx"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt", "modelopt"),
    ],
)
def test_a_tool_is_found_by_what_it_writes(given, tool, layout, tmp_path):
    found = packing_of(tmp_path, {**LLAMA, "quantization_config": given})
    assert (found.tool, found.layout, found.config) == (tool, layout, LLAMA)
    found.check_known("here")


def test_mlx_and_modelopt_are_found_where_they_write_too(tmp_path):
    assert packing_of(tmp_path, {**LLAMA, "quantization": MLX}).tool == "mlx"
    aside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    assert packing_of(tmp_path, LLAMA, aside).tool == "modelopt"


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        {"quantization_config": None},
        {"quantization_config": {"quant_method": "fp8"}},
        {"quantization_config": {"bits": 4}},
        {"quantization_config": {"quant_method": ["gptq"]}},
        ["quantization_config"],
    ],
)
def test_what_transformers_reads_or_nobody_is_left_to_it(config, tmp_path):
    assert packing_of(tmp_path, config) is None
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert find_packing(tmp_path) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"quant_method": "gptq", "checkpoint_format": "marlin"},
            "by gptq as 'marlin'.*gptq, gptq_v2",
        ),
        ({"quant_method": "awq", "version": "gemv"}, "by awq as 'gemv', which is not read"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:fake"}, "'auto_round:fake'"),
        ({**MLX, "mode": "other"}, "by mlx as 'other'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "by modelopt as 'W4A8_AWQ'"),
        ({"quant_method": "modelopt", "quant_algo": 7}, "by modelopt as '7'"),
    ],
)
def test_a_variety_that_was_never_compared_is_refused(given, said, tmp_path):
    found = packing_of(tmp_path, {**LLAMA, "quantization_config": given})
    refuses(f"the weights of 'here' are packed .*{said}", found.check_known, "here")


@pytest.mark.parametrize(
    ("tool", "name"), [("gptq", "rotation"), ("auto-round", "rotation_config")]
)
def test_weights_for_inputs_that_are_turned_are_refused(tool, name, tmp_path):
    given = {"quant_method": tool, name: "hadamard"}
    found = packing_of(tmp_path, {**LLAMA, "quantization_config": given})
    refuses(f"packed by {tool} with a {name}, which turns", found.check_known, "here")
    packing_of(tmp_path, {**LLAMA, "quantization_config": {**given, name: None}}).check_known(
        "here"
    )


def test_mlx_is_read_of_families_that_it_does_not_rearrange(tmp_path):
    found = packing_of(tmp_path, {"model_type": "qwen3_next", "quantization": MLX})
    refuses(
        "may store those of 'qwen3_next' otherwise than transformers", found.check_known, "here"
    )
    for family in MLX_FAMILIES:
        packing_of(tmp_path, {"model_type": family, "quantization": MLX}).check_known("here")


def test_a_module_has_settings_of_its_own(tmp_path):
    own = {"model.layers.0.mlp.gate": {"group_size": 32, "bits": 8}, "lm_head": False}
    found = packing_of(tmp_path, {**LLAMA, "quantization": {**MLX, **own}})
    assert found.of("model.layers.0.mlp.gate")["group_size"] == 32
    assert found.of("lm_head")["group_size"] == found.of("model.norm")["group_size"] == 64


def test_each_tool_has_a_variety_that_is_meant_where_none_is_named():
    assert all(known for _, known in VARIETIES.values())
