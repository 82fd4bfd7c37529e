"""Files of weights that are read as one model here and as another one there."""

import importlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import layerlab
from layerlab import UserError, builtin
from layerlab.loading.model import load_model
from layerlab.loading.weights.by_layer import read_layers
from layerlab.loading.weights.hash import weights_hash
from layerlab.loading.weights.saved import check_finite
from layerlab.loading.weights.stored_tensors import read_outlines
from layerlab.system.untrusted.trust import trust
from tests.families.recipe import build
from tests.hostile.attack import typed
from tests.support.refused import refuses

READ = ("--measures", "stream", "--samples", "1", "--context", "16", "--json", "--quiet")
FIRST = "model.layers.0.self_attn.q_proj.weight"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
Weights = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(builtin.path("llama"), tmp_path / "model"))


def store(folder: Path, name: str, weights: Weights) -> None:
    save_file(weights, folder / name, metadata={"format": "pt"})


def index(folder: Path, places: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def beside(folder: Path, weights: Weights) -> None:
    """Another whole model, which transformers prefers."""
    store(folder, "a.safetensors", weights)
    store(folder, SINGLE, {name: 0 * tensor for name, tensor in weights.items()})
    index(folder, dict.fromkeys(weights, "a.safetensors"))


def twice(folder: Path, weights: Weights) -> None:
    """A tensor in two shards, of which the index names one."""
    (folder / SINGLE).unlink()
    last = {"model.norm.weight": weights.pop("model.norm.weight")}
    store(folder, "a.safetensors", weights)
    store(folder, "b.safetensors", {**last, FIRST: 0 * weights[FIRST]})
    index(
        folder, {**dict.fromkeys(weights, "a.safetensors"), **dict.fromkeys(last, "b.safetensors")}
    )


def lacking(folder: Path, weights: Weights) -> None:
    (folder / SINGLE).rename(folder / "a.safetensors")
    index(folder, dict.fromkeys([*weights, "model.layers.9.x"], "a.safetensors"))


def complex_numbers(folder: Path, weights: Weights) -> None:
    store(folder, SINGLE, {**weights, FIRST: weights[FIRST].to(torch.complex64)})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (beside, f"holds both {SINGLE} and {INDEX}"),
        (twice, f"the tensor '{FIRST}' is in"),
        (lacking, "the tensor 'model.layers.9.x' is not in"),
        (complex_numbers, "holds complex numbers; expected real weights"),
    ],
)
def test_two_models_in_one_folder_are_refused(change, said, folder):
    change(folder, load_file(folder / SINGLE))
    refuses(re.escape(said), read_outlines, folder)
    typed("inspect", str(folder), *READ).refused(said)
    typed("inspect", str(folder), "--weights", "--json", "--quiet").refused(said)


def renamed(name: str) -> str:
    """Without the prefix of the inner model, or with one more where it has none."""
    return name.removeprefix("model.")


@pytest.mark.full
@pytest.mark.parametrize("rename", [renamed, lambda name: f"model.{name}"])
@pytest.mark.parametrize("whole", [True, False])
def test_one_weight_under_two_names_is_refused_where_they_differ(rename, whole, folder):
    weights = load_file(folder / SINGLE)
    names = list(weights) if whole else [FIRST]
    same = {rename(name): weights[name].clone() for name in names}
    store(folder, SINGLE, {**weights, **same})
    assert load_model(str(folder)).model.num_parameters() > 0
    store(folder, SINGLE, {**weights, **{name: -1 * tensor for name, tensor in same.items()}})
    said = f"which differ and are one weight of LlamaForCausalLM ({len(names)} "
    typed("inspect", str(folder), *READ).refused(said)
    typed("inspect", str(folder), "--weights", "--json", "--quiet").refused(said)
    refuses("which differ and are one weight", next, read_layers(folder))
    assert typed("inspect", str(folder), *READ, "--allow-unused").survived().code == 0


@pytest.mark.parametrize(
    ("family", "name", "other"),
    [
        ("gpt2", "transformer.h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight", "layers.0.mlp.gate.weight"),
        # One expert twice, and all of them joined beside them one by one.
        (
            "mixtral",
            "model.layers.0.block_sparse_moe.experts.0.w1.weight",
            "layers.0.block_sparse_moe.experts.0.w1.weight",
        ),
        (
            "mixtral",
            "model.layers.0.block_sparse_moe.experts.0.w1.weight",
            "model.layers.0.mlp.experts.gate_up_proj",
        ),
    ],
)
def test_names_that_are_changed_while_they_are_loaded_are_one_weight(family, name, other, tmp_path):
    build(family).save_pretrained(tmp_path)
    weights = load_file(tmp_path / SINGLE)
    assert load_model(str(tmp_path)).model.num_parameters() > 0
    store(tmp_path, SINGLE, {**weights, other: 2 * weights[name]})
    refuses("which differ and are one weight of", load_model, str(tmp_path))


