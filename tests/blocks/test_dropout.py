"""Masks by name: their rate, their independence, and what they are a function of."""

import math

import pytest
import torch

from layerlab.blocks.dropout import Dropout, bits, key_of, mix_bits, streams, words


def masks(rows: int = 64, *, site: str = "layers.0.ffn", update: int = 0, first: int = 0):
    """What is kept of ones, 32 x 64 entries a row."""
    drop = Dropout(0.25, site).train()
    drop.key = torch.tensor(key_of(7, update, first), dtype=torch.int32)
    return drop(torch.ones(rows, 32, 64))


def test_without_a_key_it_is_torch_s():
    x = torch.randn(4, 8, 16)
    drop = Dropout(0.3, "here").train()
    torch.manual_seed(3)
    mine = drop(x)
    torch.manual_seed(3)
    assert torch.equal(mine, torch.dropout(x, 0.3, True))
    assert torch.equal(drop.eval()(x), x)


def test_a_key_means_nothing_in_evaluation_or_at_rate_0():
    x = torch.randn(2, 3, 4)
    for drop in (Dropout(0.5, "here").eval(), Dropout(0.0, "here").train()):
        drop.key = torch.tensor(key_of(0, 0, 0), dtype=torch.int32)
        assert torch.equal(drop(x), x)


def test_rate_and_scale_are_right():
    kept = masks()
    share = float((kept == 0).double().mean())
    sigma = math.sqrt(0.25 * 0.75 / kept.numel())
    assert abs(share - 0.25) < 4 * sigma
    assert set(kept.unique().tolist()) == {0.0, float(torch.tensor(1.0) * (1 / 0.75))}


@pytest.mark.parametrize("other", [{"site": "layers.1.ffn"}, {"update": 1}, {"first": 64}])
def test_masks_of_other_sites_updates_and_rows_are_independent(other):
    one, two = masks() == 0, masks(**other) == 0
    both = float((one & two).double().mean())
    sigma = math.sqrt(0.0625 * 0.9375 / one.numel())
    assert abs(both - 0.0625) < 4 * sigma


def test_rows_and_neighbours_are_independent():
    dropped = (masks() == 0).double().flatten(1) - 0.25
    between = torch.corrcoef(dropped)
    off = between[~torch.eye(len(between), dtype=torch.bool)]
    assert float(off.abs().max()) < 5 / math.sqrt(dropped.shape[1])
    for lag in (1, 2, 64, 1024):
        shifted = (dropped[:, lag:] * dropped[:, :-lag]).mean() / (0.25 * 0.75)
        assert abs(float(shifted)) < 4 / math.sqrt(dropped.numel())


def test_a_row_s_mask_does_not_know_its_batch():
    whole = masks(8)
    assert torch.equal(whole[3:5], masks(2, first=3))


def test_bits_are_uniform_whatever_the_shape():
    x = torch.empty(3, 5, 7)  # 35 is odd: half of the last word is left over
    key = torch.tensor(key_of(1, 2, 0), dtype=torch.int32)
    assert bits(streams(key, words("a"), x), x.shape).shape == x.shape
    many = bits(streams(key, words("a"), torch.empty(1, 1)), torch.Size([1, 1 << 20])).double()
    assert abs(float(many.mean()) + 0.5) < 4 * 18918 / 1024
    counts = torch.histc(many, bins=64).double()
    expected = many.numel() / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 63 + 4 * math.sqrt(126)


def test_mixing_is_a_bijection_that_spreads_each_bit():
    x = torch.arange(1 << 16, dtype=torch.int32)
    assert len(mix_bits(x).unique()) == len(x)
    for bit in range(31):
        flipped = mix_bits(x) ^ mix_bits(x ^ (1 << bit))
        share = torch.stack([(flipped >> at) & 1 for at in range(32)]).double().mean(1)
        assert float((share - 0.5).abs().max()) < 0.06


def test_the_gradient_is_the_mask():
    drop = Dropout(0.5, "here").train()
    drop.key = torch.tensor(key_of(0, 0, 0), dtype=torch.int32)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(drop(x).sum(), x)
    assert torch.equal(gradient, drop(torch.ones_like(x)))
