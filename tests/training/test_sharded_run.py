"""A run on a text in shards: killed, it goes on in the same shards to the same bits."""

import json
import time
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.experiments.session import prepare
from layerlab.recipes.training import make_recipe
from layerlab.training.run_spec import write_run
from tests.corpus.test_shards import line
from tests.support.forked import Forked, python
from tests.support.refused import refuses

MODEL = {"width": 16, "layers": 1, "heads": 2, "context": 16}


def recipe(file: Path) -> dict[str, object]:
    data = {"sources": [{"text": str(file)}], "shard_bytes": 4096, "vocab_size": 300}
    return {
        "model": MODEL,
        "data": {**data, "validation_fraction": 0.2},
        "train": {"max_steps": 120, "batch_size": 8},
        "evaluate": {"eval_steps": 60, "max_eval_blocks": 4},
        "run": {"save_steps": 20},
    }


@pytest.mark.full
def test_a_run_killed_among_its_shards_ends_in_the_same_bits(tmp_path, monkeypatch):
    file = tmp_path / "text.txt"
    file.write_text("".join(map(line, range(800))))
    models = []
    for cache, kills in (("whole", 0), ("killed", 1)):
        monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / cache))
        task = prepare(recipe(file), tmp_path / cache / "out", progress=False)
        (run,) = task.runs
        folder = task.folder(run)
        write_run(run, folder)
        command = "-m", "layerlab.training.worker", folder
        for _ in range(kills):
            running = Forked(*command)
            while not list((folder / "checkpoints").glob("[!.]*")):
                assert running.process.is_alive()
                time.sleep(0.01)
            running.kill()
        assert python(*command).returncode == 0
        assert json.loads((folder / "result.json").read_text())["resumes"] == kills
        shards = list((tmp_path / cache).glob("shards-*/*/0/*/shard.tokens"))
        assert len(shards) >= 4, "the run went through several"
        models.append((folder / "model" / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_passes_over_a_text_in_shards_are_refused(tmp_path):
    content = {**recipe(tmp_path), "train": {"num_train_epochs": 1}}
    said = r"num_train_epochs counts passes over a text that data.shard_bytes leaves unread; write"
    refuses(said, make_recipe, content)


def test_the_packaged_pretraining_reads_its_texts_as_it_goes():
    from layerlab.recipes.training import load_recipe

    found = load_recipe("pangu-pretrain", {})
    assert found.data.shard_bytes is not None
    assert (
        found.data.trained_tokenizer is not None
        and found.data.trained_tokenizer.train == "bpe-fallback"
    )
    assert found.data.vocab_size == 100_883


def test_a_first_shard_too_small_for_the_vocabulary_is_named(tmp_path, cache):
    file = tmp_path / "text.txt"
    file.write_text("".join(map(line, range(800))))
    content = recipe(file)
    data = {**content["data"], "vocab_size": 5000}  # type: ignore[dict-item]
    said = r"first 4,096 bytes of each text give a tokenizer of \d+ entries, not the 5,000 .* write"
    refuses(said, prepare, {**content, "data": data}, tmp_path, progress=False)


def test_an_empty_text_is_named(tmp_path, cache):
    file = tmp_path / "text.txt"
    file.write_text("")
    with pytest.raises(UserError, match=r"text.txt holds no text; give one with words in it"):
        prepare(recipe(file), tmp_path, progress=False)
