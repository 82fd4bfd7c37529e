"""A checkpoint brings its code: it runs, bit for bit, where layerlab cannot be imported."""

import functools
import json
import logging
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.dynamic_module_utils import get_relative_import_files

from layerlab import UserError
from layerlab.model.ecosystem.export import code_files
from layerlab.model.modeling import LabForCausalLM, LabModel
from layerlab.variants import registry
from layerlab.variants.flat_imports import sibling
from layerlab.variants.registry import variants
from tests.model.absent import fresh
from tests.model.small import shaken, small, tokens

READ = """
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

x, found = load_file("tokens.safetensors")["x"], {}
for folder in sorted(Path().glob("*/*/")):
    trusted = {"trust_remote_code": True, "dtype": torch.float64}
    model = AutoModelForCausalLM.from_pretrained(folder, **trusted)
    with torch.no_grad():
        found[folder.parent.name] = model(x).logits
    assert type(model).__module__.startswith("transformers_modules.")
    if folder.parent.name == "llama":
        base = AutoModel.from_pretrained(folder, **trusted)
        assert torch.equal(base(x).last_hidden_state, model.model(x).last_hidden_state)
        model.save_pretrained("again")
        found["again"] = AutoModelForCausalLM.from_pretrained("again", **trusted)(x).logits.detach()
save_file(found, "found.safetensors")
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    shaken(small("llama")).save_pretrained(folder)
    return folder


@pytest.mark.full
def test_every_variant_gives_the_same_bits_where_layerlab_is_not(tmp_path, monkeypatch):
    """All of them in one process, from folders of one name: code that is alike is imported once."""
    monkeypatch.setattr("layerlab.model.ecosystem.export.sibling", functools.cache(sibling))
    x, wanted = tokens(), {}
    for name in variants():
        model = shaken(small(name))
        model.save_pretrained(tmp_path / "saved" / name / "checkpoint")
        with torch.no_grad():
            wanted[name] = model(x).logits
    save_file({"x": x}, tmp_path / "saved" / "tokens.safetensors")
    done = fresh(READ, tmp_path / "saved", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "saved" / "found.safetensors")
    assert torch.equal(found.pop("again"), wanted["llama"])
    assert set(found) == set(wanted)
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_the_installed_classes_read_it_without_trust(llama):
    x = tokens()
    model = AutoModelForCausalLM.from_pretrained(llama)
    assert type(model) is LabForCausalLM
    assert type(AutoModel.from_pretrained(llama)) is LabModel
    trusted = AutoModelForCausalLM.from_pretrained(llama, trust_remote_code=True)
    assert type(trusted) is LabForCausalLM, "what is installed goes before what lies there"
    assert torch.equal(model(x).logits, shaken(small("llama"))(x).logits)


def test_the_configuration_says_where_each_class_lies(llama):
    config = json.loads((llama / "config.json").read_text())
    assert set(config["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForCausalLM"}
    for place in config["auto_map"].values():
        file, name = place.split(".")
        assert re.search(rf"^class {name}\(", (llama / f"{file}.py").read_text(), re.MULTILINE)
    assert not (llama / "pytorch_model.bin").exists() and (llama / "model.safetensors").is_file()


def test_transformers_finds_every_file_by_its_imports(llama):
    code = {path.name for path in llama.glob("*.py")}
    found = get_relative_import_files(llama / "modeling_layerlab.py")
    assert {Path(one).name for one in found} | {"modeling_layerlab.py"} == code


def test_files_name_no_module_of_layerlab_and_no_jaxtyping(llama):
    for path in llama.glob("*.py"):
        assert not re.search(r"^\s*(from|import) (layerlab|jaxtyping)", path.read_text(), re.M), (
            path
        )


def test_only_files_whose_parts_are_used_come_along():
    plain, pangu = (set(code_files(small(name).config)) for name in ("llama", "pangu-pi"))
    own = {name for name in pangu - plain if name.startswith("layerlab_variants_")}
    assert own and not any("history" in name for name in own)
    assert {name for name in plain if name.startswith("layerlab_variants_")} == {
        "layerlab_variants_registry.py",
    }


def test_a_configuration_alone_brings_the_code_too(tmp_path):
    small("llama").config.save_pretrained(tmp_path)
    assert (tmp_path / "modeling_layerlab.py").is_file()
    assert AutoConfig.from_pretrained(tmp_path).auto_map["AutoModel"].endswith(".LabModel")


def test_what_is_pushed_to_the_hub_holds_the_code(tmp_path, monkeypatch):
    class Hub:
        repo_id = "me/llama"

        def create_repo(self, *given: object, **options: object) -> "Hub":
            return self

    sent: list[str] = []

    def upload(
        self: object, folder: str, repo: str, files_timestamps: dict, **rest: object
    ) -> None:
        here = {path.name: path.stat().st_mtime for path in Path(folder).iterdir()}
        sent.extend(name for name, when in here.items() if when > files_timestamps.get(name, 0))

    monkeypatch.setattr("transformers.modeling_utils.hf_api", Hub)
    monkeypatch.setattr(LabForCausalLM, "_upload_modified_files", upload)
    small("llama").save_pretrained(tmp_path / "llama", push_to_hub=True)
    assert {"config.json", "modeling_layerlab.py", "layerlab_blocks_norm.py"} <= set(sent)


@pytest.mark.parametrize(
    "line",
    [
        "import layerlab.blocks.norm",
        "from layerlab.blocks import norm",
        "from layerlab import inspect",
        "from layerlab.nowhere import x",
        "from layerlab.blocks.norm \\\n    import RmsNorm",
        "from . import helper",
    ],
)
def test_an_import_that_cannot_travel_is_answered_with_its_line(line):
    said = "a checkpoint cannot carry line 2 of mine.py, .*; name the module and what is in it"
    with pytest.raises(UserError, match=said) as caught:
        sibling(f"x = 1\n{line}\n", "layerlab_loaded_mine", home="mine.py")
    assert "\n" not in str(caught.value)


def test_imports_become_siblings_and_nothing_else_changes():
    source = (
        "import torch\n"
        "from layerlab import UserError\n"
        "from layerlab.blocks.init import (  # why\n    linear,\n)\n"
        "def f():\n    from layerlab.shapes import Stream as S\n"
        "text = 'from layerlab.blocks.norm import x'\n"
    )
    made = sibling(source, "mine", home="mine.py")
    assert made.text == source.replace(
        "from layerlab import", "from .layerlab_errors import"
    ).replace("from layerlab.blocks.init", "from .layerlab_blocks_init").replace(
        "from layerlab.shapes", "from .layerlab_shapes"
    )
    assert made.needs == ("layerlab.errors", "layerlab.blocks.init", "layerlab.shapes")


CARRIED = """
from transformers import AutoConfig, AutoModelForCausalLM
for kind in (AutoConfig, AutoModelForCausalLM):
    try:
        kind.from_pretrained("saved", trust_remote_code=True)
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize(
    "name", ["modeling_layerlab.py", "configuration_layerlab.py", "layerlab_blocks_shape.py"]
)
def test_a_changed_file_is_refused_before_it_runs(name, tmp_path):
    small("llama").save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / name
    file.write_text(file.read_text() + "\nprint('it ran')\n")
    done = fresh(CARRIED, tmp_path, tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 2 and all(one.startswith(f"{name} has SHA-256 ") for one in said)
    assert said[0].endswith("fetch the folder of the model again")


PART = """
from layerlab.blocks.ffn import Gated
from layerlab.blocks.spec import Choice, Spec, Variant
from beside_of_plug import NAME

class Plugged(Gated):
    name = NAME

PARTS = (Plugged,)
VARIANTS = (
    Variant(
        name=NAME, spec=Spec().with_block(ffn=Choice(NAME)), equation="x", source="Own", about="A."
    ),
)
"""


def test_a_plugin_of_one_file_is_carried_as_it_was_and_what_is_left_behind_is_said(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "plug_of_one.py").write_text(PART)
    (tmp_path / "beside_of_plug.py").write_text("NAME = 'plugged'\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("plug", "plug_of_one", registry.PLUGINS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    registry._load_plugged.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="layerlab"):
            small("plugged").save_pretrained(tmp_path / "saved")
            small("plugged").save_pretrained(tmp_path / "again")
    finally:
        registry._load_plugged.cache_clear()
    assert (tmp_path / "saved" / "plug_of_one.py").read_text() == PART
    carried = (tmp_path / "saved" / "layerlab_plugin_plug_of_one.py").read_text()
    assert "from .layerlab_blocks_ffn import Gated" in carried
    (record,) = caplog.records
    assert record.getMessage() == (
        "plug_of_one.py imports beside_of_plug, which a saved model does not carry: move what it "
        "uses into that file, or take it along"
    )
