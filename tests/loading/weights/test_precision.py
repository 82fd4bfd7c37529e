"""In which precision a model is read: as asked, as it says, or as most of it is stored."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from layerlab.errors import UserError
from layerlab.loading.model import load_model
from layerlab.loading.weights import precision
from layerlab.loading.weights.precision import choose_device
from layerlab.loading.weights.weightless import Outline
from layerlab.system import hardware


def test_float16_weights_are_read_as_float32_on_a_cpu(tiny, tmp_path):
    tiny("gpt2").half().save_pretrained(tmp_path)
    assert load_model(str(tmp_path)).model.dtype == torch.float32
    assert load_model(str(tmp_path), dtype="float16").model.dtype == torch.float16


def test_weights_that_config_json_says_to_round_are_remarked_on(tiny, tmp_path, caplog):
    model = tiny("gpt2")
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    plain = json.loads(file.read_text())
    file.write_text(json.dumps({**plain, "dtype": "bfloat16"}))
    assert load_model(str(tmp_path)).model.dtype == torch.bfloat16
    told = "its dtype is bfloat16, and the weights beside it are stored as float32: they are round"
    assert caplog.text.count(told) == 1
    assert load_model(str(tmp_path), dtype="float32").model.dtype == torch.float32
    # And where it says nothing, float16 is none to compute in.
    model.half().save_pretrained(tmp_path)
    file.write_text(json.dumps({name: one for name, one in plain.items() if name != "dtype"}))
    assert load_model(str(tmp_path)).model.dtype == torch.float32


@pytest.mark.parametrize(
    ("first", "others", "read"),
    [
        (torch.float16, torch.float32, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float16, torch.float32),
        (torch.float32, torch.float64, torch.float64),
    ],
)
def test_where_no_dtype_is_named_most_of_the_weights_decide(first, others, read, tiny, tmp_path):
    """And not the first of them, as transformers has it."""
    tiny("llama").save_pretrained(tmp_path)
    name = "model.embed_tokens.weight"
    held = {key: one.to(others) for key, one in load_file(tmp_path / "model.safetensors").items()}
    save_file(
        {**held, name: held[name].to(first)},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    told = json.loads((tmp_path / "config.json").read_text())
    del told["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(told))
    found = {str(one.dtype) for one in load_model(str(tmp_path)).model.parameters()}
    assert found == {str(read)}


@pytest.mark.parametrize(
    ("told", "device", "read"),
    [
        (torch.float32, "cuda", "auto"),
        (None, "cuda", torch.float16),
        (None, "cpu", torch.float32),
        (None, "auto", torch.float32),
        (None, None, torch.float32),
    ],
)
def test_float16_is_read_as_it_is_where_no_processor_may_compute(told, device, read):
    config = LlamaConfig(dtype=told)
    assert precision.precision(config, None, {"a": Outline("F16", (2,))}, device) == read


def test_most_numbers_decide_and_not_most_tensors():
    stored = {"a": Outline("F32", (5, 5)), "b": Outline("BF16", (3,)), "c": Outline("BF16", (3,))}
    assert precision.stored_precision(stored) == torch.float32


def test_what_was_asked_for_is_not_remarked_on(tiny, tmp_path, caplog):
    tiny("gpt2").save_pretrained(tmp_path)
    assert load_model(str(tmp_path), dtype="bfloat16").model.dtype == torch.bfloat16
    assert not caplog.records


def test_weights_that_stay_on_the_disk_are_told_as_they_are_stored(tiny, tmp_path, caplog):
    """They are not rounded, whatever config.json says."""
    tiny("llama").save_pretrained(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**told, "dtype": "bfloat16"}))
    found = load_model(str(tmp_path), weights_only=True, unloaded=True)
    assert found.stored and found.facts()["dtype"] == "float32" and not caplog.records


def test_a_large_model_goes_to_a_gpu_that_has_room_for_it(tiny, monkeypatch):
    model, free = tiny("gpt2"), [0]
    weighs = 4 * sum(one.numel() for one in model.parameters())
    assert choose_device(model, "auto") is None  # it is small
    monkeypatch.setattr(precision, "LARGE", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(model, "auto") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 2**40))
    free[0] = weighs * 6 // 5  # a fifth of it is left alone
    assert choose_device(model, "auto") is None
    assert choose_device(model, torch.bfloat16) == "cuda"
    free[0] = 2 * weighs
    assert choose_device(model, "auto") == "cuda"
    # It comes straight from the files, and needs no room beside them.
    full = type("Memory", (), {"available": 0})
    monkeypatch.setattr(hardware.psutil, "virtual_memory", lambda: full)
    assert choose_device(model, "auto") == "cuda"
    assert precision.fits(model, "auto", "cuda:1") and not precision.fits(model, "auto", "cpu")

    def refuse(_):
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    assert choose_device(model, "auto") is None


@pytest.mark.gpu
def test_on_a_gpu_a_large_model_is_loaded_there_and_a_small_one_is_not(tiny, tmp_path, monkeypatch):
    tiny("gpt2").save_pretrained(tmp_path)
    assert load_model(str(tmp_path)).device.type == "cpu"
    monkeypatch.setattr(precision, "LARGE", 1)
    assert load_model(str(tmp_path)).device.type == "cuda"
    assert load_model(str(tmp_path), device="cpu").device.type == "cpu"


def test_a_device_that_is_not_here_is_refused_before_weights_are_read(tiny, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    for device in ("cuda:77", "meta"):
        with pytest.raises(UserError, match=f"there is no device '{device}' here that PyTorch can"):
            load_model(str(tmp_path), device=device)
