"""A cache is given and found by the name that transformers, or a model's own code, has for it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from layerlab.system.model_cache import CACHE, NAMES, cache_name, cache_of, read_on
from tests.model.small import small


class Own(nn.Module):
    def forward(self, input_ids, past_key_values=None, use_cache=False):
        return SimpleNamespace(past_key_values=past_key_values, logits=input_ids)


def test_code_that_a_model_brings_along_keeps_the_older_name():
    cache = DynamicCache()
    assert cache_name(Own()) == "past_key_values" and cache_name(nn.Linear(1, 1)) is None
    assert cache_of(read_on(Own(), torch.zeros(1, 1), cache)) is cache
    assert cache_of(SimpleNamespace(logits=0)) is None


@pytest.mark.parametrize("name", NAMES)
def test_our_models_take_a_cache_by_either_name(name):
    model, ids = small("llama"), torch.arange(12)[None] % 7
    cache = DynamicCache(config=model.config)
    model(ids[:, :8], use_cache=True, **{name: cache})
    found = model(ids[:, 8:], use_cache=True, **{name: cache})
    assert cache_of(found) is cache and cache.get_seq_length() == 12 and CACHE in found
    torch.testing.assert_close(found.logits, model(ids, use_cache=False).logits[:, 8:])
