"""Bounds of single modules: never below what roundings do, and not far above what they can do.

Three opponents: results rounded to t digits; all roundings with the sign that hurts one entry most,
at very few digits; and, for the first order, the exact worst case over all roundings at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab.numerics.theory import attention_bounds, error_bounds
from layerlab.numerics.theory.activations import ACTIVATIONS
from layerlab.numerics.theory.modules import TheoryNorm
from layerlab.numerics.theory.roundoff_model import Arithmetic, uniform
from tests.numerics.draw import (
    DOUBLE,
    attention,
    digits,
    features,
    feedforward,
    gaussian,
    inputs,
    norm,
    seeds,
    weights,
)
from tests.numerics.literal import Literal, observed, pushed, worst

WIDTH, TOKENS = 4, 3
# float64, in which bounds and errors are evaluated, against 24 digits: 2^-29, and a few terms.
ABOVE = 1 + 1e-6
GENTLE = ("gaussian", "zeros", "tiny", "nearly equal")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One module: literally, its bound (arithmetic, error), and the function itself."""

    literal: Callable[[Literal, Tensor], Tensor]
    bound: Callable[[Tensor, Arithmetic, Tensor | None], Tensor]
    value: Callable[[Tensor], Tensor]
    limit: float = float("inf")


def affine_case(seed, biased):
    weight = weights(5, WIDTH, seed=seed)
    bias = weights(5, seed=seed + 1) if biased else None
    return Case(
        literal=lambda run, x: run.product(x, weight, bias),
        bound=lambda x, a, e: error_bounds.affine(x, weight, a, bias, e),
        value=lambda x: torch.nn.functional.linear(x, weight, bias),
    )


def norm_case(parts):
    return Case(
        literal=lambda run, x: run.norm(x, parts),
        bound=lambda x, a, e: error_bounds.norm(x, parts, a, e),
        value=parts.value,
    )


def activation_case(name):
    return Case(
        literal=lambda run, x: run.elementwise(x, name),
        bound=lambda x, a, e: error_bounds.elementwise(x, name, a, e),
        value=ACTIVATIONS[name].value,
        limit=float("inf") if name == "relu" else 20.0,
    )


def mlp_case(name, seed, gated):
    parts = feedforward(name, WIDTH, 5, seed, gated=gated)
    return Case(
        literal=lambda run, x: run.mlp(x, parts),
        bound=lambda x, a, e: error_bounds.mlp(x, parts, a, e),
        value=parts.value,
        limit=float("inf") if name == "relu" else 20.0,
    )


def attention_case(seed, **options):
    parts = attention(WIDTH, TOKENS, seed, size=0.7, **options)
    return Case(
        literal=lambda run, x: run.attention(x, parts),
        bound=lambda x, a, e: attention_bounds.attention(x, parts, a, e),
        value=parts.value_of,
        limit=float("inf") if parts.shifted else 3.0,
    )


def scores_case(seed, **options):
    parts = attention(WIDTH, TOKENS, seed, **options)
    return Case(
        literal=lambda run, x: run.scores(x, parts),
        bound=lambda x, a, e: attention_bounds.scores(x, parts, a, e),
        value=lambda x: parts.scores(x, 0),
    )


CASES = {
    "affine": lambda seed: affine_case(seed, biased=True),
    "affine without bias": lambda seed: affine_case(seed, biased=False),
    "rms": lambda seed: norm_case(norm("rms", WIDTH, seed)),
    "rms of gemma": lambda seed: norm_case(replace(norm("rms", WIDTH, seed), offset=True)),
    "rms by root": lambda seed: norm_case(replace(norm("rms", WIDTH, seed), extra=1)),
    "rms of the source": lambda seed: norm_case(TheoryNorm()),
    "layer": lambda seed: norm_case(norm("layer", WIDTH, seed)),
    "layer of the source": lambda seed: norm_case(TheoryNorm(kind="layer")),
    "centring": lambda seed: Case(
        literal=lambda run, x: run.centre(x),
        bound=error_bounds.centring,
        value=lambda x: x - x.mean(-1, keepdim=True),
    ),
    **{name: lambda seed, name=name: activation_case(name) for name in sorted(ACTIVATIONS)},
    **{
        f"{name} {'gated' if gated else 'mlp'}": lambda seed, name=name, gated=gated: mlp_case(
            name, seed, gated
        )
        for name in ("relu", "gelu", "gelu-tanh", "silu")
        for gated in (False, True)
    },
    "scores": lambda seed: scores_case(seed),
    "scores with biases": lambda seed: scores_case(seed, biases=True, head_width=2),
    "scores turned": lambda seed: scores_case(seed, biases=True, rotary=True),
    "one head": lambda seed: attention_case(seed, projected=False),
    "unshifted": lambda seed: attention_case(seed, projected=False, shifted=False),
    "heads": lambda seed: attention_case(seed, heads=2, head_width=2, biases=True),
    "shared turned": lambda seed: attention_case(
        seed, heads=4, shared=2, head_width=2, biases=True, rotary=True
    ),
}
cases = st.sampled_from(sorted(CASES))


