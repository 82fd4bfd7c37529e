import hashlib
import json
import threading
import time

import pytest
import torch
from transformers import CTRLTokenizer

import layerlab
from layerlab import UserError
from layerlab.evaluation.harness.cache import describe_tokenizer
from layerlab.loading.model import load_model
from layerlab.loading.weights import hash as module
from layerlab.loading.weights.hash import hash_tensors, hash_tokenizer, hashing, weights_hash
from tests.observe.architecture.packed_tensor import pack


@pytest.fixture
def saved(tiny, tmp_path):
    folder = tmp_path / "model"
    tiny("llama").save_pretrained(folder)
    return folder


def test_the_hash_follows_the_weights(saved, tiny):
    stored = load_model(str(saved)).model
    before = weights_hash(saved, stored)
    assert weights_hash(saved, stored) == before
    changed = tiny("llama")
    changed.model.norm.weight.data[0] = 2
    memory = [weights_hash(None, model) for model in (tiny("llama"), tiny("llama"), changed)]
    assert memory[0] == memory[1] != memory[2]
    changed.save_pretrained(saved)
    assert weights_hash(saved, stored) != before


def test_the_hash_follows_the_numbers_of_a_weight_that_is_packed():
    weight = torch.arange(6.0).view(2, 3)
    one, other, same = pack(weight), pack(weight + 1), pack(2 * weight)
    found = [hash_tensors([("a", each)]) for each in (one, pack(weight), other, same)]
    assert found[0] == found[1] and len(set(found)) == 3


def test_the_hash_follows_the_names_of_tensors_and_not_their_order():
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    found = hash_tensors([("a", one), ("b", two)])
    assert hash_tensors([("b", two), ("a", one)]) == found
    others = ([("a", two), ("b", one)], [("a", one), ("c", two)])
    assert found not in [hash_tensors(other) for other in others]
    assert hash_tensors([("a", one), ("b", two.to("meta"))]) is None


@pytest.fixture
def threads(monkeypatch):
    found = []

    class Watched:
        def __getattr__(self, name):
            found.append(threading.current_thread())
            return getattr(hashlib, name)

    monkeypatch.setattr(module, "hashlib", Watched())
    return found


def test_weights_are_hashed_by_a_thread_of_its_own(saved, tiny, threads):
    for folder in (saved, None):
        expected = weights_hash(folder, tiny("llama"))
        threads.clear()
        with hashing(folder, tiny("llama")) as digest:
            assert digest() == expected
        assert threads and threading.main_thread() not in threads


def test_weights_that_are_written_to_meanwhile_are_hashed_as_they_are_when_asked(tiny):
    for changed in (tiny("llama"), _inferring(tiny)):
        with hashing(None, changed) as digest, torch.inference_mode():
            time.sleep(0.05)  # the first hash is done
            changed.model.norm.weight[0] = 2
            assert digest() == weights_hash(None, changed)


def _inferring(tiny):
    with torch.inference_mode():
        return tiny("llama")


def test_weights_that_a_pass_moves_are_hashed_as_they_were(tiny):
    model = tiny("llama")
    expected = weights_hash(None, model)
    with hashing(None, model) as digest:
        for parameter in model.parameters():
            parameter.data = torch.zeros_like(parameter)
        assert digest() == expected


def test_a_hash_that_nobody_waits_for_any_more_stops(saved, tiny, monkeypatch):
    pieces, asked = [], []
    monkeypatch.setattr(module, "PIECE", 1)
    with hashing(None, tiny("llama")):
        began = time.monotonic()
    assert time.monotonic() - began < 1  # and not after every byte

    def hash_slowly(folder, model, stopped):
        def stopped_later():  # three pieces are read, and then it is waited for
            asked.append(0)
            while len(asked) > 3 and not stopped():
                time.sleep(0.001)
            return len(asked) > 3

        pieces.append(weights_hash(folder, model, stopped_later))

    monkeypatch.setattr(module, "weights_hash", hash_slowly)
    with pytest.raises(UserError), hashing(saved, tiny("llama")):
        raise UserError("no")
    (file, *_) = sorted(saved.glob("*.safetensors"))
    read = hashlib.sha256(file.read_bytes()[:3]).hexdigest()
    assert pieces == [f"sha256:files:{read}"]  # a part of the weights only


def test_a_report_names_the_hash_of_the_folder(saved):
    report = layerlab.inspect(
        str(saved), input_ids=[[1, 2, 3]], measures=["stream"], progress=False
    )
    (card,) = report.models
    assert card["weights_hash"] == weights_hash(saved, load_model(str(saved)).model)


def ctrl(folder, *merges, **options):
    vocabulary = ["<unk>", "a", "b", "c", "a@@", "b@@", "ab@@", "bc", "abc", "c@@", "ab"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({one: n for n, one in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return CTRLTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), **options)


def test_the_hash_of_a_tokenizer_in_python_follows_its_merges_and_options(tmp_path):
    joined = ctrl(tmp_path / "one", "a b", "ab c</w>")
    other = ctrl(tmp_path / "two", "b c</w>")
    assert joined.get_vocab() == other.get_vocab()
    assert joined.tokenize("abc") != other.tokenize("abc")
    apart = ctrl(tmp_path / "one", "a b", "ab c</w>", split_special_tokens=True)
    assert len({hash_tokenizer(one) for one in (joined, other, apart)}) == 3
    assert len({describe_tokenizer(one) for one in (joined, other, apart)}) == 3
    again = ctrl(tmp_path / "three", "a b", "ab c</w>")
    again.tokenize("abc")
    assert hash_tokenizer(again) == hash_tokenizer(joined)


class Wordless(CTRLTokenizer):
    def save_vocabulary(self, save_directory, filename_prefix=None):
        raise self.fault


def test_a_tokenizer_that_saves_nothing_is_known_by_the_rest_and_a_fault_is_told(tmp_path):
    ctrl(tmp_path / "one", "a b")
    given = [str(tmp_path / "one" / name) for name in ("vocab.json", "merges.txt")]
    saving, silent = Wordless(*given), Wordless(*given, split_special_tokens=True)
    saving.fault = silent.fault = NotImplementedError()
    assert hash_tokenizer(saving) != hash_tokenizer(silent)
    saving.fault = AttributeError("of its own")
    with pytest.raises(AttributeError, match="of its own"):
        hash_tokenizer(saving)
