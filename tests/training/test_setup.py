"""What a run is made of: an attention that is not installed is named, compiled code is ours."""

import importlib.util
import os

import pytest
import torch

from layerlab import UserError
from layerlab.model.build import build
from layerlab.system.hardware import COMPILED
from layerlab.training.run_spec import RunSpec
from layerlab.training.setup import build_model, set_attention
from tests.training.support.planned import recipe


@pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is installed here"
)
def test_an_attention_that_is_not_installed_is_refused():
    model = build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
    said = r"train.attn_implementation is 'flash_attention_2', which cannot be had here: .*; write"
    with pytest.raises(UserError, match=said):
        set_attention(model, "flash_attention_2")
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
