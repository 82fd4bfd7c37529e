"""What comes from the Hub is checked like a folder: here it lies in the cache of its client."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

import layerlab
from layerlab.builtin import path
from layerlab.tokenization.load import load_tokenizer
from tests.hostile.attack import typed
from tests.support.refused import refuses
from tests.tokenization.spm.protos import needed, write

COMMIT = "0" * 39 + "1"
WORDS = ("inspect", "some/model", "--measures", "stream", "--samples", "1", "-q")


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of the Hub that was fetched before, without a network."""
    own = tmp_path / "cache" / "models--some--model"
    (own / "refs").mkdir(parents=True)
    (own / "refs" / "main").write_text(COMMIT)
    shutil.copytree(path("llama"), own / "snapshots" / COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return own / "snapshots" / COMMIT


@pytest.mark.full
def test_a_model_of_the_hub_is_read_and_named_by_its_commit(snapshot):
    report = layerlab.inspect(
        "some/model", measures=["stream"], texts="A few words.", progress=False
    )
    (model,) = report.models
    assert (model["name"], model["source"]) == ("some/model", "some/model")
    assert model["revision"] == COMMIT and model["weights_hash"].startswith("sha256:files:")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_labels": 20_000_000}, "num_labels is 20000000 in"),
        ({"num_hidden_layers": 60_000}, "says 60,000 layers, and the weights beside it hold 8"),
        ({"attn_implementation": "evil/kernel"}, "which is code on the Hub"),
        ({"configuration_files": ["config.4.0.0.json"]}, "names other configurations"),
        ({"transformers_weights": "other.safetensors"}, "names other weights"),
    ],
)
def test_its_configuration_is_checked(snapshot, change, said):
    file = snapshot / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    typed(*WORDS).refused(said)


def test_an_adapter_leads_to_no_other_model(snapshot):
    content = {"peft_type": "LORA", "base_model_name_or_path": "/elsewhere", "r": 2}
    (snapshot / "adapter_config.json").write_text(json.dumps(content))
    typed(*WORDS).refused("an adapter (adapter_config.json) lies beside the model")


def test_an_adapter_alone_names_its_model(snapshot):
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).unlink()
    (snapshot / "adapter_config.json").write_text("{}")
    typed("inspect", str(snapshot)).refused("names no model; write its folder or Hub id")


def test_pickled_weights_are_not_read(snapshot):
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    typed(*WORDS).refused("has only pickled weights (pytorch_model.bin)")


@needed
def test_a_tokenizer_of_the_hub_is_loaded_under_limits(snapshot):
    assert len(load_tokenizer("some/model")) == 512
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    write(snapshot / "tokenizer.model", ["a" * 2000])
    refuses("has a piece of 2,000 characters", load_tokenizer, "some/model")