def drawn(case, kind, seed):
    """The input; where exponentials or cubes of it would overflow, one that is not so large."""
    x = features(kind, TOKENS, WIDTH, seed)
    return x.clamp(-case.limit, case.limit)


def units(unit, mixed):
    """Either one unit, or another one for each operation, constants and stores among them."""
    if not mixed:
        return uniform(unit)
    exponents = (0, 1, 4, 2, 3, 0, 1, 2, 0, 4, 3, 1)
    names = uniform(0.0).units()
    return Arithmetic(**{n: unit * 2.0**-e for n, e in zip(names, exponents, strict=True)})


def holds(left, right):
    return bool((left <= right * ABOVE).all())


@settings(max_examples=120, deadline=None)
@given(cases, inputs, seeds, digits, st.booleans())
def test_no_computed_result_is_further_off(name, kind, seed, t, mixed):
    case = CASES[name](seed)
    x = drawn(case, kind, seed)
    # 24 digits are the most that float64 carries: every unit of a mixture stays above 2^-25.
    arithmetic = units(2.0**-t if not mixed else 2.0 ** -min(t, 20), mixed)
    off = observed(lambda run: case.literal(run, x), arithmetic, case.value(x))
    assert holds(off, case.bound(x, arithmetic, None))


@settings(max_examples=80, deadline=None)
@given(cases, inputs, seeds, st.sampled_from([3, 5, 8]), st.booleans())
def test_no_choice_of_roundings_is_worse_at_few_digits(name, kind, seed, t, mixed):
    case = CASES[name](seed)
    x = drawn(case, kind, seed)
    arithmetic = units(2.0**-t, mixed)
    if name == "relu" and not mixed:
        return  # nothing is rounded
    bound = case.bound(x, arithmetic, None)
    off = pushed(lambda run: case.literal(run, x), arithmetic, seed % bound.numel())
    assert holds(off, bound)


@settings(max_examples=40, deadline=None)
@given(cases, st.sampled_from(GENTLE), seeds, st.booleans())
def test_the_first_order_is_never_below_the_exact_worst_case(name, kind, seed, mixed):
    case = CASES[name](seed)
    x = drawn(case, kind, seed)
    assume((x != x[:, :1]).any(-1).all())  # a norm has no derivative where it divides by 0
    arithmetic = units(2.0**-24, mixed)
    worst_case = worst(lambda run: case.literal(run, x), arithmetic, outputs=4)
    linear = case.bound(x, arithmetic.linear(), None).flatten()[:4]
    assert (worst_case <= linear * (1 + 1e-9)).all()


@settings(max_examples=100, deadline=None)
@given(cases, inputs, seeds, st.sampled_from([1e-6, 1e-2, 0.3, 3.0]))
def test_an_error_of_the_input_is_carried_through(name, kind, seed, size):
    case = CASES[name](seed)
    x = drawn(case, kind, seed)
    error = size * x.abs() * gaussian(*x.shape, seed=seed + 1).abs().clamp_max(1)
    wrong = x + error * (2 * (gaussian(*x.shape, seed=seed + 2) > 0) - 1)
    arithmetic = uniform(2.0**-11)
    off = observed(lambda run: case.literal(run, wrong), arithmetic, case.value(x))
    assert holds(off, case.bound(x, arithmetic, error))


@settings(max_examples=40, deadline=None)
@given(cases, st.sampled_from(GENTLE), seeds)
def test_the_first_order_is_what_is_left_for_small_units(name, kind, seed):
    case = CASES[name](seed)
    x = drawn(case, kind, seed)
    error = 2.0**-40 * x.abs()
    full, linear = (
        case.bound(x, arithmetic, error)
        for arithmetic in (uniform(2.0**-40), uniform(2.0**-40).linear())
    )
    assert (full >= linear * (1 - 1e-3)).all()
    assert (full <= linear * (1 + 1e-3)).all()


@pytest.mark.parametrize("name", sorted(set(CASES) - {"relu"}))
def test_a_bound_is_not_far_above_the_worst_case(name):
    # An entry comes within a factor of 2.5; corrections that fold (1 + theta) into one gamma, and
    # signs that cannot all be chosen at once, account for it.
    case = CASES[name](7)
    x = drawn(case, "gaussian", 7)
    arithmetic = uniform(2.0**-24)
    worst_case = worst(lambda run: case.literal(run, x), arithmetic, outputs=6)
    linear = case.bound(x, arithmetic.linear(), None).flatten()[:6]
    assert (worst_case / linear).max() > 0.4


def test_the_constants_of_affine_maps_are_attained():
    # One term carries all: it meets every addition.
    unit, width = 2.0**-24, 6
    x, weight = torch.full((1, width), 1e-12, dtype=DOUBLE), torch.ones(1, width, dtype=DOUBLE)
    x[0, 0] = 1.0
    bias = torch.full((1,), 1e-12, dtype=DOUBLE)
    arithmetic = uniform(unit)
    affine = worst(lambda run: run.product(x, weight, bias), arithmetic)
    assert affine.item() == pytest.approx((width + 1) * unit, rel=1e-9)
    assert error_bounds.affine(x, weight, arithmetic.linear(), bias).item() == pytest.approx(
        (width + 1) * unit, rel=1e-9
    )


