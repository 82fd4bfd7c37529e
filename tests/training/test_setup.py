"""What a run is made of: an attention that is not installed is named."""

import importlib.util

import pytest

from layerlab import UserError
from layerlab.model.build import build
from layerlab.training.setup import set_attention


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
