"""Parts and variants from files outside the package: loaded, refused, carried, asked for."""

import hashlib
import importlib.util
import json
import logging
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import layerlab
from layerlab import UserError
from layerlab.experiments.plan.plan import plan
from layerlab.model.build import build
from layerlab.model.modeling import LabForCausalLM
from layerlab.plugins import load
from layerlab.training.setup import build_model
from layerlab.variants import registry
from layerlab.variants.template import write_template
from tests.model.absent import fresh
from tests.model.small import SIZES, tokens
from tests.support.forked import python
from tests.support.refused import refuses
from tests.training.support.planned import EXTENT, recipe

PART = """
from layerlab.blocks.ffn import Gated
from layerlab.blocks.spec import Choice, Spec, Variant


class Mine(Gated):
    name = "{name}"


PARTS = (Mine,)
VARIANTS = (
    Variant(
        name="{name}", spec=Spec().with_block(ffn=Choice("{name}")), equation="x", source="Own",
        about="A."
    ),
)
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test loads from outside is gone after it."""
    yield
    registry._ADDED.clear()
    registry._load_plugged.cache_clear()


def written(path: Path, name: str = "mine") -> Path:
    path.write_text(PART.format(name=name), "utf-8")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def outside(path: Path, name: str = "mine") -> LabForCausalLM:
    load(path)
    return build(name, **SIZES)


def saved(folder: Path) -> Path:
    """A checkpoint of a model from my_idea.py, which is then forgotten."""
    model = outside(write_template(folder / "my_idea.py"), "my-idea")
    torch.nn.init.normal_(model.model.layers[0].ffn.gain)
    model.save_pretrained(folder / "saved")
    registry._ADDED.clear()
    return folder / "saved"


def test_a_file_brings_parts_and_variants_and_its_model_knows_it(tmp_path):
    path = written(tmp_path / "mine.py")
    assert "mine" not in registry.variants()
    assert load(path) == ()
    assert registry.home("mine") == str(path)
    model = build("mine", **SIZES)
    assert model.config.files == {"mine.py": digest(path)}
    assert build("llama", **SIZES).config.files == {}


def test_one_file_may_bring_measures_and_variants(tmp_path):
    path = written(tmp_path / "both.py")
    with path.open("a") as file:
        file.write("MEASURES = ()\n")
    assert load(path) == ()
    assert "mine" in registry.variants()


def test_a_checkpoint_carries_the_file_as_it_was(tmp_path):
    folder = saved(tmp_path)
    path = tmp_path / "my_idea.py"
    assert (folder / "my_idea.py").read_bytes() == path.read_bytes()
    config = json.loads((folder / "config.json").read_text())
    assert config["files"] == {"my_idea.py": digest(path)}


@pytest.mark.full
def test_loading_without_the_file_says_which_to_load_and_doing_so_works(tmp_path):
    folder = saved(tmp_path)
    short = digest(tmp_path / "my_idea.py")[:16]
    said = f"needs the file 'my_idea.py' with SHA-256 {short}..., which is not loaded; read it"
    caught = refuses(re.escape(said), AutoModelForCausalLM.from_pretrained, folder)
    path = repr(str(folder / "my_idea.py"))
    assert f"type --load {path}, or in Python layerlab.load({path})" in caught
    assert "my-idea" not in registry.variants()
    layerlab.load(folder / "my_idea.py")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model.model.layers[0].ffn).__name__ == "MyIdeaFeedForward"


@pytest.mark.full
def test_the_same_file_from_another_place_is_the_same(tmp_path):
    folder = saved(tmp_path)
    load(tmp_path / "my_idea.py")
    load(folder / "my_idea.py")
    assert len(registry.origins()) == 1
    assert AutoModelForCausalLM.from_pretrained(folder).config.variant == "my-idea"


@pytest.mark.full
def test_loading_with_a_changed_file_is_refused(tmp_path):
    folder = saved(tmp_path)
    path = tmp_path / "my_idea.py"
    path.write_text(path.read_text("utf-8") + "# changed\n", "utf-8")
    load(path)
    caught = refuses(
        r"as loaded from .*my_idea.py has SHA-256", AutoModelForCausalLM.from_pretrained, folder
    )
    assert "but this model was saved with" in caught
    assert caught.endswith("instead")


@pytest.mark.full
def test_a_file_that_was_changed_since_is_saved_as_the_model_had_it(tmp_path):
    path = write_template(tmp_path / "my_idea.py")
    before = path.read_bytes()
    model = outside(path, "my-idea")
    path.write_bytes(before + b"# changed\n")
    load(path)
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "my_idea.py").read_bytes() == before


