"""What was kept to save work, changed by hand: it is made again, and one line says so."""

import json
from pathlib import Path

import pytest

from tests.hostile.attack import typed

pytestmark = pytest.mark.filterwarnings("default::layerlab.errors.DamageWarning")


def test_a_corpus_with_another_tokenizer_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("The cat sat on the mat.\n" * 200)
    recipe = tmp_path / "a.toml"
    recipe.write_text(
        f'data = {{ sources = [{{ text = "{tmp_path}/text.txt" }}], vocab_size = 300 }}\n'
        "model = { width = 8, layers = 1, heads = 1, context = 8 }\ntrain.max_steps = 2\n"
    )
    words = ("train", str(recipe), "--plan", "-q", "--out", str(tmp_path / "out"))
    first = typed(*words)
    assert first.code == 0 and first.err == ""
    (file,) = (tmp_path / "cache").glob("corpora/*/tokenizer/tokenizer.json")
    whole = file.read_bytes()
    content = json.loads(whole)
    vocab = content["model"]["vocab"]
    vocab["e"], vocab["t"] = vocab["t"], vocab["e"]
    file.write_text(json.dumps(content))
    again = typed(*words)
    assert again.code == 0 and again.err.count("\n") == 1
    assert again.err.endswith("is made again: its tokenizer is not what was written\n")
    assert file.read_bytes() == whole