@pytest.mark.full
def test_an_index_that_names_other_files_is_another_model(folder):
    weights = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    found = []
    store(folder, "a.safetensors", weights)
    store(folder, "b.safetensors", {name: 2 * tensor for name, tensor in weights.items()})
    for name in ("a.safetensors", "b.safetensors", "a.safetensors"):
        index(folder, dict.fromkeys(weights, name))
        found.append(weights_hash(folder, load_model(str(folder)).model))
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"attn_implementation": {"": "evil/kernel"}},
            "evil/kernel' in config.json, which is code",
        ),
        ({"experts_implementation": [{"a": ["evil/kernel"]}]}, "which is code on the Hub"),
        ({"configuration_files": ["config.4.0.0.json"]}, "names other configurations than itself"),
    ],
)
def test_a_configuration_that_leads_elsewhere(change, said, folder):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    typed("inspect", str(folder), *READ).refused(said)


CODE = """
from transformers import LlamaForCausalLM
class Mine(LlamaForCausalLM):
    def forward(self, *given, **options):
        out = super().forward(*given, **options)
        out.logits = out.logits * SIGN
        return out
"""


@pytest.mark.full
def test_scores_of_code_that_has_changed_are_asked_anew(folder, tmp_path, monkeypatch):
    from layerlab.evaluation.harness.cache import hash_code

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "own"))
    file, found = folder / "config.json", []
    content = json.loads(file.read_text())
    content["auto_map"] = {"AutoModelForCausalLM": "mine.Mine"}
    file.write_text(json.dumps(content))
    for sign in ("1.0", "-1.0", "1.0"):
        (folder / "mine.py").write_text(CODE.replace("SIGN", sign))
        with trust(True):
            found.append(hash_code(load_model(str(folder)).model))
    assert found[0] == found[2] != found[1] and all(found)
    assert hash_code(load_model("llama").model) == ""


def test_a_class_of_the_users_own_is_known_by_its_file(tmp_path, monkeypatch):
    from layerlab.evaluation.harness.cache import hash_code

    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for place, factor in enumerate((1, 2)):
        (tmp_path / f"own_model_{place}.py").write_text(
            "from transformers import LlamaForCausalLM\n"
            "class Own(LlamaForCausalLM):\n"
            f"    def forward(self, *given, **named):\n        return {factor} * 0\n"
        )
        kind = importlib.import_module(f"own_model_{place}").Own
        found.append(hash_code(kind.__new__(kind)))
    assert "" not in found and len(set(found)) == 2


LAST, EMBEDDING = "model.norm.weight", "model.embed_tokens.weight"
Change = Callable[[Weights], object]


def test_whole_numbers_are_refused_that_are_joined_to_weights_while_they_are_loaded(tmp_path):
    """Experts one by one have other names in the file than in the model."""
    build("mixtral").save_pretrained(tmp_path)
    weights = load_file(tmp_path / SINGLE)
    packed = {
        name: (127 * one).to(torch.int8) if "experts" in name else one
        for name, one in weights.items()
    }
    store(tmp_path, SINGLE, packed)
    refuses(r"experts\.0\.w1.* holds whole numbers \(I8\), and its conf", load_model, str(tmp_path))


def quantize(folder: Path) -> None:
    """Write the queries of the first layer in eight bits, with the number that scales them back."""
    file = folder / "config.json"
    told = {"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": told}))
    weights = load_file(folder / SINGLE)
    scale = weights[FIRST].abs().max() / 448
    packed = (weights[FIRST] / scale).to(torch.float8_e4m3fn)
    store(folder, SINGLE, {**weights, FIRST: packed, f"{FIRST}_scale_inv": scale[None, None]})


def test_blocks_that_end_before_a_side_does_are_not_unpacked_as_others(folder):
    """Of 64 = 48 + 16 numbers transformers would take two blocks of 32, and say nothing."""
    quantize(folder)
    file = folder / "config.json"
    told = json.loads(file.read_text())
    told["quantization_config"]["weight_block_size"] = [48, 48]
    file.write_text(json.dumps(told))
    weights = load_file(folder / SINGLE)
    store(folder, SINGLE, {**weights, f"{FIRST}_scale_inv": torch.ones(2, 2)})
    refuses(
        r"of 48, and 2 of them are not a side of 64: .* of 32, to other", load_model, str(folder)
    )
    told["quantization_config"]["weight_block_size"] = [32, 32]
    file.write_text(json.dumps(told))
    assert load_model(str(folder)).model.dtype == torch.float32


@pytest.mark.full
def test_weights_alone_of_a_quantized_model_are_those_that_it_computes_with(folder):
    exact = layerlab.inspect("llama", weights=True, progress=False).frame("querykey")
    quantize(folder)
    found = layerlab.inspect(str(folder), weights=True, progress=False).frame("querykey")
    # Three bits behind the point: each number is off by a sixteenth of itself at most.
    assert (found["norm"] / exact["norm"]).between(0.9, 1.1).all()


