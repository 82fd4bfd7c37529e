"""What rounding adds to a variance and to a bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.formats.formats import find
from layerlab.numerics.formats.round import round_to
from layerlab.numerics.prediction.error_state import BoundAlgebra, VarianceAlgebra, spacing
from layerlab.numerics.prediction.predict import spreads

FORMATS = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "t5", "fp32")
MODES = ("nearest", "away", "zero", "up", "down", "stochastic")
BOUND, VARIANCE = BoundAlgebra(2.0**-51), VarianceAlgebra(2.0**-51)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def values(count: int, seed: int = 0) -> Tensor:
    """Between 1 and 64, evenly in the logarithm, of both signs."""
    exponent = 6 * torch.rand(count, dtype=torch.float64, generator=seeded(seed))
    sign = torch.rand(count, generator=seeded(seed + 1)).sub(0.5).sign()
    return sign * torch.exp2(exponent)


@pytest.mark.parametrize("name", FORMATS)
def test_spacing_is_the_distance_to_the_next_number(name):
    format = find(name)
    x = round_to(torch.cat([values(400), values(400) * 2.0**-14]), format)
    x = x[(x.abs() < format.largest) & (x != 0)].abs()
    above = round_to(x * (1 + 2.0**-40), format, "up")
    assert (above > x).all()
    torch.testing.assert_close(spacing(x, format), above - x, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mode", ["nearest", "away", "zero", "up", "down"])
def test_an_exact_value_errs_by_what_rounding_does_to_it(name, mode):
    x, format = values(500), find(name)
    found = VARIANCE.round(x, None, format, mode)
    torch.testing.assert_close(found, (round_to(x, format, mode) - x).square())


@pytest.mark.parametrize("part", [0.03, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_variance_is_the_mean_square_of_what_happens(mode, part):
    """A value known up to a normal error of so many gaps, rounded; n = 200 000."""
    format = find("t6")
    x = values(200_000)
    s = (part * spacing(x, format)).square()
    moved = x + s.sqrt() * torch.randn(x.shape, dtype=x.dtype, generator=seeded(7))
    seen = (round_to(moved, format, mode, seeded(8)) - x).square()
    found = VARIANCE.round(x, s, format, mode)
    gap = spacing(x, format).square()
    error = ((seen - found) / gap).std() / len(x) ** 0.5
    # Five standard errors, and 2 % for neighbours beyond a power of two, whose gap is another.
    assert ((seen - found) / gap).mean().abs() < 5 * error + 0.02 * (found / gap).mean()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(FORMATS),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 10**6),
    scale=st.integers(-30, 30),
    width=st.integers(-20, 8),
)
def test_bound_holds_for_all_values_within(name, mode, seed, scale, width):
    """Ends of the interval, its middle and between; subnormal and overflowing values among them."""
    x = values(50, seed) * 2.0**scale
    s = x.abs() * 2.0**width
    format = find(name)
    bound = BOUND.round(x, s, format, mode)
    assert not bound.isnan().any()
    for part in (-1.0, -0.37, 0.0, 0.81, 1.0):
        seen = round_to(x + part * s, format, mode, seeded(seed))
        error = (seen - x).abs()
        assert (error <= bound).all()
    exact = BOUND.round(x, None, format, mode)
    assert ((round_to(x, format, mode, seeded(seed)) - x).abs() <= exact).all()


@pytest.mark.parametrize("kind", [BOUND, VARIANCE])
def test_masks_and_saturation(kind):
    x = torch.tensor([-3e38, -torch.inf, 1000.0, 1000.0], dtype=torch.float64)
    s = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    found = kind.round(x, s, find("fp8_e4m3"), "nearest")
    assert found[:2].tolist() == [0.0, 0.0]
    # 1000 becomes 448 however it was moved.
    assert found[2] ** (1 / kind.power) == pytest.approx(552.0)
    assert found[3] ** (1 / kind.power) == pytest.approx(552.0)
    infinite = kind.round(torch.tensor([70000.0], dtype=torch.float64), None, find("fp16"), "up")
    assert infinite.item() == torch.inf


STORED = [*("int8", "int4:group8", "int4:asymmetric", "int4:full", "mxint8", "mxfp4", "nvfp4")]
STORED.append("fp8_e4m3:channel")


@pytest.mark.parametrize("name", STORED)
def test_stored_formats_are_bounded(name):
    format = find(name)
    for seed in range(5):
        x = values(256, seed).view(4, 64)
        s = 0.1 * x.abs()
        bound = BOUND.store(x, x, s, format, "nearest")
        for part in (-1.0, 0.0, 1.0):
            assert ((round_to(x + part * s, format) - x).abs() <= bound).all()


class Scaling(nn.Module):
    def forward(self, x, factor):
        return x.exp() * factor


@pytest.mark.parametrize("factor", [0.25, -4.0, torch.tensor(0.25)])
def test_a_power_of_two_adds_no_error_to_what_was_rounded(factor):
    def spread(by):
        model, x = Scaling(), values(64)
        return spreads(model, lambda: model(x, by), make_arithmetic("t6"), [], "variance")[1][0]

    expected = spread(1.0) * abs(float(factor))
    torch.testing.assert_close(spread(factor), expected, rtol=1e-12, atol=0)
    assert (spread(1.5 * factor) > (1.5 + 1e-6) * expected).all()
