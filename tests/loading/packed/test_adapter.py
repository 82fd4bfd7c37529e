"""Folders of adapters, which are read as the models that they make."""

import json
import os
import shutil
import sys

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

import layerlab
from layerlab.loading.folders import find_folder
from layerlab.loading.model import check_named, load_model
from layerlab.loading.weights.saved import load_saved
from layerlab.loading.weights.stored_tensors import read_outlines
from tests.support.mounted import room
from tests.support.packed_folder import TOKENS, small_llama
from tests.support.refused import refuses

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("cache")]  # PEFT's
TARGETS = ["q_proj", "o_proj", "down_proj"]


@pytest.fixture
def base(tmp_path):
    small_llama(32).bfloat16().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(base):
    return _save(base, base.parent / "adapter")


def _save(base, folder, seed=1, targets=TARGETS):
    """Save an adapter that changes something, and return its folder."""
    torch.manual_seed(seed)
    settings = peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=targets)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings)
    for weight in adapted.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
    adapted.save_pretrained(folder)
    return folder


def _alter(adapter, **fields):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_is_read_as_the_model_with_the_adapter_beside_it(base, adapter):
    check_named([adapter])
    found = load_model(str(adapter), dtype="float32")
    wide = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    apart = peft.PeftModel.from_pretrained(wide, adapter)
    expected = apart(TOKENS).logits
    torch.testing.assert_close(found.model(TOKENS).logits, expected, rtol=1e-5, atol=1e-6)
    with apart.disable_adapter():
        assert (apart(TOKENS).logits - expected).abs().max() > 0.01
    assert found.name == "adapter"


def test_only_merged_weights_are_in_float32_and_the_precision_stays(adapter):
    folder = find_folder(str(adapter), with_weights=True)
    assert load_model(str(adapter)).model.dtype == torch.bfloat16
    stored = read_outlines(folder)
    wide = {name for name, one in stored.items() if one.kind == "F32"}
    assert {name.split(".")[-2] for name in wide} == set(TARGETS) and len(wide) == 6
    assert {one.kind for name, one in stored.items() if name not in wide} == {"BF16"}


def test_the_precision_is_not_that_of_the_first_weight(base):
    adapter = _save(base, base.parent / "first", targets=["embed_tokens"])
    assert load_model(str(adapter)).model.dtype == torch.bfloat16


def test_a_disk_without_room_is_no_fault_of_the_adapter(adapter, cache):
    with room(9_000):
        said = "^cannot write .*make room there, or set LAYERLAB_CACHE"
        refuses(said, find_folder, str(adapter), with_weights=True)
    assert not list(cache.glob("unpacked/*"))


def test_is_merged_once_and_anew_where_its_model_changed(base, adapter, caplog):
    first = find_folder(str(adapter), with_weights=True)
    assert find_folder(str(adapter), with_weights=False) == first
    assert [one.getMessage().split(" once")[0] for one in caplog.records] == [
        f"{adapter} is merged into its model {base}"
    ]
    weights = base / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    assert find_folder(str(adapter), with_weights=True) != first


def test_its_own_tokenizer_goes_before_that_of_the_model(base, adapter):
    for place in (base, adapter):
        (place / "tokenizer_config.json").write_text(json.dumps({"of": place.name}))
    (base / "chat_template.jinja").write_text("of the model")
    (base / "more" / "templates").mkdir(parents=True)
    (base / "more" / "templates" / "tool.jinja").write_text("of a tool")
    folder = find_folder(str(adapter), with_weights=True)
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {"of": "adapter"}
    assert (folder / "chat_template.jinja").read_text() == "of the model"
    assert (folder / "more" / "templates" / "tool.jinja").read_text() == "of a tool"
    assert not (folder / "adapter_config.json").exists()


def test_is_one_too_with_the_configuration_of_its_model_beside_it(base, adapter):
    (adapter / "optimizer.safetensors").touch()
    assert load_model(str(adapter)).name == "adapter"
    (adapter / "optimizer.safetensors").unlink()
    shutil.copy(base / "config.json", adapter)
    assert load_model(str(adapter)).name == "adapter"
    (adapter / "model.safetensors").touch()
    said = "an adapter .* lies beside the model"
    refuses(said, find_folder, str(adapter), with_weights=True)


