"""A config.json that is not that of the weights beside it, or of no model at all."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    BertGenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

import layerlab
from layerlab import UserError, builtin
from layerlab.loading.model import load_model
from layerlab.loading.weights.weightless import check_causal
from layerlab.system.untrusted.trust import trust
from tests.families.recipe import FAMILIES, UNBUILT, family_config
from tests.hostile.attack import Ended, typed
from tests.hostile.fuzz import fuzz
from tests.support.refused import refusal, refuses

READ = ("--measures", "stream", "--samples", "1", "--context", "16", "--json", "--quiet")
VALUES: tuple[Any, ...] = (0, -1, 10**6, 10**12, "x", None, [], {}, True, 1.5)
FIELDS = [
    (name, field)
    for name in ("llama", "pre-norm")
    for field in json.loads((builtin.path(name) / "config.json").read_text("utf-8"))
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for name in ("llama", "pre-norm"):
        shutil.copytree(builtin.path(name), place / name)
    return place


@pytest.fixture(scope="module")
def shallow(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same models with their first layer alone, which are read in half the time."""
    place = tmp_path_factory.mktemp("shallow")
    for name, field in (("llama", "num_hidden_layers"), ("pre-norm", "n_layer")):
        shutil.copytree(folders / name, place / name)
        kept = {
            key: value
            for key, value in load_file(place / name / "model.safetensors").items()
            if not re.search(r"\.(h|layers)\.[1-9]", key)
        }
        save_file(kept, place / name / "model.safetensors", metadata={"format": "pt"})
        config = place / name / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), field: 1}), "utf-8")
        assert inspected(place / name, config.read_text("utf-8")).code == 0
    return place


@contextmanager
def configured(folder: Path, config: Any) -> Iterator[None]:
    """A model has this configuration until the block ends."""
    file = folder / "config.json"
    before = file.read_text("utf-8")
    try:
        file.write_text(config if isinstance(config, str) else json.dumps(config), "utf-8")
        yield
    finally:
        file.write_text(before, "utf-8")


def stored(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text("utf-8"))


