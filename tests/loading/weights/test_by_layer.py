import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from transformers import PreTrainedModel

from layerlab import UserError
from layerlab.errors import NotApplicable
from layerlab.loading.model import load_model
from layerlab.loading.weights.by_layer import layer_tensors, read_layers
from layerlab.loading.weights.matrices import read_matrices
from layerlab.observe.architecture.head_weights import HeadWeights, project
from layerlab.observe.architecture.structure import anatomy, text_config
from tests.support.refused import refuses

FIELDS = ("query", "key", "value", "output", "query_bias", "gain", "shift", "output_bias")


def from_memory(model: PreTrainedModel) -> list[HeadWeights]:
    stack, config = anatomy(model), text_config(model)
    return [project(stack.blocks[p.block], p, config=config) for p in stack.attentions]


def assert_same(stored: HeadWeights, loaded: HeadWeights) -> None:
    assert (stored.layer, stored.scaling, stored.rotary) == (
        loaded.layer,
        loaded.scaling,
        loaded.rotary,
    )
    for field in FIELDS:
        one, other = getattr(stored, field), getattr(loaded, field)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    assert stored.matrices.keys() == loaded.matrices.keys()


@pytest.mark.parametrize("family", ["gpt2", "llama", "openai-gpt"])
@pytest.mark.parametrize("shard", ["1GB", "3KB"])
def test_layers_on_disk_are_those_in_memory(family, shard, tiny, tmp_path):
    model = tiny(family)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "3KB")
    stored = list(read_layers(tmp_path))
    loaded = from_memory(model)
    assert len(stored) == len(loaded) == 2
    for one, other in zip(stored, loaded, strict=True):
        assert_same(one, other)


def test_numbers_of_eight_bits_without_a_method_are_those_that_transformers_loads(tiny, tmp_path):
    """On the disk too they are looked at, and none is left out."""
    tiny("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    held = {
        name: one.to(torch.float8_e4m3fn) if "proj" in name else one
        for name, one in load_file(file).items()
    }
    save_file(held, file, metadata={"format": "pt"})
    loaded = load_model(str(tmp_path))
    for one, other in zip(read_layers(tmp_path), from_memory(loaded.model), strict=True):
        assert_same(one, other)
    stored = load_model(str(tmp_path), weights_only=True, unloaded=True)
    assert stored.stored
    there, here = ([*read_matrices(subject)] for subject in (stored, loaded))
    assert [(one.layer, one.name) for one in there] == [(one.layer, one.name) for one in here]
    for one, other in zip(there, here, strict=True):
        assert torch.equal(one.weight, other.weight)


def test_a_checkpoint_of_the_base_model_is_found_without_its_prefix(tiny, tmp_path):
    model = tiny("gpt2")
    model.save_pretrained(tmp_path)
    model.transformer.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text((tmp_path / "config.json").read_text())
    assert "h.0.ln_1.weight" in load_file(tmp_path / "base" / "model.safetensors")
    for one, other in zip(read_layers(tmp_path / "base"), from_memory(model), strict=True):
        assert_same(one, other)


def test_only_one_block_is_in_memory(tiny, tmp_path, monkeypatch):
    from layerlab.loading.weights import by_layer as layer_weights

    tiny("llama").save_pretrained(tmp_path)
    skeletons: list[Any] = []
    build = layer_weights.skeleton

    def kept(folder: Path) -> Any:
        skeletons.append(build(folder))
        return skeletons[0]

    monkeypatch.setattr(layer_weights, "skeleton", kept)
    for weights in read_layers(tmp_path):
        live = {n for n, p in skeletons[0].named_parameters() if p.device.type != "meta"}
        assert live and all(f".{weights.layer}." in name for name in live)
    assert all(p.device.type == "meta" for p in skeletons[0].parameters())