@pytest.mark.full
def test_where_layerlab_is_not_the_carried_file_runs_and_is_carried_on(tmp_path):
    folder = saved(tmp_path)
    load(tmp_path / "my_idea.py")
    x = tokens(1)
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(folder)(x).logits
    torch.save({"x": x, "wanted": wanted}, tmp_path / "logits.pt")
    code = (
        "import torch\nfrom transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('{}', trust_remote_code=True)\n"
        "known = torch.load('logits.pt', weights_only=True)\n"
        "assert torch.equal(model(known['x']).logits, known['wanted'])\n"
        "model.save_pretrained('again')\n"
    )
    for name in ("saved", "again"):
        done = fresh(code.format(name), tmp_path, tmp_path / "cache")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "my_idea.py").read_bytes() == (folder / "my_idea.py").read_bytes()
    carried = folder / "layerlab_loaded_my_idea.py"
    carried.write_text(carried.read_text("utf-8") + "# changed\n", "utf-8")
    done = fresh(code.format("saved"), tmp_path, tmp_path / "cache")
    assert "layerlab_loaded_my_idea.py has SHA-256" in done.stderr
    assert "fetch the folder of the model again" in done.stderr


def test_two_files_that_claim_one_name_are_told_apart(tmp_path):
    load(written(tmp_path / "one.py"))
    other = written(tmp_path / "two.py")
    other.write_text(other.read_text("utf-8") + "# another file\n", "utf-8")
    said = r"two files claim the variant 'mine': .*one\.py and .*two\.py; give one of them another"
    refuses(said, load, other)
    with pytest.raises(UserError, match=r"two files claim the variant 'llama': layerlab\.variants"):
        load(written(tmp_path / "llama.py", "llama"))
    assert len(registry.origins()) == 1


def test_two_files_of_one_name_are_refused_since_a_folder_holds_one(tmp_path):
    (tmp_path / "other").mkdir()
    load(written(tmp_path / "mine.py"))
    before = sys.modules["layerlab_loaded_mine"]
    said = "two files would be one module, layerlab_loaded_mine, and a checkpoint has room for one"
    for other in (tmp_path / "other" / "mine.py", tmp_path / "other" / "min-e.py"):
        if "-" in other.name:
            load(written(tmp_path / "min_e.py", "third"))
        refuses(said.replace("mine", other.stem.replace("-", "_")), load, written(other, "another"))
    assert "another" not in registry.variants()
    assert sys.modules["layerlab_loaded_mine"] is before


HEADS = {
    "encoding": "# -*- coding: latin-1 -*-\n# Idée\n",
    "encoding below": "#!/usr/bin/env python3\n# vim: set fileencoding=latin-1 :\nNAME = 'Idée'\n",
    "form feed": '"""One\f\ntwo."""\n\f\n',
    "separators": '"""One\u2028two\x1cthree\x85four."""\n',
    "carriage returns": '"""One."""\r\n\r\n',
    "mark": "\ufeff# coding: utf-8\n# Idée\n",
}


@pytest.mark.parametrize("head", HEADS)
def test_what_python_reads_can_be_loaded_and_carried(tmp_path, head):
    path = tmp_path / "mine.py"
    source = (HEADS[head] + PART.format(name="mine")).encode(
        "latin-1" if head.startswith("encoding") else "utf-8"
    )
    path.write_bytes(source)
    outside(path).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "mine.py").read_bytes() == source
    carried = (tmp_path / "saved" / "layerlab_loaded_mine.py").read_bytes()
    compile(carried, "carried", "exec")
    text = importlib.util.decode_source(carried)
    assert "from .layerlab_blocks_ffn import Gated" in text
    assert "Id" not in HEADS[head] or "Idée" in text


def test_a_file_that_was_edited_replaces_itself(tmp_path):
    load(written(tmp_path / "mine.py"))
    load(written(tmp_path / "mine.py", "another"))
    assert "another" in registry.variants() and "mine" not in registry.variants()


@pytest.mark.parametrize(
    ("foot", "said"),
    [
        ("PARTS = [Mine]", "is not a tuple of parts; type PARTS = (MyPart,)"),
        ("PARTS = (1,)", "is not a tuple of parts; type PARTS = (MyPart,)"),
        ("PARTS = (int,)", "is not a tuple of parts; type PARTS = (MyPart,)"),
        ("VARIANTS = Spec()", "is not a tuple of variants; type VARIANTS = (Variant(name="),
        ("import layerlab.api.inspect", "a checkpoint cannot carry line"),
    ],
)
def test_what_is_wrong_at_the_foot_is_said_when_it_is_loaded(tmp_path, foot, said):
    path = written(tmp_path / "mine.py")
    path.write_text(f"{path.read_text('utf-8')}\n{foot}\n", "utf-8")
    refuses(re.escape(said), load, path)
    assert "mine" not in registry.variants()


def plugin(site: Path) -> None:
    """An installed package with two entry points, one of which fails."""
    (site / "plug").mkdir(parents=True)
    (site / "plug" / "__init__.py").write_text("")
    (site / "plug" / "size.py").write_text("FACTOR = 2.0\n")
    idea = PART.format(name="plugged").replace("\n\n\nclass", "\nfrom .size import FACTOR\n\nclass")
    doubled = "    def forward(self, x, flow):\n        return FACTOR * super().forward(x, flow)\n"
    idea = idea.replace('name = "plugged"\n\n', f'name = "plugged"\n\n{doubled}\n', 1)
    assert "FACTOR * " in idea
    (site / "plug" / "idea.py").write_text(idea)
    (site / "plug" / "broken.py").write_text("import a_module_that_is_nowhere\n")
    (site / "plug-1.0.dist-info").mkdir()
    (site / "plug-1.0.dist-info" / "METADATA").write_text("Name: plug\nVersion: 1.0\n")
    (site / "plug-1.0.dist-info" / "entry_points.txt").write_text(
        "[layerlab.variants]\nbad = plug.broken\ngood = plug.idea\n"
    )


