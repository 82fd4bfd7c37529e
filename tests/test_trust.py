"""Python that a model brings along: nothing runs it unasked, whatever is piped to the command."""

import hashlib
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import layerlab
from layerlab import UserError, builtin, trust
from layerlab.cli import app
from layerlab.ending import run_app
from layerlab.experiment import prepared
from layerlab.training.launch import WORKER
from layerlab.training.worker import write_run

ROOT = Path(__file__).resolve().parents[1]
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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_model_with_code_is_refused_in_one_line(
    name: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([name, str(folder), *COMMANDS[name]]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "is not run unasked" in said[0]
    assert said[0].endswith("type --trust-remote-code (in Python trust_remote_code=True)")
    assert not (tmp_path / "mark").exists() and not (tmp_path / "report").exists()


def test_whoever_asks_for_it_has_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", str(folder), *COMMANDS["inspect"], "--trust-remote-code"]) == 0
    assert (tmp_path / "mark").exists() and (tmp_path / "report" / "report.json").exists()


def test_the_argument_in_python_is_the_option(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trust_remote_code=True"):
        layerlab.inspect(str(folder), texts="A text.", measures=["stream"], progress=False)
    assert not (tmp_path / "mark").exists()
    report = layerlab.inspect(
        str(folder), texts="A text.", measures=["stream"], progress=False, trust_remote_code=True
    )
    assert (tmp_path / "mark").exists() and len(report.frame("stream")) == 9


def test_a_plan_with_a_tokenizer_that_brings_code_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'name = "mine"\n[data]\ntokenizer = "{folder}"\n[train]\nupdates = 1\n')
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
        f'name = "strange"\n[model]\nload = ["own idea.py"]\n{sizes}\n[train]\nupdates = 1\n'
        "batch = 2\n[evaluate]\nblocks = 2\n[compare]\nseeds = [1, 2]\n"
        'arms = ["llama", "gpt2"]\n'
    )
    return recipe


@pytest.mark.parametrize(
    "words", [(), ("--plan",), ("--judge",), ("--load", "other.py"), ("--trust-remote-code",)]
)
def test_a_recipe_runs_no_file_unasked(
    words: tuple[str, ...], stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(stranger), *words]) == 2
    assert capsys.readouterr().err == (
        "layerlab: the recipe runs the Python file 'own idea.py', and nothing runs unasked; read "
        "it, and where you trust it type --load 'own idea.py', or --trust-recipe for all of its "
        "files (in Python layerlab.load('own idea.py'), or trust_recipe=True)\n"
    )
    assert not Path("mark").exists()


@pytest.mark.parametrize("words", [("--load", "own idea.py"), ("--trust-recipe",)])
def test_a_file_that_is_asked_for_runs(
    words: tuple[str, ...], stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(stranger), *words, "--plan", "--quiet"]) == 0
    assert "llama" in capsys.readouterr().out and Path("mark").exists()


def test_a_worker_runs_the_very_file_that_was_asked_for(stranger: Path) -> None:
    with trust.trusting(False, trust_recipe=True):
        run = prepared(stranger, Path("runs")).runs[0]
    write_run(run, Path("one"))
    before = Path("mark").read_text()
    assert subprocess.run([*WORKER, "one"], check=False).returncode == 0
    ran = Path("mark").read_text()
    write_run(run, Path("two"))
    Path("own idea.py").write_text(Path("own idea.py").read_text() + "# changed\n")
    done = subprocess.run([*WORKER, "two"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "nothing runs unasked" in done.stderr
    assert len(ran) > len(before) and Path("mark").read_text() == ran


def test_in_python_a_loaded_file_is_asked_for(stranger: Path) -> None:
    with pytest.raises(UserError, match="trust_recipe=True"):
        layerlab.compare(stranger, progress=False)
    layerlab.load("own idea.py")
    assert len(prepared(stranger, Path("runs")).runs) == 4


def test_a_changed_file_is_compared_before_it_runs(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_nothing_but_one_file_loads_by_itself() -> None:
    found = [
        path.name
        for path in (ROOT / "layerlab").rglob("*.py")
        if re.search(r"Auto\w+\.from_(pretrained|config)\(", path.read_text("utf-8"))
    ]
    # What it trained itself a moment ago is no stranger's.
    assert sorted(found) == ["arm.py", "train.py"]
