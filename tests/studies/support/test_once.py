"""Batches side by side: what they share is made once, and models are loaded one at a time."""

import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from layerlab.loading.model import load_model
from layerlab.model.build import build
from layerlab.studies.support.once import compute_once
from tests.cli.several import several

SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 32, "context": 16}


def together(*makers):
    """What each gives, all begun at one moment."""
    ready = Barrier(len(makers))

    def begun(make):
        ready.wait()
        return make()

    with ThreadPoolExecutor(len(makers)) as pool:
        return list(pool.map(begun, makers))


def test_what_two_ask_for_at_once_is_made_once():
    made = []

    @compute_once
    def slow(name):
        time.sleep(0.05)
        made.append(name)
        return object()

    first, second = together(lambda: slow("a"), lambda: slow("a"))
    assert first is second and made == ["a"]
    assert slow("b") is not first and slow.__name__ == "slow"


def test_what_is_of_a_model_goes_with_it():
    class Model:
        pass

    made = []

    @compute_once
    def read(name, own=None):
        made.append(name)
        return [name]

    one, other = Model(), Model()
    first = read("a", one)
    assert read("a", one) is first is not read("a", other) and read("a") is read("a")
    seen = weakref.ref(one)
    del one
    assert seen() is None and made == ["a", "a", "a"]


def test_what_could_not_be_made_is_tried_again():
    tried = []

    @compute_once
    def broken():
        tried.append(1)
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            broken()
    assert len(tried) == 2


@pytest.mark.full
def test_models_loaded_and_built_at_once_are_what_they_are_alone():
    def numbers(model):
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    makers = [
        lambda: load_model("llama").model,
        lambda: build("llama", **SIZES),
        lambda: load_model("pre-norm").model,
        lambda: build("gpt2", **SIZES),
    ]
    alone = [numbers(make()) for make in makers]
    for _ in range(3):
        for one, found in zip(alone, together(*makers), strict=True):
            assert torch.equal(one, numbers(found))


@pytest.mark.full
def test_a_study_reads_its_models_in_two_threads(tmp_path):
    words = ("study", "unit-ball", "--fast", "--draws", "4", "--threads", "2", "-q")
    (found,) = several([(*words, "--out", str(tmp_path / "out"))], tmp_path)
    assert found.code == 0 and found.error == ""
