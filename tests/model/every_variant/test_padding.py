"""Padding on the left and documents in one row change nothing for the tokens that are there."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from layerlab.system.model_cache import read_on
from tests.model.exempt import bound
from tests.model.small import TIGHT, kept, tokens

PADDING = 5
LENGTHS = (9, 1, 14)


def padded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two rows of tokens, the second with padding before it; and the mask."""
    length = x.shape[1]
    filled = torch.cat([x[:1, :PADDING], x[1:, : length - PADDING]], 1)
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, :PADDING] = 0
    return torch.cat([x[:1], filled]), mask


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("name", bound("padding"))
def test_padding_on_the_left_changes_nothing(name):
    model, x = kept(name), tokens()
    filled, mask = padded(x)
    together = model(filled, attention_mask=mask, use_cache=False).logits
    same(together[:1], model(x[:1], use_cache=False).logits)
    same(together[1:, PADDING:], model(x[1:, :-PADDING], use_cache=False).logits)
    other = filled.clone()
    other[1, :PADDING] = (other[1, :PADDING] + 1) % 61
    again = model(other, attention_mask=mask, use_cache=False).logits
    assert torch.equal(again[1:, PADDING:], together[1:, PADDING:])


@pytest.mark.parametrize("name", bound("padding"))
def test_padding_on_the_left_changes_nothing_with_a_cache(name):
    model, x = kept(name), tokens()
    filled, mask = padded(x)
    cache = DynamicCache(config=model.config)
    steps, seen = [], 0
    for piece in filled.split([7, 1, 2, 13, 1], 1):
        seen += piece.shape[1]
        given = read_on(model, piece, cache, attention_mask=mask[:, :seen])
        steps.append(given.logits)
    found = torch.cat(steps, 1)
    same(found[1:, PADDING:], model(x[1:, :-PADDING], use_cache=False).logits)


@pytest.mark.parametrize("name", bound("packing"))
def test_documents_in_one_row_are_the_same_as_each_alone(name):
    model, x = kept(name), tokens(1)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    packed = model(x, position_ids=positions, use_cache=False).logits
    alone = [model(one, use_cache=False).logits for one in x.split(LENGTHS, 1)]
    same(packed, torch.cat(alone, 1))
    plain = model(x, use_cache=False).logits
    assert not torch.allclose(packed[:, LENGTHS[0] :], plain[:, LENGTHS[0] :])
