"""GGUF files: the numbers that their blocks stand for, unpacked once."""

import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import layerlab
from layerlab import UserError
from layerlab.loading.model import load_model
from tests.support.gguf_file import TOKENS, write_gguf
from tests.support.refused import refuses

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, tie_word_embeddings=False)).eval()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "BF16"])
def test_weights_are_the_numbers_of_their_blocks(model, kind, tmp_path):
    file = tmp_path / f"small-{kind}.gguf"
    kept = write_gguf(model, file, kind)
    found = load_model(str(file))
    read = found.model.state_dict()
    assert read.keys() == kept.keys() and found.name == file.name
    for name, weight in kept.items():
        assert torch.equal(read[name], torch.from_numpy(weight)), name
    model.load_state_dict({name: torch.from_numpy(one) for name, one in kept.items()})
    tokens = torch.arange(3, 23)[None]
    torch.testing.assert_close(found.model(tokens).logits, model(tokens).logits)
    letters = found.tokenizer.convert_ids_to_tokens(range(3, 3 + len(TOKENS)))
    assert letters == TOKENS


@pytest.mark.full
def test_a_file_is_unpacked_once_and_again_where_it_changes(model, tmp_path, cache, caplog):
    file = tmp_path / "small.gguf"
    write_gguf(model, file, "Q8_0")
    for _ in range(2):
        found = layerlab.inspect(file, weights=True, progress=False)
        assert set(found.frames["matrices"].layer) == {-1, 0, 1, 2}
    assert caplog.text.count("is unpacked once") == 1
    write_gguf(model, file, "Q4_0")
    layerlab.inspect(file, weights=True, progress=False)
    assert caplog.text.count("is unpacked once") == 2
    assert len(list(cache.glob("gguf/small-*/config.json"))) == 2


@pytest.mark.parametrize("kept", [0, 3, 3000, -1000])
def test_a_file_that_is_cut_off_is_refused_and_leaves_nothing(model, kept, tmp_path, cache):
    file = tmp_path / "small.gguf"
    write_gguf(model, file, "Q8_0")
    file.write_bytes(file.read_bytes()[:kept])
    refuses("small.gguf is no GGUF model that transformers reads: ", load_model, str(file))
    assert not list(cache.glob("gguf/*"))


def test_what_a_folder_holds_in_place_of_a_model_is_named(model, tmp_path):
    write_gguf(model, tmp_path / "small.gguf", "Q8_0")
    refuses("has no config.json; .*: type .*small.gguf", load_model, str(tmp_path))
    model.config.save_pretrained(tmp_path)
    refuses("has a config.json but no weights; .*: type .*small.gguf", load_model, str(tmp_path))
    (tmp_path / "__0_0.distcp").touch()
    refuses("has the parts of processes .*accelerate merge-weights", load_model, str(tmp_path))


def test_without_its_package_a_line_says_what_to_type(model, tmp_path, monkeypatch):
    file = tmp_path / "small.gguf"
    write_gguf(model, file, "Q8_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    from transformers import modeling_gguf_pytorch_utils as reader

    monkeypatch.setattr(reader, "is_gguf_available", lambda: False)
    with pytest.raises(UserError, match=r"package gguf, which is not installed.*pip install gguf"):
        load_model(str(file))
