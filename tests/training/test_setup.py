"""What a run is made of: an attention that is not installed is named."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from layerlab import UserError
from layerlab.experiments.plan.plan import plan
from layerlab.model.build import build
from layerlab.training.setup import build_model, set_attention
from tests.training.planned import EXTENT, recipe


@pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is installed here"
)
def test_an_attention_that_is_not_installed_is_refused() -> None:
    model = build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
    said = r"train.attn_implementation is 'flash_attention_2', which cannot be had here: .*; write"
    with pytest.raises(UserError, match=said):
        set_attention(model, "flash_attention_2")
    set_attention(model, "eager")
    assert model.config._attn_implementation == "eager"


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of PyTorch's own import
def test_compiled_code_lies_where_no_other_user_can_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    given = recipe(train={"max_steps": 1, "torch_compile": True}, compare={"arms": ["llama"]})
    build_model(plan(given, EXTENT)[0], torch.device("cpu"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "torchinductor")