def inspected(folder: Path, config: Any) -> Ended:
    """What inspect says of a model whose configuration is this one."""
    with configured(folder, config):
        return typed("inspect", str(folder), *READ)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "llama",
            {"num_hidden_layers": 3},
            "that its config.json has no place for (first:",
        ),
        ("pre-norm", {"n_layer": 3}, "or type --allow-unused (in Python allow_unused=True)"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0 in config.json in"),
        ("pre-norm", {"n_layer": -1}, "n_layer is -1 in config.json in"),
        ("pre-norm", {"n_layer": 10**6}, "says 1,000,000 layers, and the weights beside it hold 8"),
        ("llama", {"num_hidden_layers": 10**6}, "says 1,000,000 layers, and the weights beside it"),
        ("llama", {"hidden_size": 10**6}, "parameters, and the weights beside it hold"),
        ("llama", {"intermediate_size": 10**12}, "parameters, and the weights beside it hold"),
        ("llama", {"intermediate_size": 99}, "is stored as"),
        ("llama", {"num_attention_heads": 5}, "not a multiple of the number of attention heads"),
        ("pre-norm", {"n_head": 7}, "`embed_dim` must be divisible by num_heads"),
        ("pre-norm", {"n_head": 0}, "n_head is 0 in config.json in"),
        ("pre-norm", {"activation_function": "x"}, "activation_function is 'x', which"),
        ("llama", {"rope_parameters": {"rope_type": "x"}}, "rope_type is 'x', which"),
        ("llama", {"dtype": "x"}, "module 'torch' has no attribute 'x'"),
        ("llama", {"dtype": 3}, "dtype is 3 in config.json in"),
        ("llama", {"architectures": 3}, "architectures is 3 in config.json of"),
        ("llama", {"hidden_size": "x"}, "expected int, got str"),
        ("llama", {"model_type": "gemma"}, 'write "architectures": ["GemmaForCausalLM"], or the'),
        ("llama", {"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM is of another family"),
        ("llama", {"architectures": ["Own", "GPT2LMHeadModel"]}, "GPT2LMHeadModel is of another"),
        ("llama", {"model_type": []}, "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(name, change, said, folders):
    folder = folders / name
    own = stored(folder)
    inspected(folder, {**own, **change}).refused(said)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "[" * 9999, '{"a": ' + "9" * 5000 + "}"]
)
def test_what_is_no_table_is_one_line(text, folders):
    inspected(folders / "llama", text).refused("config.json in")


@pytest.mark.full
def test_weights_without_a_place_may_be_left_out_where_that_is_asked_for(folders):
    folder = folders / "llama"
    with configured(folder, {**stored(folder), "num_hidden_layers": 3}):
        found = typed("inspect", str(folder), *READ, "--allow-unused").survived()
        assert json.loads(found.out)["models"][0]["layers"] == 3
        given: dict[str, Any] = {"measures": ["stream"], "progress": False, "texts": "A text."}
        refuses("allow_unused=True", layerlab.inspect, str(folder), **given)
        assert len(layerlab.inspect(str(folder), **given, allow_unused=True).frame("stream")) == 4


@pytest.mark.parametrize(
    "architectures",
    [["LlamaForCausalLM"], ["OwnForCausalLM"], ["Qwen2ForCausalLM", "LlamaForCausalLM"], [], None],
)
def test_classes_of_the_same_family_or_of_none_are_taken(architectures):
    check_causal(LlamaConfig(architectures=architectures), "llama")


def test_the_decoder_of_a_family_is_taken_whatever_its_class_is_called():
    check_causal(BertGenerationConfig(architectures=["BertGenerationDecoder"]), "decoder")
    encoder = BertGenerationConfig(architectures=["BertGenerationEncoder"])
    refuses("is a BertGenerationEncoder, not a causal", check_causal, encoder, "encoder")


def test_code_of_a_model_says_nothing_of_its_family():
    own = {"AutoModelForCausalLM": "own.Qwen2ForCausalLM"}
    check_causal(LlamaConfig(architectures=["Qwen2ForCausalLM"], auto_map=own), "llama")


@pytest.mark.full
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - UNBUILT.keys()))
def test_no_family_contradicts_itself(family):
    """Neither the whole configuration, nor that of its text model, with the class of its model."""
    own = family_config(family)
    whole = [] if family.startswith("musicgen") else [CONFIG_MAPPING[family]()]  # it asks for parts
    for config in (own, *whole):
        config.architectures = [FAMILIES[family]]
        try:
            check_causal(config, family)
        except UserError as error:
            assert "of another family" not in str(error)


@pytest.mark.full
@pytest.mark.parametrize("value", [0, None, {}])
def test_how_outputs_are_wrapped_is_no_part_of_a_model(value, folders):
    folder = folders / "llama"
    with configured(folder, {**stored(folder), "return_dict": value}):
        assert typed("inspect", str(folder), *READ).survived().code == 0
        options = ("--samples", "1", "--context", "8", "--json", "--quiet")
        assert typed("gap", str(folder), *options).survived().code == 0


@pytest.mark.full
@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_no_value_of_any_field_is_a_traceback(name, field, shallow):
    folder = shallow / name
    own = stored(folder)
    for value in VALUES:
        inspected(folder, {**own, field: value}).survived()


@fuzz(
    change=st.dictionaries(
        st.sampled_from(sorted({field for _, field in FIELDS})),
        st.none()
        | st.booleans()
        | st.integers(-10, 10**7)
        | st.floats()
        | st.text(max_size=4)
        | st.lists(st.integers(), max_size=2),
        min_size=1,
        max_size=3,
    )
)
def test_several_at_once_are_no_traceback_either(shallow, change):
    for name in ("llama", "pre-norm"):
        own = stored(shallow / name)
        inspected(shallow / name, {**own, **change}).survived()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_labels": 20_000_000}, "num_labels is 20000000 in "),
        ({"text_config": {"num_labels": 10**30}}, "; expected at most 100,000"),
        ({"transformers_weights": "sub/other.safetensors"}, "names other weights (transformers_"),
        ({"decoder": {}}, ""),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "are packed by gptq in a way that is not read: none has a qweight",
        ),
        ({"quantization_config": {"load_in_4bit": True}}, "cannot be loaded here: Using `b"),
        (
            {"quantization_config": {"quant_method": "nvfp4"}},
            "cannot be loaded here: Loading pre-quantized",
        ),
        ({"transformers_weights": {}}, "names other weights"),
    ],
)
def test_a_field_that_leads_elsewhere_is_one_line(change, said, tmp_path):
    place = tmp_path / "model"
    shutil.copytree(builtin.path("llama"), place)
    config = place / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    assert said in refusal(load_model, str(place))