def test_only_the_tensors_under_the_prefix_are_read(tmp_path):
    tensors = {"h.1.a": torch.ones(2), "h.10.a": torch.zeros(2), "h.1.b.c": torch.eye(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert layer_tensors(tmp_path, "h.1").keys() == {"a", "b.c"}
    assert layer_tensors(tmp_path, "h.2") == {}


def test_only_floating_point_of_eight_bits_is_read_as_float32(tmp_path):
    kinds = {
        torch.float8_e4m3fn: torch.float32,
        **{kind: kind for kind in (torch.bfloat16, torch.float64, torch.int8, torch.int64)},
    }
    stored = {f"h.{at}": torch.ones(2).to(kind) for at, kind in enumerate(kinds)}
    save_file(stored, tmp_path / "model.safetensors")
    found = layer_tensors(tmp_path, "h").values()
    assert [one.dtype for one in found] == [*kinds.values()]


@pytest.mark.parametrize("part", ["input_layernorm", "self_attn.o_proj"])
def test_attention_needs_all_its_weights_and_those_of_the_norm_in_front(part, tiny, tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    held = load_file(file)
    del held["model.layers.0.mlp.up_proj.weight"]
    save_file(held, file, metadata={"format": "pt"})
    assert next(iter(read_layers(tmp_path)))
    del held[f"model.layers.0.{part}.weight"]
    save_file(held, file, metadata={"format": "pt"})
    with pytest.raises(NotApplicable, match=rf"has no {part}\.weight in block 0"):
        next(iter(read_layers(tmp_path)))


def test_one_weight_under_two_names_is_read_where_both_are_the_same_bit_for_bit(tiny, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    file, name = tmp_path / "model.safetensors", "h.0.mlp.c_fc.weight"
    held = load_file(file)
    twin = held[f"transformer.{name}"].clone()
    twin[0, 0] = held[f"transformer.{name}"][0, 0] = torch.nan
    save_file({**held, name: twin}, file, metadata={"format": "pt"})
    assert len(list(read_layers(tmp_path))) == 2
    twin[0, 0] = 0.0
    save_file({**held, name: twin}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match="which differ and are one weight of GPT2LMHeadModel"):
        list(read_layers(tmp_path))


def test_a_renamed_checkpoint_is_not_applicable(tiny, tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    renamed = {name.replace("q_proj", "wq"): value for name, value in load_file(file).items()}
    save_file(renamed, file, metadata={"format": "pt"})
    with pytest.raises(
        NotApplicable, match=r"no self_attn.q_proj.weight in block 0: it is renamed"
    ):
        next(iter(read_layers(tmp_path)))
    moved = {f"net.{name}": value for name, value in load_file(file).items()}
    save_file(moved, file, metadata={"format": "pt"})
    with pytest.raises(NotApplicable, match=r"no tensors named model\.layers\.0\.\*"):
        next(iter(read_layers(tmp_path)))


def test_a_checkpoint_of_another_shape_is_not_applicable(tiny, tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "head_dim": 8}))
    with pytest.raises(NotApplicable, match="the configuration asks for"):
        next(iter(read_layers(tmp_path)))


def first_layer(folder: Path) -> object:
    return next(iter(read_layers(folder)))


def tensors(folder: Path) -> object:
    return layer_tensors(folder, "h.0")


INDEX = "model.safetensors.index.json"
FOLDERS: list[tuple[Callable[[Path], object], str, bytes, str]] = [
    (first_layer, "pytorch_model.bin", b"", r"no model.safetensors .* pickle files are not opened"),
    (first_layer, "model.safetensors", save({"h.0.a": torch.ones(1)}), r"no config\.json"),
    (tensors, "model.safetensors", b"not a tensor", r"weights of .* are damaged \(.*\); copy them"),
    (tensors, INDEX, b"[]", "is not an index of safetensors"),
    (tensors, INDEX, b"{", "is not an index of safetensors"),
    (tensors, INDEX, b'{"weight_map": 3}', "is not an index of safetensors"),
    (tensors, INDEX, b'{"weight_map": {"h.0.a": "../other.safetensors"}}', "not a file beside it"),
]


@pytest.mark.parametrize(("read", "name", "content", "said"), FOLDERS)
def test_a_folder_that_cannot_be_read_is_one_clear_line(tmp_path, read, name, content, said):
    (tmp_path / name).write_bytes(content)
    refuses(said, read, tmp_path)
