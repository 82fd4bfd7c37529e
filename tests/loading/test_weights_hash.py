import hashlib
import threading
import time

import pytest

import layerlab
from layerlab import UserError
from layerlab.loading import weights_hash as module
from layerlab.loading.model import subject
from layerlab.loading.weights_hash import hashing, weights_hash


@pytest.fixture
def saved(tiny, tmp_path):
    folder = tmp_path / "model"
    tiny("llama").save_pretrained(folder)
    return folder


def test_the_hash_follows_the_weights(saved, tiny):
    stored = subject(str(saved)).model
    before = weights_hash(saved, stored)
    assert weights_hash(saved, stored) == before
    changed = tiny("llama")
    changed.model.norm.weight.data[0] = 2
    memory = [weights_hash(None, model) for model in (tiny("llama"), tiny("llama"), changed)]
    assert memory[0] == memory[1] != memory[2]
    changed.save_pretrained(saved)
    assert weights_hash(saved, stored) != before


def test_a_folder_is_hashed_by_a_thread_of_its_own_and_memory_when_asked(saved, tiny, monkeypatch):
    threads = []
    plain = module.weights_hash

    def watched(*args):
        threads.append(threading.current_thread())
        return plain(*args)

    monkeypatch.setattr(module, "weights_hash", watched)
    with hashing(saved, tiny("llama")) as digest:
        assert digest() == plain(saved, tiny("llama"))
    assert threads[0] is not threading.main_thread()
    with hashing(None, tiny("llama")) as digest:
        assert digest() == plain(None, tiny("llama"))
    assert threads[1] is threading.main_thread()


def test_a_hash_that_nobody_waits_for_any_more_stops(saved, tiny, monkeypatch):
    pieces, asked = [], []
    monkeypatch.setattr(module, "PIECE", 1)

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
    assert card["weights_hash"] == weights_hash(saved, subject(str(saved)).model)
