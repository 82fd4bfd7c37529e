"""The carrier of a format is wide enough: rounding its result once more is rounding once.

Held against fractions, all pairs of numbers of up to eight bits, and drawn ones of sixteen. The
proof is in docs/precision.md.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab.numerics.emulation.arithmetic import carrier, make_arithmetic
from layerlab.numerics.formats.formats import BLOCKS, FLOATS, Format, find
from layerlab.numerics.formats.round import round_to
from tests.numerics import exact
from tests.numerics.roots import needs_rounded_roots

SMALL = ("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1")
WIDE = ("bf16", "fp16")
SINGLE, FINEST = 24, -149
BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def root(value: Fraction) -> Fraction:
    """The square root to 80 digits, with one more where it is not exact."""
    scale = 1 << (2 * 200)
    whole = math.isqrt(value.numerator * scale // value.denominator)
    exact_root = Fraction(whole * whole, scale) == value
    return Fraction(whole, 1 << 200) + (0 if exact_root else Fraction(1, 1 << 210))


OPERATIONS: dict[str, tuple[Callable, Callable]] = {
    "sum": (torch.add, lambda a, b: a + b),
    "product": (torch.mul, lambda a, b: a * b),
    "quotient": (torch.div, lambda a, b: a / b),
    "root": (lambda a, b: a.sqrt(), lambda a, b: root(a)),
}


@cache
def once(value: Fraction, format: Format, mode: str) -> float:
    """An exact result, rounded once."""
    return exact.rounded(value, format, mode, "float64")  # type: ignore[arg-type]


def check(name: str, a: Tensor, b: Tensor, format: Format, mode: str = "nearest") -> None:
    """Hold an operation in the carrier, and rounded, against its exact result rounded once."""
    operate, precisely = OPERATIONS[name]
    twice = round_to(operate(a, b), format, mode=mode).tolist()
    for found, x, y in zip(twice, a.tolist(), b.tolist(), strict=True):
        truth = once(precisely(Fraction(x), Fraction(y)), format, mode)
        assert found == truth, (name, x, y, mode, found, truth)


def pairs(format: Format) -> tuple[Tensor, Tensor]:
    """All pairs of numbers of a format, the first one not negative, the second one not 0."""
    numbers = torch.tensor(exact.values(format), dtype=carrier(format))
    signed = torch.cat([numbers[1:], -numbers[1:]])
    return tuple(torch.cartesian_prod(numbers, signed).unbind(1))  # type: ignore[return-value]


@pytest.mark.full
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", SMALL)
def test_all_pairs_of_numbers_of_eight_bits_are_as_if_rounded_once(name, operation):
    format = find(name)
    a, b = pairs(format)
    if operation == "root":
        a, b = a.unique(), a.unique()
    assert a.dtype == torch.float32
    for mode in ("nearest", "away"):
        check(operation, a, b, format, mode)


def numbers(name: str) -> st.SearchStrategy[float]:
    """A finite number of sixteen bits that is not 0, of any exponent."""
    words = st.integers(-(2**15), 2**15 - 1)
    found = words.map(lambda word: torch.tensor(word, dtype=torch.int16).view(BITS[name]).item())
    return found.filter(lambda value: math.isfinite(value) and value != 0)


@pytest.mark.few(3)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", WIDE)
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_numbers_of_sixteen_bits_are_as_if_rounded_once(name, operation, data):
    format = find(name)
    a, b = data.draw(numbers(name)), data.draw(numbers(name))
    if operation in ("product", "quotient") and data.draw(st.booleans()):
        # Where results are near the smallest numbers, which have few digits.
        aim = format.lowest - format.digits + data.draw(st.integers(-2, format.digits + 2))
        own = math.frexp(a)[1] - 1
        significand = math.frexp(b)[0] * 2
        power = aim - own if operation == "product" else own - aim
        if format.lowest <= power <= format.highest:
            b = math.ldexp(significand, power)
    a = abs(a) if operation == "root" else a
    given_a, given_b = (torch.tensor([one], dtype=carrier(format)) for one in (a, b))
    assert given_a.dtype == torch.float32 and given_a.item() == a
    for mode in ("nearest", "away"):
        check(operation, given_a, given_b, format, mode)


@pytest.mark.parametrize("name", [*SMALL, *WIDE])
def test_products_of_any_two_narrow_formats_are_exact(name):
    """Also of factors whose format is not that of the result, such as fp8 weights in bf16."""
    for other in (*SMALL, *WIDE, "tf32"):
        one, two = find(name), find(other)
        assert one.digits + two.digits <= SINGLE
        largest = [
            torch.tensor([(2 - 2.0 ** (1 - each.digits)) * sign for sign in (1, -1)])
            for each in (one, two)
        ]
        product = largest[0].outer(largest[1])
        assert torch.equal(product.double(), largest[0].double().outer(largest[1].double()))


@pytest.mark.parametrize("name", SMALL)
def test_all_products_of_eight_bit_factors_are_exact(name):
    for other in SMALL:
        a, b = (torch.tensor(exact.values(find(one))) for one in (name, other))
        assert torch.equal(a.outer(b).double(), a.double().outer(b.double()))


def test_blocks_and_their_scales_leave_products_exact():
    for block in BLOCKS.values():
        scale = FLOATS["fp8_e4m3"].digits if block.scale == "fp8_e4m3" else 1
        assert 2 * (block.element.digits + scale) <= SINGLE


@pytest.mark.parametrize("name", ["bf16", pytest.param("fp16", marks=needs_rounded_roots)])
def test_roots_of_every_significand_are_as_if_rounded_once(name):
    """Exponents only shift what is normal, by two for one of the root."""
    format = find(name)
    count = 2 ** (format.digits - 1)
    ones = 1 + torch.arange(count) / count
    given = torch.cat([ones, 2 * ones])
    check("root", given, given, format)


@pytest.mark.full
def test_products_and_quotients_of_every_bf16_significand_are_as_if_rounded_once():
    format = find("bf16")
    ones = 1 + torch.arange(128) / 128
    a, b = torch.cartesian_prod(ones, ones).unbind(1)
    check("quotient", a, b, format)
    check("product", a, b, format)


# Where float32 is not enough


@pytest.mark.parametrize(
    "name", ["tf32", "t11:-126:127", "t12:-14:15", "t8", "t8:-200:127", "t8:-14:200", "fp32"]
)
def test_formats_that_float32_cannot_carry_are_carried_by_float64(name):
    assert carrier(find(name)) == torch.float64
    assert make_arithmetic(name, "flat").wide == torch.float64


def test_a_format_at_the_limit_is_carried_by_float32_and_one_beyond_is_not():
    assert carrier(find("t11:-117:127")) == torch.float32
    assert carrier(find("t11:-118:127")) == torch.float64


def test_eleven_digits_near_the_smallest_float32_would_be_rounded_twice():
    """987 * 83 = 5 * 2^14 + 1: just above the middle of two numbers, where float32 ends."""
    format = find("tf32")
    a, b = math.ldexp(987, -80), math.ldexp(83, -71)
    truth = once(Fraction(a) * Fraction(b), format, "nearest")
    narrow = torch.tensor([a]) * torch.tensor([b])
    assert round_to(narrow, format).item() != truth
    wide = torch.tensor([a], dtype=carrier(format)) * torch.tensor([b], dtype=carrier(format))
    assert round_to(wide, format).item() == truth


@pytest.mark.full
def test_roots_of_twelve_digits_would_be_rounded_twice_by_float32():
    format = find("t12:-14:15")
    ones = 1 + torch.arange(2**11) / 2**11
    given = torch.cat([ones, 2 * ones])
    twice = round_to(given.sqrt(), format).tolist()
    truth = [once(root(Fraction(x)), format, "nearest") for x in given.tolist()]
    assert twice != truth
    assert round_to(given.double().sqrt(), format).tolist() == truth


@pytest.mark.parametrize("mode", ["zero", "up", "down"])
@pytest.mark.parametrize("name", ["fp16", "fp8_e5m2"])
@given(st.integers(1, 2**11 - 1), st.integers(1, 2**11 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_directed_products_quotients_and_roots_are_as_if_rounded_once(mode, name, i, j, negative):
    format = find(name)
    most = 2**format.digits
    a, b = (torch.tensor([float(k % most or 1)]) for k in (i, j))
    a = -a if negative else a
    for operation in ("product", "quotient"):
        check(operation, a, b, format, mode)
    check("root", a.abs(), b, format, mode)


def test_a_directed_sum_is_rounded_as_the_carrier_gives_it():
    """No carrier is wide enough: what is far below the last digit decides."""
    one, tiny = torch.tensor([1.0]), torch.tensor([2.0**-40])
    found = round_to(one + tiny, find("bf16"), mode="up").item()
    assert found == 1.0 < once(Fraction(1) + Fraction(2) ** -40, find("bf16"), "up")


def test_weights_of_more_digits_than_float32_are_carried_by_float64():
    assert make_arithmetic("bf16", weights="fp64").wide == torch.float64
    assert make_arithmetic("bf16", weights="fp8_e4m3", activations="fp8_e5m2").wide == torch.float32
