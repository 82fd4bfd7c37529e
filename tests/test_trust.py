"""Python that a model brings along: nothing runs it unasked, whatever is piped to the command."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest

import layerlab
from layerlab import UserError, builtin
from layerlab.cli import app, plainly

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
    return plainly(lambda **options: app(words, **options))


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


def test_nothing_but_one_file_loads_by_itself() -> None:
    found = [
        path.name
        for path in (ROOT / "layerlab").rglob("*.py")
        if re.search(r"Auto\w+\.from_(pretrained|config)\(", path.read_text("utf-8"))
    ]
    # What it trained itself a moment ago is no stranger's.
    assert sorted(found) == ["arm.py", "train.py"]
