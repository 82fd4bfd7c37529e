"""Activations against forty digits: values, slopes, conditions, constants, roundings."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.numerics.theory import error_bounds
from layerlab.numerics.theory.activations import ACTIVATIONS, activation
from layerlab.numerics.theory.roundoff_model import uniform
from tests.support.refused import refuses

mpmath.mp.dps = 40
DOUBLE = torch.float64
SMOOTH = sorted(set(ACTIVATIONS) - {"relu"})


def exact(name, z):
    z = mpmath.mpf(z)
    if name == "relu":
        return max(z, mpmath.mpf(0))
    if name == "gelu":
        return z * mpmath.erfc(-z / mpmath.sqrt(2)) / 2
    if name == "gelu-tanh":
        inner = mpmath.sqrt(2 / mpmath.pi) * (z + mpmath.mpf(44715) / 10**6 * z**3)
        return z / (1 + mpmath.exp(-2 * inner))
    return z / (1 + mpmath.exp(-z))


def slope(name, z):
    return mpmath.diff(lambda w: exact(name, w), mpmath.mpf(z))


points = st.floats(-25, 25, allow_subnormal=False).filter(lambda z: abs(z) > 1e-6)


def elementwise(z, name):
    """|z phi'(z) / phi(z)| of every entry."""
    found = (1 + ACTIVATIONS[name].elasticity(z)).abs()
    return torch.where(z > 0, found, 0.0) if name == "relu" else found


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ACTIVATIONS)), points)
def test_value_slope_and_condition_agree_with_forty_digits(name, z):
    function, at = ACTIVATIONS[name], torch.tensor([z], dtype=DOUBLE)
    value = exact(name, z)
    # exp of an argument x is off by |x| roundings: up to 700 here, and a few operations.
    near = {"rel": 1e-11, "abs": 1e-290}
    assert function.value(at).item() == pytest.approx(float(value), **near)
    assert function.slope(at).item() == pytest.approx(float(slope(name, z)), rel=1e-9, abs=1e-290)
    if abs(value) > 1e-250:
        condition = abs(mpmath.mpf(z) * slope(name, z) / value)
        found = elementwise(at, name).item()
        assert found == pytest.approx(float(condition), rel=1e-9, abs=1e-9)


def limit(name, z):
    """The upper bound on the condition that its docstring gives."""
    if name == "gelu":
        return max(1.2946, z * z)
    if name.startswith("silu"):
        return max(1.2785, abs(z) - 1)
    return max(1.0, 1.5958 * -z + 0.21407 * (-z) ** 3 - 1) if z < 0 else 1.2944


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SMOOTH)
def test_conditions_stay_below_their_limits_and_grow_with_them(name):
    z = torch.linspace(-30, 30, 60001, dtype=DOUBLE)
    limits = torch.tensor([limit(name, float(x)) for x in z], dtype=DOUBLE)
    ratio = elementwise(z, name) / limits
    assert ratio.max() <= 1
    assert ratio[0] > 0.99


@pytest.mark.parametrize("name", SMOOTH)
def test_slope_and_curvature_have_the_stated_suprema(name):
    function = ACTIVATIONS[name]
    z = torch.linspace(-8, 8, 400001, dtype=DOUBLE)
    slopes = function.slope(z)
    # On a grid of step h a maximum is missed by at most h^2 sup|f''| / 8.
    assert function.lipschitz - 2e-5 < slopes.abs().max() <= function.lipschitz
    curvature = (slopes[2:] - slopes[:-2]) / (z[2:] - z[:-2])
    assert function.curvature - 1e-4 < curvature.abs().max() <= function.curvature + 1e-8


def literal(name, z, deltas):
    """The formula with every operation off by its own delta, in forty digits."""
    give = iter(deltas)

    def op(x):
        return x * (1 + next(give))

    if name == "silu":
        return op(z / op(1 + op(mpmath.exp(-z))))
    if name == "silu-product":
        return op(z * op(1 / op(1 + op(mpmath.exp(-z)))))
    if name == "gelu":
        return op(z / 2 * op(1 + op(mpmath.erf(op(z * op(mpmath.sqrt(0.5)))))))
    cube = op(op(z * z) * z)
    inner = op(z + op(cube * op(mpmath.mpf(44715) / 10**6)))
    return op(z / 2 * op(1 + op(mpmath.tanh(op(inner * op(mpmath.sqrt(2 / mpmath.pi)))))))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SMOOTH), points, st.sampled_from([3, 8, 24]), st.integers(0, 2**12 - 1))
def test_roundings_of_the_formula_stay_within_the_row(name, z, t, signs):
    unit = 2.0**-t
    deltas = [unit if signs >> bit & 1 else -unit for bit in range(12)]
    error = abs(literal(name, mpmath.mpf(z), deltas) - exact(name, z))
    at = torch.tensor([z], dtype=DOUBLE)
    bound = error_bounds.elementwise(at, name, uniform(unit)).item()
    assert float(error) <= bound * (1 + 1e-9) + 1e-290


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("gelu", lambda z, p, e, v: 2 * z**2 * p + abs(z * e) / 2),
        (
            "gelu-tanh",
            lambda z, p, e, v: abs(z) / 2 * (7 * abs(v) / math.cosh(v) ** 2 + math.tanh(abs(v))),
        ),
        ("silu", lambda z, p, e, v: exact("silu", z)),
        ("silu-product", lambda z, p, e, v: 2 * exact("silu", z)),
    ],
)
def test_the_first_order_is_the_row_of_the_table(name, row):
    for z in (-6.0, -2.99, -0.7, 0.1, 1.3, 5.0):
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        inner = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
        extra = abs(float(row(z, density, math.erf(z / math.sqrt(2)), inner)))
        expected = 2.0**-20 * (extra + 2 * abs(float(exact(name, z))))
        at = torch.tensor([z], dtype=DOUBLE)
        found = error_bounds.elementwise(at, name, uniform(2.0**-20).linear()).item()
        assert found == pytest.approx(expected, rel=1e-9)


def test_the_kernel_of_torch_stays_within_its_own_constant():
    z = torch.linspace(-12, 12, 100001).float()
    exactly = ACTIVATIONS["gelu"].value(z.double())
    off = (torch.nn.functional.gelu(z).double() - exactly).abs()
    assert (off <= 6 * 2.0**-24 * z.abs().double()).all()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SMOOTH), points, st.floats(-30, 30), st.sampled_from([3, 8, 16]))
def test_a_formula_rounds_no_more_within_an_error_than_is_allowed_for(name, z, other, t):
    # `elementwise` adds 2 growth(10) L |error| for it.
    unit, function = uniform(2.0**-t), ACTIVATIONS[name]
    here, there = (
        function.rounding(torch.tensor([x], dtype=DOUBLE), unit).item() for x in (z, other)
    )
    drift = 2 * unit.growth(activation=10).item() * function.lipschitz * abs(other - z)
    assert there <= here + drift + 1e-15


def test_an_unknown_activation_is_refused():
    refuses("is no activation with a known rounding bound", activation, "mish")