def test_a_folder_of_several_names_the_first(adapter):
    refuses(f"type {adapter}$", find_folder, str(adapter.parent), with_weights=True)


def test_a_run_of_adapters_is_a_series_of_models(base, tmp_path):
    for step in (10, 2):
        _save(base, tmp_path / "run" / f"checkpoint-{step}", seed=step)
    report = layerlab.inspect(
        str(tmp_path / "run"), measures=["matrices"], weights=True, progress=False
    )
    assert [one["step"] for one in report.models] == [2, 10]
    assert report.models[0]["weights_hash"] != report.models[1]["weights_hash"]


def test_change_sees_the_rank_of_an_adapter(base, adapter):
    report = layerlab.inspect(str(adapter), weights=True, against=str(base), progress=False)
    frame = report.frame("change")
    ranks = frame.set_index("matrix")["rank"]
    assert set(ranks[ranks > 0]) == {4} and (ranks > 0).sum() == 6


def _no_name(base, adapter):
    _alter(adapter, base_model_name_or_path=None)
    return r"names no model; write its folder or Hub id as base_model_name_or_path"


def _elsewhere(base, adapter):
    shutil.rmtree(base)
    return r"the model of the adapter .*: nothing lies at .*; or write its folder"


def _revision(base, adapter):
    _alter(adapter, revision="abc")
    return r"means the revision 'abc' of .*; fetch that into a folder, leave revision out"


def _itself(base, adapter):
    _alter(adapter, base_model_name_or_path=str(adapter))
    return r"holds an adapter \(adapter_config\.json\); expected a whole model"


def _no_weights(base, adapter):
    (adapter / "adapter_model.safetensors").unlink()
    return r"holds an adapter without adapter_model\.safetensors"


def _torn(base, adapter):
    (adapter / "adapter_config.json").write_text("{")
    return r"adapter_config\.json' is no JSON"


def _prompt(base, adapter):
    _alter(adapter, peft_type="PROMPT_TUNING", num_virtual_tokens=2)
    return r"PROMPT_TUNING changes what is read, and no weight; expected an adapter of that model"


def _newer(base, adapter):
    _alter(adapter, use_other_lora=True, group_of_it=0)
    return r"holds 'use_other_lora', which is unknown to the PEFT that is installed"


def _unknown(base, adapter):
    _alter(adapter, peft_type="BONE")
    return r"peft_type is 'BONE', which is unknown to the PEFT that is installed"


def _lacking(base, adapter):
    _alter(adapter, target_modules=[*TARGETS, "up_proj"])
    return r"it lacks 4 tensors \(first: .*up_proj"


def _left_over(base, adapter):
    _alter(adapter, target_modules=TARGETS[:2])
    return r"has no place for 4 of its tensors \(first: .*down_proj"


def _other_sizes(base, adapter):
    shutil.rmtree(base)
    small_llama(64).save_pretrained(base)
    return r"cannot be merged into '.*base': .*size mismatch"


def _infinite(base, adapter):
    model = load_saved(base)
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("inf")
    model.save_pretrained(base)
    return r"into '.*base': .*up_proj\.weight holds 1 of 1,536 .*; write its folder or Hub id"


@pytest.mark.parametrize(
    "spoil",
    [
        _no_name, _elsewhere, _revision, _itself, _no_weights, _torn,
        _prompt, _newer, _unknown, _lacking, _left_over, _other_sizes, _infinite,
    ],
)  # fmt: skip
def test_refuses_what_makes_no_model(spoil, base, adapter, cache):
    refuses(spoil(base, adapter), find_folder, str(adapter), with_weights=True)
    assert not list(cache.rglob("*.safetensors"))


def test_says_which_package_is_missing(adapter, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    said = r"without the package peft; in a copy of the repository type"
    refuses(said, find_folder, str(adapter), with_weights=True)


def test_what_peft_itself_asks_for_is_told_in_its_words(adapter, monkeypatch):
    def refuse(*given, **named):
        raise ImportError("this kind of layer needs another library")

    monkeypatch.setattr(peft, "get_peft_model", refuse)
    said = r"merged into .*: this kind of layer needs another library; expected an adapter"
    refuses(said, find_folder, str(adapter), with_weights=True)
