"""Which folder a name stands for."""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

import peft
import pytest
from transformers import AutoModelForCausalLM

from layerlab import builtin
from layerlab.loading import folders
from layerlab.loading.folders import check_found, find_folder, input_files
from tests.support.refused import refuses


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Models by their ids, of which only what is asked for comes."""

    def fetch(name, wanted):
        found = tmp_path / "fetched" / name
        found.mkdir(parents=True, exist_ok=True)
        for file in (tmp_path / "hub" / name).iterdir():
            wants = any(fnmatch(file.name, pattern) for pattern in wanted)
            if wants and not (found / file.name).exists():
                shutil.copy(file, found)
        return found

    monkeypatch.setattr(folders, "fetch_files", fetch)
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    shutil.copytree(builtin.path("llama"), tmp_path / "hub" / "some" / "model")
    return tmp_path / "hub" / "some"


def test_a_folder_that_is_called_as_a_built_in_model_is_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_folder("llama", with_weights=True) == builtin.path("llama")
    shutil.copytree(builtin.path("llama"), tmp_path / "llama")
    assert find_folder("llama", with_weights=True) == Path("llama")


def test_weights_of_the_hub_are_fetched_once_they_are_read(hub):
    check_found(["some/model"])
    folder = find_folder("some/model", with_weights=False)
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert find_folder("some/model", with_weights=True) == folder
    assert (folder / "model.safetensors").is_file()
    (hub / "empty").mkdir()
    refuses("has no config.json", check_found, ["some/empty"])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # PEFT's
def test_an_adapter_of_the_hub_is_merged_into_its_model_of_the_hub(hub):
    settings = peft.LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["q_proj"])
    model = AutoModelForCausalLM.from_pretrained(hub / "model")
    peft.get_peft_model(model, settings).save_pretrained(hub / "adapter")
    file = hub / "adapter" / "adapter_config.json"
    named = {**json.loads(file.read_text()), "base_model_name_or_path": "some/model"}
    file.write_text(json.dumps(named))
    folder = find_folder("some/adapter", with_weights=False)
    assert (folder / "model.safetensors").is_file()
    assert find_folder("some/adapter", with_weights=True) == folder


def test_hidden_files_are_not_read(tmp_path):
    for name in ("config.json", "code/own.py", ".hidden.json", ".cache/own.py", "code/.own.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [str(file.relative_to(tmp_path)) for file in input_files(tmp_path)]
    assert found == ["code/own.py", "config.json"]
