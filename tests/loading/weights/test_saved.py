"""What a folder of a model holds, and how much of it is read."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from layerlab import builtin
from layerlab.loading.weights.saved import (
    check_changeable,
    configuration,
    load_saved,
    summary,
    weights,
)
from layerlab.system.offload import is_offloaded
from layerlab.system.untrusted.trust import trust
from tests.measures.family import built
from tests.support.mounted import room as limited
from tests.support.packed_folder import BLOCK, pack_fp8_blocks, write_packed
from tests.support.refused import refuses

OWN = {"AutoModelForCausalLM": "own.Own"}


def written(folder: Path, **fields: Any) -> Path:
    """A folder with the configuration of the built-in Llama and these fields."""
    config = json.loads((builtin.path("llama") / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\na: b\n---\n\n# Title\n\nIt reads\ntext.\n\nAnd more.", "It reads text."),
        ("# Title\n\n \n\nIt reads.", "It reads."),
        ("# Title", ""),
        ("", ""),
    ],
)
def test_a_card_is_summed_up_by_its_first_paragraph(card, expected):
    assert summary(card) == expected


def test_a_field_of_a_part_that_stands_under_two_names_is_refused(tmp_path):
    part = AutoConfig.for_model("gemma3_text", num_hidden_layers=1).to_dict()
    whole = AutoConfig.for_model("gemma3").to_dict()
    told = {**whole, "text_config": {**part, "torch_dtype": "float32", "dtype": "bfloat16"}}
    (tmp_path / "config.json").write_text(json.dumps(told))
    refuses("torch_dtype is 'float32' and dtype is 'bfloat16' in", configuration, tmp_path)
    told["text_config"]["torch_dtype"] = "bfloat16"
    (tmp_path / "config.json").write_text(json.dumps(told))
    assert configuration(tmp_path).text_config.num_hidden_layers == 1


@pytest.mark.parametrize("own", [[], {}, {"AutoConfig": "own.Own"}])
def test_a_folder_that_names_no_model_of_its_own_is_not_remarked_on(own, tmp_path, caplog):
    assert configuration(written(tmp_path, auto_map=own)).model_type == "llama"
    assert not caplog.records


def test_a_model_of_a_folders_own_that_is_run_is_not_remarked_on(tmp_path, caplog):
    with trust(True):
        configuration(written(tmp_path, auto_map=OWN))
    assert not caplog.records
    configuration(tmp_path)
    assert "a model of its own, own.Own, which is not run" in caplog.text


@pytest.mark.parametrize("changed", ["adapter_config.json", "model.bin"])
def test_what_was_trained_is_looked_through_as_what_is_given(changed, tiny, tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    (tmp_path / changed).write_text("{}")
    if changed == "model.bin":
        (tmp_path / "model.safetensors").unlink()
    said = "only pickled weights" if changed == "model.bin" else "an adapter .* lies beside"
    refuses(said, load_saved, tmp_path)


@pytest.mark.parametrize(
    ("device", "room", "spread"),
    [("auto", True, True), (None, False, True), (None, True, False), ("cpu", False, False)],
)
def test_what_does_not_fit_is_spread_over_the_disk_and_computes_the_same(
    device, room, spread, tiny, tmp_path, monkeypatch
):
    model = tiny("llama")
    model.save_pretrained(tmp_path)
    held = 4 * sum(one.numel() for one in model.model.layers.parameters())
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=held))
    found = weights(str(tmp_path), configuration(tmp_path), device, torch.float32, room=room)
    assert is_offloaded(found) == spread and not found.training
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(found(tokens).logits, model(tokens).logits)


def test_want_of_room_for_what_does_not_fit_is_no_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=0))
    built("mixtral").save_pretrained(tmp_path / "model")
    given = str(tmp_path / "model"), configuration(tmp_path / "model"), "auto", torch.float32
    with limited(64):
        said = f"cannot write temporary files to {tmp_path}: no more could be written, for want of"
        refuses(said, weights, *given, room=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    refuses("no folder for temporary files can be written to", weights, *given, room=True)


def test_weights_that_were_packed_are_saved_as_the_numbers_that_they_stood_for(tmp_path, tiny):
    method = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    expected = write_packed(tiny("llama"), tmp_path / "packed", pack_fp8_blocks, method)
    found = load_saved(tmp_path / "packed", torch.float32)
    found.save_pretrained(tmp_path / "saved")
    again = load_saved(tmp_path / "saved").state_dict()
    assert again.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(again[name], weight)


def test_packed_weights_are_not_changed(tiny):
    model = tiny("llama")
    check_changeable(model)
    method = SimpleNamespace(quantization_config=SimpleNamespace(quant_method="fp8"))
    model.hf_quantizer = method
    refuses(r"LlamaForCausalLM is quantized \(fp8\), and packed", check_changeable, model)
