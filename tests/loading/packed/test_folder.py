"""Folders of packed models, which are read as those that the numbers stand for."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import layerlab
from layerlab.loading.model import check_named, load_model
from layerlab.loading.packed import folder as packed_folder
from tests.support.mounted import room
from tests.support.packed_folder import (
    TOKENS,
    pack_awq,
    pack_fp8,
    pack_gptq,
    pack_mlx,
    sizes,
    small_llama,
    write_packed,
)
from tests.support.refused import refuses

pytestmark = pytest.mark.usefixtures("cache")
TOOLS = {
    "gptq": (pack_gptq, {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}),
    "awq": (pack_awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "mlx": (pack_mlx, {"bits": 8, "group_size": 32}),
    "modelopt": (pack_fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
}


@pytest.fixture
def model():
    return small_llama().half()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "packed"


@pytest.mark.parametrize("tool", TOOLS)
def test_weights_are_the_numbers_that_packed_ones_stand_for(tool, model, folder):
    expected = write_packed(model, folder, *TOOLS[tool])
    check_named([folder])
    found = load_model(str(folder))
    read = found.model.state_dict()
    assert read.keys() == expected.keys() and found.name == folder.name
    for name, weight in expected.items():
        assert torch.equal(read[name].to(weight.dtype), weight), name
    torch.testing.assert_close(found.model(TOKENS).logits, model.float()(TOKENS).logits)
    # No precision is narrower than the numbers, whatever the configuration said before.
    kept = json.loads((found.folder / "config.json").read_text())["dtype"]
    assert kept == ("float32" if tool == "modelopt" else "float16")


def test_modelopt_says_it_in_a_file_of_its_own_too(model, folder):
    expected = write_packed(model, folder, pack_fp8, {}, field="unused")
    aside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(aside))
    found = load_model(str(folder))
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(found.model.state_dict()[name], expected[name])
    assert not (found.folder / "hf_quant_config.json").exists()


def test_rows_stay_inputs_where_a_family_has_them_so(folder):
    given = {"vocab_size": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(**given)).half().eval()
    expected = write_packed(model, folder, *TOOLS["gptq"])
    read = load_model(str(folder)).model.state_dict()
    for name in ("transformer.h.0.attn.c_attn.weight", "transformer.h.1.attn.c_proj.weight"):
        assert torch.equal(read[name].half(), expected[name])


def test_experts_that_mlx_stacks_are_taken_apart(folder):
    model = MixtralForCausalLM(MixtralConfig(**sizes(), num_local_experts=3)).half().eval()
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for layer in range(2):
        before = f"model.layers.{layer}.block_sparse_moe."
        for own, theirs in {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.items():
            experts = [stored.pop(f"{before}experts.{one}.{own}.weight") for one in range(3)]
            parts, stands = pack_mlx(torch.stack(experts))
            stored |= {f"{before}switch_mlp.{theirs}.{name}": one for name, one in parts.items()}
            moe = model.model.layers[layer].mlp.experts
            target = moe.down_proj if own == "w2" else moe.gate_up_proj
            start = 96 if own == "w3" else 0
            target.data[:, start : start + stands.shape[1]] = stands
    save_file(stored, folder / "model.safetensors", metadata={"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization": TOOLS["mlx"][1]}))
    found = load_model(str(folder)).model
    torch.testing.assert_close(found(TOKENS).logits, model.float()(TOKENS).logits)


@pytest.mark.parametrize("place", [".mlp.", ".block_sparse_moe."])
def test_experts_of_mixtral_have_other_names_in_what_tools_write_today(place, folder):
    model = MixtralForCausalLM(MixtralConfig(**sizes(), num_local_experts=3)).half().eval()
    names = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
    check_experts(model, folder, names | {".block_sparse_moe.": place})


def test_experts_of_other_families_keep_their_names(folder):
    given = {**sizes(), "moe_intermediate_size": 32, "num_experts": 3, "num_experts_per_tok": 2}
    check_experts(Qwen3MoeForCausalLM(Qwen3MoeConfig(**given)).half().eval(), folder, {})


def check_experts(model, folder, names):
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for name in [one for one in stored if ".experts." in one]:
        own = name
        for before, after in names.items():
            own = own.replace(before, after)
        parts, _ = pack_gptq(stored.pop(name))
        stored |= {own.replace("weight", part): one.contiguous() for part, one in parts.items()}
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = TOOLS["gptq"][1]
    (folder / "config.json").write_text(json.dumps(config))
    read = load_model(str(folder)).model.state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(read[name], weight.to(read[name].dtype), atol=0.02, rtol=0)


def test_a_model_in_bfloat16_stays_in_it(model, folder):
    def pack(weight):
        parts, _ = pack_mlx(weight)
        return parts | {name: parts[name].bfloat16() for name in ("scales", "biases")}, weight

    write_packed(model.bfloat16(), folder, pack, TOOLS["mlx"][1])
    assert load_model(str(folder)).model.dtype == torch.bfloat16


def test_numbers_of_eight_bits_beside_the_weights_decide_no_precision(model, folder):
    write_packed(model, folder, *TOOLS["gptq"])
    stored = load_file(folder / "model.safetensors")
    stored["model.norm.weight"] = stored["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(stored, folder / "model.safetensors")
    kept = load_model(str(folder)).folder / "config.json"
    assert json.loads(kept.read_text())["dtype"] == "float16"


def test_what_a_loader_reads_lies_beside_the_weights_and_nothing_else(model, folder):
    write_packed(model, folder, *TOOLS["gptq"])
    (folder / "templates" / "own").mkdir(parents=True)
    for name in ("chat_template.jinja", "templates/own/tool.jinja", "own.py", "tokenizer.model"):
        (folder / name).write_text("first")
    for name in ("pytorch_model.bin", "model.gguf", "templates/consolidated.safetensors"):
        (folder / name).write_text("first")
    found = load_model(str(folder)).folder
    beside = {one.relative_to(found).as_posix() for one in found.rglob("*") if one.is_file()}
    assert beside >= {
        "chat_template.jinja",
        "templates/own/tool.jinja",
        "own.py",
        "tokenizer.model",
    }
    assert not {one for one in beside if one.endswith((".bin", ".gguf")) or "consol" in one}
    (folder / "chat_template.jinja").write_text("changed")
    again = load_model(str(folder)).folder
    assert (again / "chat_template.jinja").read_text() == "changed"


def test_what_is_no_model_that_is_read_is_told_by_the_name_that_was_given(model, folder):
    write_packed(model, folder, *TOOLS["gptq"])
    config = json.loads((folder / "config.json").read_text())
    given = config["quantization_config"]
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    refuses(f"'{folder}' needs Python that it brings along", load_model, str(folder))
    config = {"model_type": "bert", "architectures": ["BertModel"], "quantization_config": given}
    (folder / "config.json").write_text(json.dumps(config))
    refuses(f"'{folder}' is a BertModel, not a causal", load_model, str(folder))


@pytest.mark.full
def test_a_folder_is_unpacked_once_and_again_where_it_changes(model, folder, cache, caplog):
    write_packed(model, folder, *TOOLS["awq"])
    for _ in range(2):
        found = layerlab.inspect(folder, weights=True, progress=False)
        assert set(found.frames["matrices"].layer) == {-1, 0, 1, 2}
    assert caplog.text.count("is unpacked once") == 1
    os.utime(folder / "model.safetensors", (1, 1))
    load_model(str(folder))
    assert len(list(cache.glob("unpacked/packed-*/config.json"))) == 2


def test_weights_may_lie_in_files_that_cut_through_a_layer(model, folder, monkeypatch):
    expected = write_packed(model, folder, *TOOLS["gptq"])
    stored = sorted(load_file(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    places = {}
    for number in range(3):
        file = f"part-{number}.safetensors"
        part = dict(stored[number::3])
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    monkeypatch.setattr(packed_folder, "SHARD", 20_000)
    found = load_model(str(folder))
    *whole, _ = sorted(found.folder.glob("*.safetensors"))
    assert len(whole) > 2 and all(one.stat().st_size > 20_000 for one in whole)
    for name, weight in expected.items():
        assert torch.equal(found.model.state_dict()[name].half(), weight), name


def test_an_index_of_one_file_is_no_other_model(model, folder):
    write_packed(model, folder, *TOOLS["mlx"])
    places = dict.fromkeys(load_file(folder / "model.safetensors"), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    load_model(str(folder))
    del places["lm_head.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    refuses("'lm_head.weight' is in .* names another file or none", load_model, str(folder))
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    places["lm_head.weight"] = "other.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    refuses("holds both model.safetensors and", load_model, str(folder))


def test_what_is_not_packed_as_its_configuration_says_is_refused(model, folder):
    write_packed(model, folder, pack_gptq, {"quant_method": "gptq", "checkpoint_format": "marlin"})
    refuses("are packed by gptq as 'marlin', which is not read", load_model, str(folder))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = TOOLS["gptq"][1]
    (folder / "config.json").write_text(json.dumps(config))
    refuses("not read: .*none has a qweight beside it", load_model, str(folder))


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("weight", torch.zeros(64, 64).half(), "q_proj has a weight beside its qweight"),
        ("qzeros", None, "KeyError: 'qzeros'"),
        ("qzeros", torch.zeros(2, 3, dtype=torch.int32), "96 cannot be divided into 64"),
        ("qweight", torch.zeros(8), ""),
        ("qweight", torch.zeros(8, 64), "float32 of shape .64, 8. are no rows of words"),
        ("qzeros", torch.zeros(8, dtype=torch.int32), "shape .8,. are no rows of words"),
        ("qweight", torch.zeros(4, 4, 4, dtype=torch.int32), ""),
        ("g_idx", torch.full((64,), 9, dtype=torch.int32), "IndexError"),
        ("g_idx", torch.full((64,), 0.5), "g_idx names a group that there is not"),
        ("g_idx", torch.full((64,), -1, dtype=torch.int32), "g_idx names a group"),
        ("scales", torch.zeros(0, 64).half(), ""),
        ("scales", torch.zeros(2, 64, dtype=torch.int64), "q_proj are whole numbers"),
    ],
)
def test_damaged_parts_are_one_line_and_nothing_stays(name, tensor, said, model, folder, cache):
    write_packed(model, folder, *TOOLS["gptq"])
    replace(folder, name, tensor)
    refuses(f"are packed by gptq in a way that is not read: .*{said}", load_model, str(folder))
    assert not list(cache.glob("unpacked/packed-*/*"))


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("rest", torch.zeros(2), "hold 1 tensors that its config.json has no place for"),
        (
            "qweight",
            torch.zeros(4, 64, dtype=torch.int32),
            "is stored as .64, 32., and .64, 64. is",
        ),
    ],
)
def test_parts_of_another_model_are_refused_as_such(name, tensor, said, model, folder):
    write_packed(model, folder, *TOOLS["gptq"])
    replace(folder, name, tensor)
    if name == "qweight":
        replace(folder, "g_idx", torch.zeros(32, dtype=torch.int32))
    refuses(said, load_model, str(folder))


def replace(folder, name, tensor):
    stored, own = load_file(folder / "model.safetensors"), "model.layers.0.self_attn.q_proj."
    stored.pop(own + name, None)
    kept = {} if tensor is None else {own + name: tensor}
    save_file(stored | kept, folder / "model.safetensors")


def test_a_disk_without_room_is_no_fault_of_the_weights(model, folder, cache):
    write_packed(model, folder, *TOOLS["gptq"])
    with room(9_000):
        refuses("^cannot write .*make room there, or set LAYERLAB_CACHE", load_model, str(folder))
    assert not list(cache.glob("unpacked/*"))


def test_a_folder_without_room_or_weights_says_so(model, folder, monkeypatch):
    write_packed(model, folder, *TOOLS["gptq"])
    monkeypatch.setenv("LAYERLAB_CACHE", "/proc/nowhere")
    refuses("/proc/nowhere", load_model, str(folder))
    (folder / "model.safetensors").unlink()
    refuses("has a config.json but no weights", load_model, str(folder))
