"""`layerlab retrofit`: a saved model in, a variant with the same logits out, or one clear line."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import layerlab
from layerlab import UserError, builtin


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    command = [sys.executable, "-m", "layerlab", "retrofit", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_rebuilt_model_is_saved_with_its_tokenizer(tmp_path: Path) -> None:
    out = tmp_path / "new"
    found = run("pre-norm", "--variant", "pangu-pi", "--option", "r=8", "--out", str(out))
    assert found.returncode == 0 and found.stderr == ""
    assert "logits before training: the same, bit for bit" in found.stdout
    new = AutoModelForCausalLM.from_pretrained(out)
    old = AutoModelForCausalLM.from_pretrained(builtin.path("pre-norm"))
    ids = AutoTokenizer.from_pretrained(out)("A short text.", return_tensors="pt").input_ids
    assert new.config.variant == "pangu-pi"
    with torch.no_grad():
        assert torch.equal(new(ids).logits, old(ids).logits)


def test_a_variant_that_is_another_function_says_how_far_it_is(tmp_path: Path) -> None:
    found = run("llama", "--variant", "history-1", "--out", str(tmp_path / "new"))
    assert found.returncode == 0
    assert "logits before training: off by up to" in found.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama", "--variant", "pangu-pie"], "did you mean 'pangu-pi'?"),
        (["llama", "--variant", "pangu-pi", "--option", "r=0"], "option r of shortcut part"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(
    tmp_path: Path, words: list[str], message: str
) -> None:
    found = run(*words, "--out", str(tmp_path / "new"))
    assert found.returncode == 2 and message in found.stderr
    assert found.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_there_already_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    found = run("llama", "--out", str(tmp_path))
    assert found.returncode == 2
    assert "holds files already; name a new or an empty folder" in found.stderr
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_function_takes_a_loaded_model_and_options(tiny) -> None:
    model = tiny("llama")
    new = layerlab.retrofit(model, "as-4", shortcut={"bias": True})
    assert new.config.parsed().block.shortcut.given()["bias"] is True
    with pytest.raises(UserError, match="this one is loaded: call"):
        layerlab.retrofit(model, device="cpu")
