"""Python that a model brings along: nothing runs it unasked, whatever is piped to the command."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import layerlab
from layerlab import UserError, builtin
from layerlab.cli.app import app
from layerlab.console.ending import run_app
from layerlab.experiments.executors.process import WORKER
from layerlab.experiments.session import prepare
from layerlab.system.untrusted import trust
from layerlab.system.untrusted.trust import GRANTS
from layerlab.training.run_spec import write_run
from tests.support.forked import python
from tests.support.refused import refuses

ROOT = Path(__file__).resolve().parents[3]
CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
PARTS = {
    "config.json": {
        "model_type": "own",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    },
    "tokenizer_config.json": {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]},
    },
}


@pytest.fixture(params=PARTS)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose configuration or tokenizer names Python beside it, which leaves `mark`."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    place = tmp_path / f"own-{request.param.partition('.')[0]}"
    shutil.copytree(builtin.path("llama"), place)
    (place / "own.py").write_text(CODE.format(mark=str(tmp_path / "mark")))
    file = place / str(request.param)
    file.write_text(json.dumps({**json.loads(file.read_text()), **PARTS[request.param]}))
    return place


INSPECT = ("--measures", "stream", "--samples", "1", "--context", "32", "--quiet")
COMMANDS = {
    "inspect": (*INSPECT, "--out", "report"),
    "retrofit": ("--variant", "llama", "--out", "new"),
    "precision": ("--samples", "1", "--context", "32", "--quiet"),
}


def main(words: list[str]) -> int:
    """The exit code of a command as typed."""
    return run_app(lambda **options: app(words, **options))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_model_with_code_is_refused_in_one_line(name, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([name, str(folder), *COMMANDS[name]]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "is not run unasked" in said[0]
    assert said[0].endswith("type --trust-remote-code (in Python trust_remote_code=True)")
    assert not (tmp_path / "mark").exists() and not (tmp_path / "report").exists()


@pytest.mark.full
def test_whoever_asks_for_it_has_it(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", str(folder), *COMMANDS["inspect"], "--trust-remote-code"]) == 0
    assert (tmp_path / "mark").exists() and (tmp_path / "report" / "report.json").exists()


@pytest.mark.full
def test_the_argument_in_python_is_the_option(folder, tmp_path):
    with pytest.raises(UserError, match="trust_remote_code=True"):
        layerlab.inspect(str(folder), texts="A text.", measures=["stream"], progress=False)
    assert not (tmp_path / "mark").exists()
    report = layerlab.inspect(
        str(folder), texts="A text.", measures=["stream"], progress=False, trust_remote_code=True
    )
    assert (tmp_path / "mark").exists() and len(report.frame("stream")) == 9


def test_a_plan_with_a_tokenizer_that_brings_code_is_refused(folder, tmp_path, capsys):
    recipe = tmp_path / "mine.toml"
    # Small: a plan measures how fast a model of this size learns.
    sizes = "width = 16\nlayers = 1\nheads = 2\ncontext = 16"
    recipe.write_text(
        f'name = "mine"\n[model]\n{sizes}\n[data]\ntokenizer = "{folder}"\n[train]\nmax_steps = 1\n'
    )
    code = main(["train", str(recipe), "--plan"])
    asked = folder.name == "own-tokenizer_config"
    assert code == (2 if asked else 0) and not (tmp_path / "mark").exists()
    assert ("is not run unasked" in capsys.readouterr().err) is asked


OWN = """
from pathlib import Path
with Path({mark!r}).open("a") as file:
    file.write("ran ")
MEASURES = ()
"""


def evil(place: Path, mark: Path) -> Path:
    """A folder of a model that is inside of another one, and of the tokenizers of one."""
    place.mkdir(parents=True)
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Evil: pass\n"
    (place / "evil.py").write_text(code)
    inner = {"model_type": "siglip_text_model", "hidden_size": 16, "num_hidden_layers": 1}
    inner |= {"num_attention_heads": 2, "vocab_size": 64, "intermediate_size": 32}
    auto = {"AutoModel": f"{place}--evil.Evil", "AutoTokenizer": [None, f"{place}--evil.Evil"]}
    config = {"model_type": "fuyu", "architectures": ["FuyuForCausalLM"], "hidden_size": 16}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    (place / "config.json").write_text(
        json.dumps({**config, "text_config": {**inner, "auto_map": auto}})
    )
    save_file({"x.0.y": torch.zeros(4000)}, place / "model.safetensors", {"format": "pt"})
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RagTokenizer"}))
    for part in ("question_encoder", "generator"):
        (place / f"{part}_tokenizer").mkdir()
        own = {"tokenizer_class": "EvilTok", "auto_map": auto}
        (place / f"{part}_tokenizer" / "tokenizer_config.json").write_text(json.dumps(own))
    return place


@pytest.mark.parametrize("model", ["fuyu", "rag"])
def test_what_lies_inside_of_another_is_not_asked_for_either(model, tmp_path, monkeypatch, capsys):
    """transformers loads it without the answer that the outer one had, and would ask."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    place, mark = evil(tmp_path / "evil", tmp_path / "mark"), tmp_path / "mark"
    words = ["inspect", str(place), *INSPECT, "--out", str(tmp_path / "report")]
    if model == "rag":
        inner = {"model_type": "llama"}
        config = {"model_type": "rag", "question_encoder": inner, "generator": inner}
        (place / "config.json").write_text(json.dumps(config))
        (tmp_path / "text.txt").write_text("Some text.\n")
        words = ["adapt", "vocabulary", "--tokenizer", str(place), "--size", "+8", "--quiet"]
        words += ["--corpus", str(tmp_path / "text.txt"), "--out", str(tmp_path / "words")]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "Do you wish" not in said.out + said.err and said.err.count("\n") == 1
    assert not mark.exists()


