"""Pictures of matrices: what is lost is bounded, and so is their size."""

import base64
import zlib

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.measures.support.saliency.heatmap import CELLS, bin_channels, pack_bytes, room


@settings(max_examples=60, deadline=None)
@given(width=st.integers(1, 40), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_bins_keep_the_sum_and_differ_by_one_channel_at_most(width, share, seed):
    bins = max(1, round(share * width))
    matrix = torch.randn(3, width, generator=torch.Generator().manual_seed(seed)).double()
    sizes = torch.tensor([len(part) for part in _places(width, bins)])
    assert sizes.max() - sizes.min() <= 1 and sizes.sum() == width
    whole = (bin_channels(matrix, bins) * sizes).sum(1)
    torch.testing.assert_close(whole, matrix.abs().sum(1))


def _places(width: int, bins: int) -> list[list[int]]:
    return [[c for c in range(width) if c * bins // width == one] for one in range(bins)]


@settings(max_examples=60, deadline=None)
@given(layers=st.integers(1, 120), tokens=st.integers(1, 4096), bins=st.integers(1, 64))
def test_a_picture_fits_and_has_both_ends(layers, tokens, bins):
    kept, left = room(list(range(layers)), tokens, bins)
    assert 1 <= left <= bins and kept == sorted(set(kept))
    assert kept[0] == 0 and kept[-1] == layers - 1
    assert len(kept) * tokens * left <= CELLS or (len(kept) <= 2 and left <= 8)


def test_layers_are_left_out_only_where_eight_bins_of_each_do_not_fit():
    assert room(range(40), 512, 64) == ([*range(40)], CELLS // (40 * 512))
    assert room(range(5), CELLS // 8, 64) == ([0, 4], 8)


@given(peak=st.floats(1e-30, 1e30), share=st.floats(0, 1))
def test_a_byte_is_the_root_of_a_share(peak, share):
    image = torch.tensor([[peak, share * peak]], dtype=torch.float64)
    top, cell = zlib.decompress(base64.b64decode(pack_bytes(image, peak)))
    assert top == 255 and abs(cell / 255 - share**0.5) <= 0.5 / 255 + 1e-6


def test_a_picture_of_nothing_is_empty():
    assert not any(zlib.decompress(base64.b64decode(pack_bytes(torch.zeros(2, 2), 0.0))))
    hole = torch.tensor([[torch.nan, 1.0]])
    assert zlib.decompress(base64.b64decode(pack_bytes(hole, 1.0))) == b"\x00\xff"
