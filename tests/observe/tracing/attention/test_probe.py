"""Implementations of attention are put back, in each part of a model."""

import pytest

from layerlab.observe.tracing.attention.probe import replacing_kernels
from tests.families.recipe import build


def implementations(model):
    parts = model.config, model.config.text_config, model.config.vision_config
    return [one._attn_implementation for one in parts]


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        (["flex_attention", "flex_attention", "eager"], ["sdpa", "sdpa", "eager"]),
        (["sdpa", "flex_attention", "eager"], ["sdpa", "sdpa", "eager"]),
        (["flex_attention", "eager", "sdpa"], ["sdpa", "eager", "sdpa"]),
    ],
)
def test_parts_with_implementations_of_their_own_keep_them(given, replaced):
    model = build("gemma3")
    names = ("", "text_config", "vision_config")
    model.config._attn_implementation = dict(zip(names, given, strict=True))
    with replacing_kernels(model):
        assert implementations(model) == replaced
    assert implementations(model) == given
