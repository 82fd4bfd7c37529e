"""Every scalar operation rounded: against exact rational arithmetic, one number at a time."""

from fractions import Fraction
from math import isqrt

import mpmath
import pytest
import torch

from layerlab import UserError
from layerlab.numerics.formats.round import round_to
from layerlab.studies.budzinskiy25.support.reference_transformer import (
    Weights,
    attention,
    block,
    errors,
    layer_norm,
    perceptron,
    root_mean_square,
    softmax,
)
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import (
    Exact,
    Strict,
    carrier_of,
    draws_last,
)

DIGITS = (4, 8, 11, 16, 24)
DOUBLE = torch.float64


def rounded(value, digits):
    """The nearest number of so many digits, ties to even, by whole numbers only."""
    value = Fraction(value)
    if value == 0:
        return value
    exponent = 0
    while abs(value) * Fraction(2) ** -exponent >= 2**digits:
        exponent += 1
    while abs(value) * Fraction(2) ** -exponent < 2 ** (digits - 1):
        exponent -= 1
    return Fraction(round(value * Fraction(2) ** -exponent)) * Fraction(2) ** exponent


class Slow:
    """The same arithmetic on lists of fractions, as a reader of the source would write it."""

    def __init__(self, digits):
        self.digits = digits

    def fl(self, value):
        return rounded(value, self.digits)

    def root(self, value):
        scaled = value * 4**80  # far more digits than any midpoint between two numbers has
        return self.fl(Fraction(isqrt(int(scaled)), 2**80))

    def exp(self, value):
        with mpmath.workprec(200):
            found = mpmath.exp(mpmath.mpf(value.numerator) / value.denominator)
            return self.fl(Fraction(int(found * mpmath.mpf(2) ** 300), 2**300))

    def total(self, values):
        result = values[0]
        for value in values[1:]:
            result = self.fl(result + value)
        return result

    def dot(self, x, y):
        return self.total([self.fl(a * b) for a, b in zip(x, y, strict=True)])

    def times(self, rows, matrix):
        return [[self.dot(row, line) for line in matrix] for row in rows]

    def rms(self, row):
        norm = self.root(self.total([self.fl(a * a) for a in row]))
        root = self.root(Fraction(len(row)))
        return [self.fl(root * self.fl(a / norm)) for a in row]

    def layer(self, row):
        mean = self.fl(self.total(row) / len(row))
        return self.rms([self.fl(a - mean) for a in row])

    def attention(self, rows, query, key, value):
        q, k, v = (self.times(rows, matrix) for matrix in (query, key, value))
        root, found = self.root(Fraction(len(query))), []
        for t, row in enumerate(q):
            scores = [self.fl(self.dot(row, other) / root) for other in k[: t + 1]]
            powers = [self.exp(self.fl(score - max(scores))) for score in scores]
            sum_ = self.total(powers)
            share = [self.fl(power / sum_) for power in powers]
            found.append([self.dot(share, column) for column in zip(*v[: t + 1], strict=True)])
        return found

    def block(self, rows, weights):
        seen = self.attention([self.layer(row) for row in rows], *weights[:3])
        rows = [self.plus(a, b) for a, b in zip(rows, seen, strict=True)]
        hidden = self.times([self.layer(row) for row in rows], weights[3])
        update = self.times([[max(a, Fraction(0)) for a in row] for row in hidden], weights[4])
        return [self.plus(a, b) for a, b in zip(rows, update, strict=True)]

    def plus(self, x, y):
        return [self.fl(a + b) for a, b in zip(x, y, strict=True)]


def fractions(matrix):
    return [[Fraction(number) for number in row] for row in matrix.tolist()]


