"""What a run is made of: an attention that is not installed is named, compiled code is ours."""

import importlib.util
import os

import pytest
import torch

from layerlab.model.build import build
from layerlab.system.hardware import COMPILED
from layerlab.training.run_spec import RunSpec
from layerlab.training.setup import build_model, set_attention
from tests.support.forked import python
from tests.support.refused import refuses
from tests.training.support.planned import recipe

# Two models, as in lockstep, of which each layer is a graph of its own in each shape of a batch.
GRAPHS = """
import sys
from pathlib import Path
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from tests.training.test_trainer import begun

calls = []

def backend(graph, inputs):
    def run(*given):
        calls.append(graph)
        return graph(*given)
    return run

inductor = torch.nn.Module.compile
torch.nn.Module.compile = lambda layer, **given: inductor(layer, backend=backend, **given)
names = "denseformer", "attention-residuals"
trainings = [
    begun(Path(sys.argv[1]) / name, **{"model.variant": name, "train.torch_compile": True})
    for name in names
]
for training in trainings:
    calls.clear()
    training.advance()
    assert len(calls) == 2, len(calls)
try:
    with torch._dynamo.config.patch(recompile_limit=1):
        training.model(torch.zeros(5, 7, dtype=torch.long))
except FailOnRecompileLimitHit:
    print("refused")
"""


@pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is installed here"
)
def test_an_attention_that_is_not_installed_is_refused():
    model = build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
    said = r"train.attn_implementation is 'flash_attention_2', which cannot be had here: .*; write"
    refuses(said, set_attention, model, "flash_attention_2")
    set_attention(model, "eager")
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("train", "before", "kept"),
    [
        ({"torch_compile": True}, "", "inductor"),
        ({"attn_implementation": "flex_attention"}, "/tmp/torchinductor_me", "inductor"),
        ({"torch_compile": True}, "/elsewhere/compiled", None),
        ({}, "/tmp/torchinductor_me", None),
    ],
)
def test_compiled_code_lies_where_no_other_user_can_put_any(
    train, before, kept, tmp_path, monkeypatch
):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    monkeypatch.setenv(COMPILED, before)
    if not before:
        monkeypatch.delenv(COMPILED)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *_, **given: None)  # it takes seconds
    one = recipe({"vocab": 300}, train={"max_steps": 1, **train})
    build_model(RunSpec(arm="llama", recipe=one, digest=""), torch.device("cpu"))
    assert os.environ[COMPILED] == (before if kept is None else str(tmp_path / kept))


@pytest.mark.full
def test_every_layer_of_all_models_of_a_process_stays_compiled_or_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    done = python("-c", GRAPHS, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "refused\n"