def test_a_row_that_a_norm_divides_by_zero_gives_zero_and_a_capped_bound():
    x, error = torch.zeros(2, 4, dtype=DOUBLE), torch.zeros(2, 4, dtype=DOUBLE)
    error[1] = 1e-9
    unit = uniform(2.0**-11)
    assert (TheoryNorm().value(x) == 0).all()
    assert (error_bounds.norm(x, TheoryNorm(), unit, error)[0] == 0).all()
    full, linear = (error_bounds.norm(x, TheoryNorm(), a, error)[1] for a in (unit, unit.linear()))
    assert ((full >= 2) & (full <= 2 * (1 + 8 * 2.0**-11))).all()
    assert linear.isinf().all()


def test_only_units_that_may_be_active_count():
    x = torch.ones(1, 2, dtype=DOUBLE)
    parts = feedforward("relu", 2, 8, 3, biases=False)
    half = replace(parts, inward=torch.cat([parts.inward[:4].abs(), -parts.inward[4:].abs()]))
    few = error_bounds.mlp(x, half, uniform(2.0**-11).linear())
    cut = replace(half, inward=half.inward[:4], outward=half.outward[:, :4])
    assert torch.allclose(few, error_bounds.mlp(x, cut, uniform(2.0**-11).linear()), rtol=1e-12)


def test_relative_errors_follow_the_conventions_of_the_source():
    error = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, 1.0]], dtype=DOUBLE)
    exact = torch.tensor([[0.0, 2.0], [0.0, 1.0], [0.0, 1.0]], dtype=DOUBLE)
    assert error_bounds.relative(error, exact).tolist() == [0.5, 0.0, float("inf")]


def test_leading_axes_are_free():
    parts = attention(WIDTH, TOKENS, 3, heads=2, head_width=2, biases=True, rotary=True)
    x = gaussian(2, 5, TOKENS, WIDTH, seed=1)
    whole = attention_bounds.attention(x, parts, uniform(2.0**-11), 1e-3 * x.abs())
    single = attention_bounds.attention(x[1, 4], parts, uniform(2.0**-11), 1e-3 * x[1, 4].abs())
    assert torch.allclose(whole[1, 4], single, rtol=1e-9)


def weigh(run, x, parts):
    """Compute one head whose weights are exact."""
    value = run.product(x, parts.value[0])
    terms = run.rounded(parts.weights(x, 0)[:, None, :] * value.mT[None], "product")
    return run.total(terms, "sum")


def test_scores_in_higher_precision_lower_the_bound():
    parts = attention(WIDTH, TOKENS, 3, projected=False, size=1.5)
    x = gaussian(TOKENS, WIDTH, seed=1)
    low, high = uniform(2.0**-8), uniform(2.0**-24)
    helped = attention_bounds.attention(x, parts, low, scoring=high)
    assert (helped < attention_bounds.attention(x, parts, low)).all()

    assert holds(observed(lambda run: weigh(run, x, parts), low, parts.value_of(x)), helped)


def attained(run, bound):
    """Worst case over bound, for the entry that comes closest."""
    return (worst(run, uniform(2.0**-24)) / bound.flatten()).max().item()


def test_the_constants_of_centring_softmax_heads_and_relu_layers_are_attained():
    linear = uniform(2.0**-24).linear()
    x = torch.tensor([[1.0, 1e-9, 1e-9]], dtype=DOUBLE)
    centred = attained(lambda run: run.centre(x), error_bounds.centring(x, linear))
    assert centred == pytest.approx(1, rel=1e-6)
    # A small chance, whose quotient sees every addition: the other terms are the first ones.
    s = torch.tensor([[0.0, -30.0, -31.0]], dtype=DOUBLE)
    seen = torch.ones_like(s, dtype=torch.bool)
    plain = attention_bounds.softmax(s, linear, shifted=False)
    chances = attained(lambda run: run.softmax(s, seen, shifted=False), plain)
    assert chances == pytest.approx(1, rel=1e-6)
    one = torch.full((3, 3), 1e-9, dtype=DOUBLE)
    one[:, 0] = 1.0
    parts = replace(feedforward("relu", 3, 3, 1, biases=False), inward=one, outward=one)
    layer = attained(lambda run: run.mlp(x, parts), error_bounds.mlp(x, parts, linear))
    assert layer == pytest.approx(1, rel=1e-6)
    # One token and one feature of it carry all; weights are exact.
    x = torch.full((TOKENS, WIDTH), 1e-12, dtype=DOUBLE)
    x[0, 0] = 1.0
    head = attention(WIDTH, TOKENS, 3, projected=False)
    bound = attention_bounds.attention(x, head, linear, scoring=Arithmetic().linear())
    assert attained(lambda run: weigh(run, x, head)[-1:], bound[-1:]) == pytest.approx(1, rel=1e-6)
