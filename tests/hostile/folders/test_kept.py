"""What was kept to save work, changed by hand: it is made again, and one line says so."""

import json

import numpy as np
import pytest

from layerlab.studies.pangu23.tables.latency import FEWER, SAME, STUDY, locate_times
from tests.hostile.attack import typed

pytestmark = pytest.mark.filterwarnings("default::layerlab.errors.DamageWarning")


@pytest.mark.full
def test_a_corpus_with_another_tokenizer_is_made_again(tmp_path, monkeypatch):
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
    (file,) = (tmp_path / "cache").glob("corpora-2/*/tokenizer/tokenizer.json")
    whole = file.read_bytes()
    content = json.loads(whole)
    vocab = content["model"]["vocab"]
    vocab["e"], vocab["t"] = vocab["t"], vocab["e"]
    file.write_text(json.dumps(content))
    again = typed(*words)
    assert again.code == 0 and again.err.count("\n") == 1
    assert again.err.endswith("is made again: its tokenizer is not what was written\n")
    assert file.read_bytes() == whole


@pytest.mark.full
def test_times_without_a_digest_decide_nothing(tmp_path):
    file = locate_times(tmp_path / "runs", STUDY.options["width"])
    one = {
        "ratio": {"median": 0.5, "low": 0.49, "high": 0.51, "pairs": 40},
        "predicted": 0.5,
        "milliseconds": [1.0, 2.0],
        "machine": {"device": "cpu", "processor": "\x1b[31mX", "threads": 1},
        "versions": {"torch": "9", "transformers": "5"},
    }
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({FEWER: one, SAME: one}))
    places = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    found = typed("study", STUDY.name, "--fast", "-q", *places)
    verdicts = json.loads((tmp_path / "out" / "study.json").read_text())["verdicts"]
    assert [one["word"] for one in verdicts] == ["not decided"] * 3
    assert found.survived().code == 0
    assert found.err.count("\n") == 1 and f"{file.name} does not count: it is not" in found.err


@pytest.mark.full
def test_batches_that_were_changed_are_computed_again(tmp_path, monkeypatch):
    words = ("study", "rounding-input", "--draws", "80", "-q", "--out", str(tmp_path / "out"))

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("layerlab.studies.engine.runner._record", stop)
        typed(*words)
    batches = sorted((tmp_path / ".out.batches").glob("*.npz"))
    for file in batches:
        with np.load(file) as stored:
            arrays = {name: 7 * stored[name] for name in stored.files}
        np.savez(file, **arrays)
    again = typed(*words)
    whole = typed(*words[:-1], str(tmp_path / "other"))
    assert len(batches) > 1 and again.err.count("\n") == 1
    assert "is not what was written, and is computed again" in again.err
    tables = [sorted((tmp_path / name / "tables").iterdir()) for name in ("out", "other")]
    assert [one.read_text() for one in tables[0]] == [one.read_text() for one in tables[1]]
    assert whole.err == ""