def write_eight_bits(folder: Path, quantization: object, part: str) -> None:
    """Store a part of the weights in whole numbers, and say how they are quantized."""
    file = folder / "config.json"
    told = {**json.loads(file.read_text()), "quantization_config": quantization}
    file.write_text(json.dumps(told))
    weights = load_file(folder / SINGLE).items()
    packed = {name: (99 * one).to(torch.int8) if part in name else one for name, one in weights}
    store(folder, SINGLE, packed)


@pytest.mark.few(3)
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("quantization", "part", "said"),
    [
        (
            {"quant_method": "spinquant", "scale": 0.01},
            "proj",
            "are quantized by 'spinquant', which",
        ),
        ({"bits": 8}, "proj", "are quantized by None, which this transformers does not know; exp"),
        (
            None,
            "proj",
            r"holds whole numbers \(I8\), and its config.json has no quantization_config",
        ),
        # Of a method that is known, and leaves all of it alone.
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model", "lm_head"]},
            "proj",
            "cannot be called: expected m1 and m2 to have the same dtype",
        ),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model", "lm_head"]},
            "norm",
            "and the quantization_config of its config.json unpacks them by no scale; expected",
        ),
    ],
)
def test_a_quantization_that_is_passed_over_lets_no_whole_numbers_through(
    folder, quantization, part, said, weights_only
):
    write_eight_bits(folder, quantization, part)
    refuses(said, load_model, str(folder), weights_only=weights_only)


def test_a_quantization_that_is_null_is_none(folder):
    write_eight_bits(folder, None, "no such part")
    assert load_model(str(folder)).model.dtype == torch.float32


def test_quantized_weights_are_not_read_from_the_disk(folder, monkeypatch):
    quantize(folder)
    refuses("are quantized, and what lies on the disk is not what the", next, read_layers(folder))
    monkeypatch.setattr("layerlab.loading.model.fits", lambda *_: False)
    with pytest.raises(UserError, match="are quantized, and what lies on the disk is not what the"):
        load_model(str(folder), weights_only=True)


@pytest.mark.few(3)
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: [x.pop(name) for name in list(x) if "mlp" in name], "lack 24 tensors"),
        (lambda x: x.pop(LAST), f"lack 1 tensors of LlamaForCausalLM (first: {LAST})"),
        (lambda x: x.update({"foo.bar": torch.ones(3)}), "hold 1 tensors that its config.json"),
        (lambda x: x.update({EMBEDDING: torch.ones(100, 64)}), f"{EMBEDDING} is stored as (100,"),
        (lambda x: x.update({FIRST: x[FIRST].to(torch.int8)}), "holds whole numbers (I8), and"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration_are_refused(
    change, said, weights_only, folder
):
    weights = load_file(folder / SINGLE)
    change(weights)
    store(folder, SINGLE, weights)
    refuses(
        re.escape(said), load_model, str(folder), weights_only=weights_only, unloaded=weights_only
    )


@pytest.mark.parametrize("name", [pytest.param(FIRST, marks=pytest.mark.full), EMBEDDING])
def test_weights_alone_that_are_not_finite_are_a_finding(name, folder):
    weights = load_file(folder / SINGLE)
    weights[name][0, :2] = torch.nan
    store(folder, SINGLE, weights)
    report = layerlab.inspect(str(folder), weights=True, progress=False)
    (found,) = [one for one in report.findings if one.severity == "error"]
    assert f"{name} holds 2 of" in found.text
    assert ("layer 0" in found.text.lower()) == (name == FIRST)


CHANGING = [
    ("retrofit", "model", "--variant", "as-32", "--out", "new"),
    ("adapt", "embed", "model", "--tokenizer", "model", "--out", "new", "--quiet"),
]


@pytest.mark.parametrize(
    "number",
    [float("nan"), *(pytest.param(float(one), marks=pytest.mark.full) for one in ("inf", "-inf"))],
)
@pytest.mark.parametrize("words", CHANGING)
def test_a_model_with_numbers_that_are_none_is_not_changed(words, number, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    weights = load_file(folder / SINGLE)
    weights[FIRST][1, 2] = number
    store(folder, SINGLE, weights)
    said = f"the weight {FIRST} holds 1 of {weights[FIRST].numel():,} numbers that are NaN"
    typed(*words).refused(said)
    assert not Path("new").exists()


def test_numbers_of_eight_bits_are_looked_at_too(folder):
    model = load_model(str(folder)).model
    check_finite(model)
    name, weight = next(iter(model.named_parameters()))
    weight.data = weight.data.to(torch.float8_e4m3fn)
    check_finite(model)
    weight.data.view(torch.uint8)[0, 0] = 0x7F
    refuses(f"the weight {name} holds 1 of", check_finite, model)
