"""What a variant carries across layers and keeps in a cache: as much as its account says."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from layerlab.model.cost.cost import account
from layerlab.system.model_cache import read_on
from tests.model.exempt import bound
from tests.model.small import small, tokens
from tests.variants.option import carried


def most_carried(name: str, layers: int) -> tuple[int, int]:
    """Numbers per token that a layer hands on beside the stream, at most: found, and accounted."""
    model = small(name, layers=layers)
    sizes = carried(model, tokens(1, 3))
    assert len(sizes) == layers
    return max(sizes), account(model.config.parse_spec(), model.config.shape()).carry


@pytest.mark.few(3)
@pytest.mark.parametrize("name", bound("memory"))
def test_what_is_carried_does_not_grow_with_depth(name):
    (few, said), (many, _) = most_carried(name, 8), most_carried(name, 16)
    assert few == many
    assert few <= said


def test_what_mixes_all_layers_keeps_them_and_says_so():
    for name in ("attention-residuals", "denseformer"):
        (few, less), (many, more) = most_carried(name, 3), most_carried(name, 9)
        assert few < many and less < more
        assert few <= less and many <= more


CACHED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("canon", {}),
    ("canon", {"places": "bd", "kernel": 2, "kv_heads": 2}),
    ("siaf-2", {"form": "convolution"}),
    ("siaf-3", {"form": "convolution", "granularity": "scalar"}),
    ("canon", {"sharing": "blocks"}),
]


@pytest.mark.parametrize(("name", "options"), CACHED)
@pytest.mark.parametrize("length", [5, 11])
def test_a_cache_keeps_beside_keys_and_values_what_the_account_says(name, options, length):
    model = small(name, **options)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        read_on(model, tokens(2, length), cache)
    past = [state for layer in cache.layers for state in getattr(layer, "conv_states", {}).values()]
    assert bool(past) == (name != "llama")
    said = account(model.config.parse_spec(), model.config.shape()).cached
    assert sum(one.numel() for one in past) == 2 * said  # for both of the sequences
