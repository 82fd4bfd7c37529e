"""Whole numbers with a scale, against torch's own and against the words of their definition."""

import math

import pytest
import torch
from torch import Tensor

from layerlab import UserError
from layerlab.numerics.formats.formats import Integer, find
from layerlab.numerics.formats.grid import MODES
from layerlab.numerics.formats.round import round_to

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def literal(values: list[float], format: Integer) -> list[float]:
    """One scale for these values, one value at a time; Python rounds ties to even."""
    if format.full:  # as GPTQ's code has it
        steps, zero = 2**format.bits - 1, 2 ** (format.bits - 1)
        scale = 2 * max(map(abs, values)) / steps or 1.0
        stored = [min(max(round(value / scale) + zero, 0), steps) for value in values]
        return [scale * (one - zero) for one in stored]
    if format.symmetric:
        most = 2 ** (format.bits - 1) - 1
        scale = max(map(abs, values)) / most or 1.0
        return [scale * round(value / scale) for value in values]
    steps = 2**format.bits - 1
    low, high = min(0.0, *values), max(0.0, *values)
    scale = (high - low) / steps or 1.0
    zero = round(-low / scale)
    return [scale * (min(max(round(value / scale) + zero, 0), steps) - zero) for value in values]


@pytest.mark.parametrize("symmetry", ["symmetric", "asymmetric", "full"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_tensor_a_channel_and_a_group_share_a_scale(bits, symmetry):
    x = torch.randn(3, 4, 20, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.1])[:, None, None]
    shares = {
        "tensor": [(slice(None),)],
        "channel": [(i, j) for i in range(3) for j in range(4)],
        "channel:axis-2": [(i, slice(None), k) for i in range(3) for k in range(20)],
        "group8": [
            (i, j, slice(k, k + 8)) for i in range(3) for j in range(4) for k in range(0, 20, 8)
        ],
    }
    for per, places in shares.items():
        name = f"int{bits}:{per}:{symmetry}"
        format = find(name)
        wanted = torch.empty_like(x)
        for place in places:
            values = x[place].flatten().tolist()
            wanted[place] = torch.tensor(literal(values, format), dtype=x.dtype).view_as(x[place])
        # A scale that is computed in another order differs in its last digits.
        torch.testing.assert_close(round_to(x, name), wanted, rtol=1e-14, atol=0)


def test_whole_numbers_are_those_of_torch():
    x = torch.randn(500)
    scale = float(x.abs().max() / 127)
    theirs = torch.fake_quantize_per_tensor_affine(x, scale, 0, -127, 127)
    # torch multiplies by the reciprocal of the scale: a tie may fall otherwise, by one step.
    ours = round_to(x, "int8")
    assert float((ours - theirs).abs().max()) <= scale * 1.001
    assert float(((ours - theirs).abs() < scale / 2).float().mean()) > 0.99


@pytest.mark.parametrize("name", ["int8", "int4:group16", "int4:channel:asymmetric", "int4:full"])
def test_the_error_is_at_most_half_a_step(name):
    x = torch.randn(8, 64)
    format = find(name)
    steps = 2**format.bits - 1 - (format.symmetric and not format.full)
    step = 2 * float(x.abs().max()) / steps
    found = round_to(x, name)
    assert float((found - x).abs().max()) <= step / 2 * (1 + 1e-5)
    assert found.unique().numel() < x.numel()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetry", ["symmetric", "asymmetric", "full"])
def test_odd_values_and_shapes(symmetry, dtype):
    name = f"int8:{symmetry}"
    limits = torch.finfo(dtype)
    for values in ([], [0.0, -0.0], [1e-45, 3e-45], [limits.max, -limits.max], [limits.max, 1.0]):
        x = torch.tensor(values, dtype=dtype)
        found = round_to(x, name)
        assert found.dtype is dtype and found.shape == x.shape
        assert bool(found.isfinite().all())
    mixed = torch.tensor([math.inf, -math.inf, math.nan, 1.0, -2.0], dtype=dtype)
    found = round_to(mixed, name).tolist()
    assert math.isnan(found[2]) and found[4] == pytest.approx(-2.0, rel=0.01)
    assert found[0] == pytest.approx(1.0 if symmetry == "asymmetric" else 2.0, rel=0.02)
    assert round_to(torch.tensor(3.0, dtype=dtype), "int8:channel").tolist() == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_eight_bits_with_a_scale_are_those_that_torch_stores(name):
    """As `x / scale` of per-token and per-channel kernels, cast and multiplied back."""
    x = torch.randn(3, 4, 48) * torch.tensor([1e-4, 50.0, 0.1])[:, None, None]
    stored = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[name]
    for per, shape in {"tensor": (1, -1), "channel": (12, -1), "group16": (36, -1)}.items():
        rows = x.reshape(shape)
        scale = rows.abs().amax(-1, keepdim=True) / torch.finfo(stored).max
        wanted = (rows / scale).to(stored).float() * scale
        assert torch.equal(round_to(x, f"{name}:{per}"), wanted.view(x.shape))
    # Unscaled, small weights are left the few digits of subnormals, or none.
    assert bool((round_to(x[0], name) == 0).any()) and bool((round_to(x[0], name) != x[0]).all())


@pytest.mark.parametrize("mode", MODES)
def test_scaled_numbers_keep_odd_values(mode):
    mixed = torch.tensor([math.inf, -math.inf, math.nan, 0.0, 1e-45, -3e38])
    found = round_to(mixed, "fp8_e5m2:channel", mode)
    assert found[2].isnan() and bool(found[[0, 1, 3, 4, 5]].isfinite().all())
    assert found[0] == -found[1] == found[[0, 1, 3, 4, 5]].max() and found[3] == 0
    assert round_to(mixed[:0], "fp8_e4m3:tensor").shape == (0,)
    assert round_to(mixed[5], "fp4_e2m1:group32").item() == pytest.approx(-3e38)


def rounded(mode: str, draws: int = 1) -> Tensor:
    x = torch.tensor([127.0, 2.5, -2.5, 0.3, -0.3, 0.49999997]).repeat(draws, 1)
    generator = torch.Generator().manual_seed(0)
    return round_to(x, "int8:channel", mode, generator)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("nearest", [2, -2, 0, 0, 0]),
        ("away", [3, -3, 0, 0, 0]),
        ("zero", [2, -2, 0, 0, 0]),
        ("up", [3, -2, 1, 0, 1]),
        ("down", [2, -3, 0, -1, 0]),
    ],
)
def test_modes(mode, wanted):
    assert rounded(mode)[0, 1:].tolist() == wanted


def test_stochastic_whole_numbers_have_the_right_mean():
    draws = 20_000
    found = rounded("stochastic", draws)
    x = torch.tensor([2.5, -2.5, 0.3, -0.3])
    chance = (x - x.floor()) * (x.ceil() - x)
    error = (found[:, 1:5].mean(0) - x).abs()
    assert bool((error <= 5 * (chance / draws).sqrt()).all())


def test_gradient_passes_straight_through():
    x = torch.randn(6, requires_grad=True)
    round_to(x, "int4").sum().backward()
    assert torch.equal(x.grad, torch.ones(6))


def test_an_axis_that_is_not_there():
    with pytest.raises(UserError, match="along axis -3 of a tensor with 2 axes"):
        round_to(torch.ones(2, 2), "int8:channel:axis-3")