def drawn(seed, draws, *shape):
    return torch.randn(draws, *shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


@pytest.mark.parametrize("digits", DIGITS)
def test_a_block_is_what_exact_fractions_rounded_one_by_one_give(digits):
    draws, tokens, width = 2, 3, 4
    strict, slow = Strict(digits), Slow(digits)
    x = strict.take(drawn(0, draws, tokens, width))
    matrices = [strict.take(drawn(seed, draws, width, width)) for seed in range(1, 6)]
    found = block(strict, x, Weights(**dict(zip(Weights.__annotations__, matrices, strict=True))))
    for draw in range(draws):
        weights = [fractions(matrix[draw]) for matrix in matrices]
        assert fractions(found[draw]) == slow.block(fractions(x[draw]), weights)


@pytest.mark.parametrize("digits", [4, 8, 11])
def test_a_narrow_carrier_gives_the_same_bits_as_a_wide_one(digits):
    x, matrices = drawn(0, 8, 12, 12), [drawn(seed, 8, 12, 12) for seed in range(1, 6)]
    weights = Weights(**dict(zip(Weights.__annotations__, matrices, strict=True)))
    found = []
    for dtype in (torch.float32, DOUBLE):
        strict = Strict(digits, carrier=dtype)
        assert strict.take(x).dtype == dtype
        found.append(block(strict, strict.take(x), weights.convert(strict)).double())
    assert torch.equal(*found)


@pytest.mark.parametrize("digits", DIGITS)
def test_rounding_is_that_of_round_to(digits):
    x = drawn(0, 64, 8, 8) * 10.0 ** torch.randint(-9, 9, (64, 8, 8)).double()
    halfway = round_to(x, f"t{digits}") * (1 + 2.0**-digits)
    for numbers in (x, halfway, -x, torch.zeros_like(x)):
        expected = round_to(numbers, f"t{digits}")
        assert torch.equal(Strict(digits).take(numbers).double(), expected)


def test_the_draw_is_the_fastest_axis_and_stays_it():
    strict = Strict(8)
    x = strict.take(drawn(0, 6, 4, 5))
    for made in (x, strict.product(x, x.mT), strict.add(x, x), layer_norm(strict, x)):
        assert made.stride(0) == 1
    assert torch.equal(draws_last(x), x)


@pytest.mark.parametrize("norm", [root_mean_square, layer_norm])
def test_an_empty_row_has_the_norm_zero(norm):
    x = torch.zeros(2, 3, 4, dtype=DOUBLE)
    for arithmetic in (Exact(), Strict(8)):
        assert torch.equal(norm(arithmetic, arithmetic.take(x)).double(), x)


def test_scores_that_overflow_an_exponential_are_shifted_first():
    scores = torch.tensor([[[0.0, 0.0], [5000.0, 4000.0]]], dtype=DOUBLE)
    assert softmax(Exact(), scores).tolist() == [[[1, 0], [1, 0]]]
    assert softmax(Strict(8), Strict(8).take(scores)).tolist() == [[[1, 0], [1, 0]]]


def test_the_reference_is_what_torch_computes():
    exact = Exact()
    x, matrices = drawn(0, 2, 5, 6), [drawn(seed, 2, 6, 6) for seed in range(1, 6)]
    weights = Weights(**dict(zip(Weights.__annotations__, matrices, strict=True)))
    query, key, value, inner, outer = matrices
    expected = torch.nn.functional.scaled_dot_product_attention(
        x @ query.mT, x @ key.mT, x @ value.mT, is_causal=True
    )
    assert torch.allclose(attention(exact, x, weights), expected, rtol=1e-12)
    fed = (x @ inner.mT).relu() @ outer.mT
    assert torch.allclose(perceptron(exact, x, weights), fed, rtol=1e-12)
    normed = torch.nn.functional.layer_norm(x, (6,), eps=0.0)
    assert torch.allclose(layer_norm(exact, x), normed, rtol=1e-12)


def test_the_three_statistics_of_an_error():
    exact = torch.tensor([[[1.0, 2.0, 0.0]]], dtype=DOUBLE)
    seen = torch.tensor([[[1.1, 2.0, 0.0]]], dtype=DOUBLE)
    expected = torch.tensor([[0.1, 0.1 / 3, 0.1 / 5**0.5]], dtype=DOUBLE)
    assert torch.allclose(errors(seen, exact), expected)
    missed = torch.tensor([[[1.0, 2.0, 0.5]]], dtype=DOUBLE)
    assert errors(missed, exact)[0, :2].isinf().all()


def test_stochastic_rounding_is_seeded_and_rounds_to_a_neighbour():
    x = drawn(0, 4, 6, 6)
    near = Strict(8).take(x).double()

    def product(seed):
        strict = Strict(8, "stochastic", torch.Generator().manual_seed(seed), carrier=DOUBLE)
        assert torch.equal(strict.take(x), near), "inputs are not part of the computation"
        return strict.add(strict.take(x), near.flip(0))

    sums = near + near.flip(0)
    assert torch.equal(product(1), product(1))
    assert not torch.equal(product(1), product(2))
    assert ((product(1) - sums).abs() <= 2.0**-7 * sums.abs()).all()


@pytest.mark.parametrize("digits", [1, 26])
def test_digits_that_no_carrier_has_are_refused(digits):
    with pytest.raises(UserError, match="cannot be emulated operation by operation; expected 2"):
        carrier_of(digits)