@pytest.mark.full
def test_a_plugin_is_found_carried_and_a_broken_one_is_one_line(tmp_path):
    plugin(tmp_path / "site")
    code = (
        "import sys\nsys.path.insert(0, 'site')\n"
        "import torch\nfrom layerlab.model.build import build\n"
        "model = build('plugged', width=16, layers=1, heads=2, vocab=61, context=24)\n"
        "x = torch.arange(24)[None]\n"
        "torch.save({'x': x, 'wanted': model(x).logits.detach()}, 'logits.pt')\n"
        "model.save_pretrained('saved')\nprint(*model.config.files)\n"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["plug.idea.py"]
    told = [line for line in done.stderr.splitlines() if "plug-in" in line]
    assert told == [
        "the plug-in 'bad' is left out: ModuleNotFoundError: "
        "No module named 'a_module_that_is_nowhere'"
    ]
    read = (
        "import torch\nfrom transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('saved', trust_remote_code=True)\n"
        "known = torch.load('logits.pt', weights_only=True)\n"
        "assert torch.equal(model(known['x']).logits, known['wanted'])\n"
    )
    done = fresh(read, tmp_path, tmp_path / "cache")
    assert done.returncode == 0, done.stderr


def test_a_plugin_that_claims_a_name_is_left_out(tmp_path, monkeypatch, caplog):
    written(tmp_path / "greedy_plugin.py", "llama")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("greedy", "greedy_plugin", registry.PLUGINS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    registry._load_plugged.cache_clear()
    with caplog.at_level(logging.WARNING, logger="layerlab"):
        assert registry.home("llama") == "layerlab.variants.models.reference"
        registry.variants()
    (record,) = caplog.records
    said = "the plug-in 'greedy' is left out: UserError: two files claim the variant 'llama'"
    assert record.getMessage().startswith(said)


def test_a_template_is_never_written_over_a_file(tmp_path):
    path = write_template(tmp_path / "my_idea.py")
    path.write_text("mine")
    refuses("is there already; give another name, or move it away", write_template, path)
    assert path.read_text() == "mine" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_idea.txt", "cannot name a variant after .*my_idea.txt; expected a letter first and"),
        ("1st.py", "cannot name a variant after .*1st.py"),
        ("__.py", "cannot name a variant after"),
        ("llama.py", "a variant called 'llama' is there already; give the file another name"),
        ("nowhere/idea.py", "there is no folder .*nowhere; make it first"),
    ],
)
def test_a_template_is_refused_in_one_line(tmp_path, name, said):
    refuses(said, write_template, tmp_path / name) and not [*tmp_path.iterdir()]


def test_a_template_that_cannot_be_written_says_why(tmp_path, monkeypatch):
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", full)
    said = r"cannot write .*idea\.py: No space left on device; name another folder"
    refuses(said, write_template, tmp_path / "idea.py")
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_takes_no_file_is_one_line(tmp_path):
    refuses(r"cannot write /proc/x\.py: .*; name another folder", write_template, "/proc/x.py")


def test_a_file_that_repeats_a_name_is_named_once(tmp_path):
    path = written(tmp_path / "mine.py", "dup")
    path.write_text(path.read_text("utf-8") + "VARIANTS = VARIANTS * 2\n", "utf-8")
    said = r"mine\.py declares the variant 'dup' twice; give one of them another name"
    refuses(said, load, path)


def planned() -> str:
    (run,) = plan(recipe({"variant": "mine"}), EXTENT)
    return run.name


@pytest.mark.parametrize("how", ["file", "plug-in"])
def test_a_run_is_another_one_once_code_beside_its_files_changes(how, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    helper, file = tmp_path / "beside_mine.py", written(tmp_path / "brings_mine.py")
    helper.write_text("SCALE = 1\n")
    file.write_text(f"from beside_mine import SCALE\n{file.read_text('utf-8')}", "utf-8")
    entry = EntryPoint("mine", "brings_mine", registry.PLUGINS)
    monkeypatch.setattr(registry, "entry_points", lambda **_: [entry] if how == "plug-in" else [])
    for name in ("beside_mine", "brings_mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def taken_in() -> str:
        registry._load_plugged.cache_clear()
        if how == "file":
            load(file)
        return planned()

    first = taken_in()
    assert taken_in() == first
    helper.write_text("SCALE = 2\n")
    second = taken_in()
    assert second != first
    (run,) = plan(recipe({"variant": "mine"}), EXTENT)
    helper.write_text("SCALE = 3\n")
    taken_in()
    with pytest.raises(UserError, match=r"no longer what it was planned with \(beside_mine\)"):
        build_model(run, torch.device("cpu"))