def test_layers_that_are_not_used_are_told_where_weights_stay_on_the_disk(tmp_path, monkeypatch):
    place = tmp_path / "model"
    shutil.copytree(builtin.path("llama"), place)
    config = place / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 3}))
    monkeypatch.setattr("layerlab.loading.model.fits", lambda *_: False)
    with pytest.raises(UserError, match=r"hold \d+ tensors that its config.json has no place"):
        load_model(str(place), weights_only=True)
    with trust(False, allow_unused=True):
        assert load_model(str(place), weights_only=True).stored


def test_a_model_with_an_adapter_beside_it_is_refused(tmp_path):
    place = tmp_path / "model"
    shutil.copytree(builtin.path("llama"), place)
    (place / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    refuses(r"an adapter \(adapter_config\.json\) lies beside the mod", load_model, str(place))


SMALL = {"vocab_size": 512, "n_layer": 1, "n_head": 2, "n_embd": 16, "pad_token_id": 0}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0}


@pytest.mark.parametrize(
    ("kind", "sizes", "change", "said"),
    [
        ("gptj", {"rotary_dim": 4}, {"n_positions": 10**9}, "computes tables of 14.9 GiB"),
        pytest.param(
            *("ctrl", {"dff": 16}, {"n_positions": 10**9}, "computes tables of 59.6 GiB"),
            marks=pytest.mark.full,
        ),
        (
            "mamba2",
            {"hidden_size": 16, "num_heads": 4, "head_dim": 8, "n_groups": 1},
            {"chunk_size": 10**9},
            "GiB for itself, more than its weights have; mend",
        ),
        (
            "mpt",
            {"d_model": 16, "n_heads": 2, "n_layers": 1},
            {"max_seq_len": 10**9},
            "GiB for itself, more than its weights have; mend",
        ),
    ],
)
def test_what_no_weights_tell_of_is_bounded(kind, sizes, change, said, tmp_path):
    given = {**SMALL, **SPECIAL, "num_hidden_layers": 1, **sizes}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **given))
    model.save_pretrained(tmp_path)
    load_model(str(tmp_path))
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **change}), "utf-8")
    typed("inspect", str(tmp_path), *READ).refused(said)


RECIPE = """
about = "a base of its own"
inferred = "nothing"
base = {{ model = {} }}
data = {{ domain = [{{ text = "python-docs" }}], validation_fraction = 0.05 }}
pretrain = {{ tokens = 1000, ratio = [1, 0] }}
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 10**6}, "says 1,000,000 layers, and 1,000 is the most"),
        ({"attn_implementation": "evil/kernel"}, None),
    ],
)
def test_a_plan_builds_no_base_of_any_size_and_fetches_no_kernel(
    change, said, folders, tmp_path, monkeypatch
):
    def build(*given: Any, **options: Any) -> None:
        pytest.fail("it is built")

    monkeypatch.setattr(LlamaForCausalLM, "__init__", build)
    folder = Path(shutil.copytree(folders / "llama", tmp_path / "model"))
    own = stored(folder)
    (folder / "config.json").write_text(json.dumps({**own, **change}), "utf-8")
    (tmp_path / "a.toml").write_text(RECIPE.format(json.dumps(str(folder))), "utf-8")
    done = typed("adapt", str(tmp_path / "a.toml"), "--plan", "--out", str(tmp_path / "new"))
    if said is not None:
        done.refused(said)
        return
    assert done.survived().code == 0, done.err
