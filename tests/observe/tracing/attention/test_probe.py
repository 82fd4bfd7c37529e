"""A call is held against what came of it, and implementations are put back in each part."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from layerlab.observe.architecture.structure import AttentionPart
from layerlab.observe.tracing.attention.probe import (
    AttentionCall,
    _is_causal,
    _is_score,
    _join,
    replacing_kernels,
)
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


MASK = torch.ones(1, 6, 6, dtype=torch.bool).tril()


def call(output: Tensor | None = None, **given: Any) -> AttentionCall:
    """Return a call on drawn factors, whose output is torch's own unless it is given."""
    query, key, value = torch.randn(3, 1, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    if output is None:
        mask = given.get("mask")
        output = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
    part: Any = AttentionPart.__new__(AttentionPart)
    object.__setattr__(part, "block", 0)
    object.__setattr__(part, "name", "attention")
    own = {"scaling": 0.5, "query": query, "key": key, "value": value}
    return AttentionCall(part=part, output=output.transpose(1, 2), **{**own, **given})


def test_a_call_has_a_fault_where_its_output_is_another():
    right = call().output
    assert right is not None and call().fault() is None
    for row in (0, 5):
        wrong = right.transpose(1, 2).clone()
        wrong[0, 1, row] += 0.01
        assert "it is not plain attention" in str(call(wrong).fault())
    assert "one row per token and head" in str(call(right).fault())
    # What is no number is told elsewhere.
    assert call(right.transpose(1, 2) * torch.nan).fault() is None


def test_a_mask_is_added_to_what_positions_add():
    bias = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(1))
    low = torch.zeros(MASK.shape).masked_fill(~MASK, -torch.inf)
    longer = torch.cat([MASK, ~MASK], -1)  # of a cache with more places than keys
    for mask in (MASK, low, longer):
        assert torch.equal(_join(mask, bias, 6), bias + low)  # type: ignore[arg-type]
    assert torch.equal(_join(longer, None, 6), MASK)  # type: ignore[arg-type]
    assert _join(None, bias, 6) is bias and _join(None, None, 6) is None


def test_weights_are_causal_where_no_token_draws_on_a_later_one():
    weights = torch.ones(1, 1, 3, 5)
    assert _is_causal(weights.tril(2)) and not _is_causal(weights.tril(3))
    assert _is_causal(torch.ones(1, 3, 3).tril()) and not _is_causal(torch.ones(1, 3, 3).tril(1))


def test_scores_have_as_many_keys_as_rows_or_more():
    for shape in ((2, 3, 3), (1, 2, 3, 5)):
        assert _is_score(torch.ones(shape))
    for shape in ((3, 3), (2, 4, 3), (1, 2, 1, 5), (1, 1, 2, 3, 3)):
        assert not _is_score(torch.ones(shape))
