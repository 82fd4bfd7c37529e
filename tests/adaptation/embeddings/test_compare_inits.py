"""Every start is tried before the chosen one stays; the command writes what it says."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from layerlab.adaptation.embeddings import compare_inits
from layerlab.adaptation.embeddings.compare_inits import embed, read_sample
from layerlab.adaptation.embeddings.init import STARTS
from layerlab.adaptation.embeddings.resize import find_kept_rows, resize
from layerlab.adaptation.trainer.bits_per_byte import bits_per_byte
from layerlab.cli.adapt.embeddings import embed as command
from layerlab.data.sources import Text, TextChunk
from layerlab.recipes.adaptation_sections import EmbeddingSection
from tests.adaptation.embeddings.test_resize import BASE, NEW, OLD, chosen
from tests.support.refused import refuses

TEXTS = {"own": ["abcde abc a ab", "de dede abcabc", "×× ab"]}
Tiny = Callable[..., Any]


@pytest.mark.full
def test_each_start_is_read_and_the_chosen_one_stays(tiny):
    model, alone = (tiny("llama", vocab_size=OLD, initializer_range=0.5) for _ in range(2))
    found = embed(model, BASE, NEW, TEXTS, EmbeddingSection(input="first", head="mean"))
    pairs = [(way.input, way.head) for way in found.ways]
    assert pairs[-1] == ("first", "mean") and len(set(pairs)) == len(pairs) == 7
    assert {one for one, _ in pairs} == set(STARTS) == {one for _, one in pairs}
    resize(alone, BASE, NEW, EmbeddingSection(input="first", head="mean"))
    assert torch.equal(model.lm_head.weight, alone.lm_head.weight)
    before = bits_per_byte(tiny("llama", vocab_size=OLD, initializer_range=0.5), BASE, TEXTS["own"])
    assert found.before["own"].bits_per_byte == before.bits_per_byte
    after = bits_per_byte(alone, NEW, TEXTS["own"])
    assert found.ways[-1].bits["own"].bits_per_byte == after.bits_per_byte
    costs = [way.bits["own"].bits_per_byte for way in found.ways]
    assert len(set(costs)) == 7
    assert json.loads(json.dumps(found.to_dict()))["resized"]["added"] == 4


@pytest.mark.full
def test_a_tied_head_has_four_ways_and_a_pruned_tokenizer_one(tiny):
    found = embed(tiny("gpt2", vocab_size=OLD), BASE, NEW, TEXTS)
    assert [way.input for way in found.ways] == ["mean-resizing", "first", "random", "mean"]
    letters = chosen([0, *range(1, 257)])
    assert find_kept_rows(BASE, letters) == tuple(range(257))
    found = embed(tiny("llama", vocab_size=OLD), BASE, letters, TEXTS)
    assert len(found.ways) == 1 and found.resized.dropped == OLD - 257


def test_a_model_with_a_weight_that_is_no_number_is_refused(tiny):
    model = tiny("llama", vocab_size=OLD)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.inf
    refuses("the weight model.norm.weight holds 1 of 16 numbers", embed, model, BASE, NEW, TEXTS)


def test_a_sample_is_the_beginning_of_a_text_and_no_more_is_read():
    read: list[str] = []

    def pieces() -> Iterator[TextChunk]:
        for text, first in (("ab", True), ("被", True), ("告人", False), ("never", False)):
            read.append(text)
            yield TextChunk(text, first)

    text = Text(name="law", identity="", pieces=pieces)
    assert read_sample(text, limit=10) == ["ab", "被告"] and read == ["ab", "被", "告人"]
    assert read_sample(text) == ["ab", "被告人never"]
    broken = Text(name="law", identity="", pieces=lambda: iter([TextChunk("\ud800", True)]))
    refuses("law holds half of a surrogate pair", read_sample, broken)


@pytest.fixture
def folders(tmp_path: Path, tiny: Tiny) -> Path:
    tiny("llama", vocab_size=OLD).save_pretrained(tmp_path / "model")
    BASE.save_pretrained(tmp_path / "model")
    NEW.save_pretrained(tmp_path / "words")
    (tmp_path / "text.txt").write_text("abcde abc de ab " * 20)
    return tmp_path


def called(folders: Path, **changes: Any) -> None:
    given = {
        "tokenizer": str(folders / "words"),
        "out": folders / "out",
        "text": [str(folders / "text.txt")],
        **changes,
    }
    app = typer.Typer()
    app.command()(command)
    words = [str(given.pop("model", folders / "model"))]
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{name}", *([] if one is True else [str(one)])]
    app(words, standalone_mode=False)


@pytest.mark.full
def test_the_command_writes_a_model_that_loads(folders, capsys):
    called(folders, head="first")
    said = capsys.readouterr()
    assert "261 rows are now 265" in said.out and "bits per byte" in said.out
    assert "input random, head first" in said.err
    kept = json.loads((folders / "out" / "embedding.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folders / "out").eval()
    words = AutoTokenizer.from_pretrained(folders / "out")
    found = bits_per_byte(model, words, ["abcde abc de ab " * 20])
    way = kept["ways"][-1]
    assert (way["input"], way["head"]) == ("mean", "first")
    (bits,) = way["bits"].values()
    assert bits["bits_per_byte"] == pytest.approx(found.bits_per_byte, rel=1e-6)
    called(folders, head="mean", json=True, quiet=True)  # in its own place again
    said = capsys.readouterr()
    assert json.loads(said.out)["resized"]["head"] == "mean" and said.err == ""


@pytest.mark.full
def test_a_text_that_is_read_in_place_of_another_is_called_so(folders, monkeypatch, capsys):
    monkeypatch.setenv("LAYERLAB_DATA", str(folders))
    monkeypatch.setattr(compare_inits, "read_sample", partial(read_sample, limit=5_000))
    called(folders, text=["law-zh"], tokenizer=str(folders / "model"))
    said = capsys.readouterr()
    assert "bits per byte, python-docs" in said.out and "law-zh is not here" in said.err


@pytest.mark.full
def test_what_the_command_cannot_do_is_said(folders):
    refuses("there is no tokenizer", called, folders, tokenizer=str(folders / "nothing"))
    refuses("head is 'best'; expected 'mean', 'mean-resizing'", called, folders, head="best")
    (folders / "model" / "tokenizer.json").unlink()
    (folders / "model" / "tokenizer_config.json").unlink()
    refuses("has no tokenizer of the tokenizers library beside it", called, folders)
    assert not (folders / "out").exists()