@pytest.mark.full
def test_a_worker_takes_no_module_of_the_folder_it_is_started_in(tmp_path):
    (tmp_path / "random.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    said = subprocess.run([*WORKER, "nowhere"], cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 2 and "cannot read nowhere" in said.stderr
    assert not (tmp_path / "mark").exists()


@pytest.mark.full
def test_a_run_s_folder_grants_nothing(stranger, tmp_path):
    with trust.trust(False, trust_recipe=True):
        run = prepare(stranger, Path("runs")).runs[0]
    place = tmp_path / "run"
    place.mkdir()
    write_run(run, place)
    body = json.loads((place / "run.json").read_text())
    every = [hashlib.sha256(file.read_bytes()).hexdigest() for file in Path.cwd().glob("*.py")]
    (place / "run.json").write_text(json.dumps({**body, "granted": {"files": every}}))
    Path("mark").unlink(missing_ok=True)
    bare = {name: value for name, value in os.environ.items() if name != GRANTS}
    said = python("-m", "layerlab.training.worker", place, env=bare)
    assert said.returncode == 2 and "nothing runs unasked" in said.stderr
    assert not Path("mark").exists()


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe of two tiny arms that names a Python file, which writes into `mark`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trust, "_ALLOWED", set())
    (tmp_path / "own idea.py").write_text(OWN.format(mark=str(tmp_path / "mark")))
    (tmp_path / "other.py").write_text("MEASURES = ()\n")
    recipe = tmp_path / "strange.toml"
    sizes = "width = 16\nlayers = 1\nheads = 2\ncontext = 16"
    recipe.write_text(
        f'name = "strange"\n[model]\nload = ["own idea.py"]\n{sizes}\n[train]\nmax_steps = 1\n'
        "batch_size = 2\n[evaluate]\nmax_eval_blocks = 2\n[compare]\nseeds = [1, 2]\n"
        'arms = ["llama", "gpt2"]\n'
    )
    return recipe


@pytest.mark.parametrize(
    "words", [(), ("--plan",), ("--judge",), ("--load", "other.py"), ("--trust-remote-code",)]
)
def test_a_recipe_runs_no_file_unasked(words, stranger, capsys):
    assert main(["compare", str(stranger), *words]) == 2
    assert capsys.readouterr().err == (
        "layerlab: the recipe runs the Python file 'own idea.py', and nothing runs unasked; read "
        "it, and where you trust it type --load 'own idea.py', or --trust-recipe for all of its "
        "files (in Python layerlab.load('own idea.py'), or trust_recipe=True)\n"
    )
    assert not Path("mark").exists()


@pytest.mark.full
@pytest.mark.parametrize("words", [("--load", "own idea.py"), ("--trust-recipe",)])
def test_a_file_that_is_asked_for_runs(words, stranger, capsys):
    assert main(["compare", str(stranger), *words, "--plan", "--quiet"]) == 0
    assert "llama" in capsys.readouterr().out and Path("mark").exists()


@pytest.mark.full
def test_a_worker_runs_the_very_file_that_was_asked_for(stranger):
    with trust.trust(False, trust_recipe=True):
        run = prepare(stranger, Path("runs")).runs[0]
    write_run(run, Path("one"))
    before = Path("mark").read_text()
    granted = {**os.environ, GRANTS: trust.list_grants()}
    worker = "-m", "layerlab.training.worker"
    assert python(*worker, "one", env=granted).returncode == 0
    ran = Path("mark").read_text()
    write_run(run, Path("two"))
    Path("own idea.py").write_text(Path("own idea.py").read_text() + "# changed\n")
    done = python(*worker, "two", env=granted)
    assert done.returncode == 2 and "nothing runs unasked" in done.stderr
    assert len(ran) > len(before) and Path("mark").read_text() == ran
    asked = python(*worker, "two", "--trust-recipe")
    assert asked.returncode == 0 and len(Path("mark").read_text()) > len(ran)


def test_in_python_a_loaded_file_is_asked_for(stranger):
    refuses("trust_recipe=True", layerlab.compare, stranger, progress=False)
    layerlab.load("own idea.py")
    assert len(prepare(stranger, Path("runs")).runs) == 4


def test_a_changed_file_is_compared_before_it_runs(stranger, capsys):
    for name in ("model", "series/checkpoint-3"):
        shutil.copytree(builtin.path("llama"), name)
        config = Path(name) / "config.json"
        saved = json.loads(config.read_text()) | {"files": {"own idea.py": "0" * 64}}
        config.write_text(json.dumps(saved))
    digest = hashlib.sha256(Path("own idea.py").read_bytes()).hexdigest()[:16]
    commands = (
        ["inspect", "model", "--out", "a"],
        ["inspect", "llama", "series", "--out", "b"],
        ["retrofit", "model", "--out", "c"],
    )
    for words in commands:
        assert main([*words, "--load", "own idea.py"]) == 2
        said = capsys.readouterr().err
        assert f"has SHA-256 {digest}..., but " in said and "saved with 0000000000000000..." in said
        assert said.count("\n") == 1
    assert not Path("mark").exists()


def test_nothing_but_one_file_loads_by_itself():
    found = [
        path.name
        for path in (ROOT / "layerlab").rglob("*.py")
        if re.search(r"Auto\w+\.from_(pretrained|config)\(", path.read_text("utf-8"))
    ]
    # Architectures of transformers alone, without a folder.
    assert found == ["builtin_architectures.py"]
