"""Blocks that share a scale, against gfloat and against the words of their definition."""

import math

import gfloat
import pytest
import torch
from gfloat import formats
from torch import Tensor

from layerlab.numerics.formats.formats import BLOCKS
from layerlab.numerics.formats.round import round_to
from tests.support.live_bytes import live_bytes

MX = {
    "mxfp8_e4m3": formats.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": formats.format_info_mxfp8_e5m2,
    "mxfp6_e2m3": formats.format_info_mxfp6_e2m3,
    "mxfp6_e3m2": formats.format_info_mxfp6_e3m2,
    "mxfp4": formats.format_info_mxfp4_e2m1,
}


def spread(*shape: int) -> Tensor:
    """Numbers of many sizes; a generator of its own keeps them the same."""
    generator = torch.Generator().manual_seed(2)
    scales = torch.exp2(torch.randint(-90, 90, (*shape[:-1], 1), generator=generator).float())
    return torch.randn(*shape, generator=generator) * scales


@pytest.mark.parametrize("name", MX)
def test_blocks_are_those_of_gfloat(name):
    x = spread(40, 32)
    for row, ours in zip(x, round_to(x, name), strict=True):
        theirs = gfloat.quantize_block(MX[name], row.double().numpy(), gfloat.compute_scale_amax)
        assert ours.tolist() == theirs.tolist()


def test_mxint8_is_whole_numbers_times_a_power_of_two():
    x = torch.cat([spread(40, 32), torch.linspace(-1.999, 1.999, 32 * 64).view(-1, 32)])
    scales = torch.exp2(x.double().abs().amax(-1, keepdim=True).log2().floor()) / 64
    expected = (x / scales).round().clamp(-127, 127) * scales
    assert torch.equal(round_to(x.double(), "mxint8"), expected)
    info = formats.format_info_mxint8
    rows = [
        gfloat.quantize_block(info, one.numpy(), gfloat.compute_scale_amax) for one in x.double()
    ]
    theirs = torch.stack(list(map(torch.from_numpy, rows)))
    least = theirs <= -128 * scales  # which gfloat takes
    assert bool(least.any()) and torch.equal(theirs[~least], expected[~least])


def nvfp4(values: list[list[float]]) -> list[list[float]]:
    """Blocks of sixteen, one value at a time."""
    peak = max(abs(value) for block in values for value in block)
    whole = float(torch.tensor(peak / (6 * 448)))  # to float32
    found = []
    for block in values:
        raw = torch.tensor(max(map(abs, block)) / 6 / whole, dtype=torch.float64)
        scale = float(round_to(raw, "fp8_e4m3")) * whole
        elements = torch.tensor([value / scale for value in block], dtype=torch.float64)
        found.append([float(one) * scale for one in round_to(elements, "fp4_e2m1")])
    return found


def test_nvfp4_has_a_scale_for_each_block_under_one_for_all():
    x = torch.randn(12, 16, dtype=torch.float64) * torch.linspace(0.1, 9, 12)[:, None]
    assert round_to(x, "nvfp4").tolist() == nvfp4(x.tolist())
    assert torch.equal(round_to(x.view(3, 64), "nvfp4"), round_to(x, "nvfp4").view(3, 64))


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_lie_along_the_last_axis_and_the_last_may_be_short(name):
    size = BLOCKS[name].size
    x = torch.randn(2, 3, 2 * size + 5)
    whole = round_to(x, name)
    assert whole.shape == x.shape
    if name != "nvfp4":  # whose blocks share a scale of the tensor
        for start in range(0, x.shape[-1], size):
            piece = slice(start, start + size)
            assert torch.equal(round_to(x[..., piece], name), whole[..., piece])
    assert torch.equal(round_to(x.transpose(0, 1), name), whole.transpose(0, 1))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_a_large_table_is_rounded_a_few_rows_at_a_time(name):
    x = torch.randn(6000, 400)
    with live_bytes([x]) as counted:
        whole = round_to(x, name)
    assert counted.peak < 4 * x.nbytes  # float64 alone takes twice its bytes, several times
    x[:3000] = x.abs().max()
    assert torch.equal(round_to(x, name)[3000:], whole[3000:])
    assert torch.equal(round_to(x, name, out=x)[3000:], whole[3000:])


@pytest.mark.parametrize("name", BLOCKS)
def test_rounding_blocks_again_changes_nothing(name):
    once = round_to(spread(20, 64) if name != "nvfp4" else torch.randn(20, 64), name)
    if name == "nvfp4":  # its first scale is rounded to float32, and may move a little
        torch.testing.assert_close(round_to(once, name), once, rtol=2.0**-22, atol=0)
    else:
        assert torch.equal(round_to(once, name), once)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BLOCKS)
def test_odd_values_and_shapes(name, dtype):
    limits = torch.finfo(dtype)
    zeros = torch.zeros(2, 40, dtype=dtype)
    assert torch.equal(round_to(zeros, name), zeros)
    assert round_to(zeros[:0], name).shape == (0, 40)
    assert float(round_to(torch.tensor(0.75, dtype=dtype), name)) == pytest.approx(0.75, rel=0.07)
    tiny = torch.full((32,), limits.smallest_normal, dtype=dtype)
    assert bool(round_to(tiny, name).isfinite().all())
    large = torch.full((32,), limits.max, dtype=dtype)
    assert bool(round_to(large, name).isfinite().all())
    mixed = torch.tensor([math.inf, -math.inf, math.nan, *[1.0] * 29], dtype=dtype)
    found = round_to(mixed, name)
    assert bool(found[2].isnan()) and bool(found[[0, 1, *range(3, 32)]].isfinite().all())
    assert found[3:].tolist() == pytest.approx([1.0] * 29, rel=0.01)
    assert found[0] >= 1 and found[1] <= -1


@pytest.mark.parametrize("mode", ["up", "down", "zero", "stochastic"])
def test_modes_go_where_they_say(mode):
    x = torch.randn(30, 32)
    # Elements only: what is above the largest of a block saturates in every mode.
    x = x.clamp(-1.5, 1.5)
    x[:, 0] = 1.5
    found = round_to(x, "mxfp4", mode, torch.Generator().manual_seed(0))
    wrong = {"up": found < x, "down": found > x, "zero": found.abs() > x.abs()}
    assert not bool(wrong.get(mode, (found - x).abs() > 0.5).any())
    assert not torch.equal(found, round_to(x, "mxfp4"))


def test_gradient_passes_straight_through():
    x = torch.randn(40, requires_grad=True)
    round_to(x, "mxfp8_e4m3").sum().backward()
    assert torch.equal(x.grad, torch.ones(40))
