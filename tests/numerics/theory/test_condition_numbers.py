"""Closed forms against the definition, with Jacobians by automatic differentiation in float64.

Those that a lemma of the source states (affine maps, centring, softmax, the norm of the Jacobian of
RMS norm) are in tests/claims/test_rounding_condition.py.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.numerics.theory import condition_numbers
from layerlab.numerics.theory.activations import ACTIVATIONS
from layerlab.numerics.theory.modules import TheoryNorm
from tests.numerics.draw import (
    DOUBLE,
    attention,
    componentwise,
    features,
    feedforward,
    gaussian,
    inputs,
    jacobian,
    norm,
    seeds,
    weights,
)
from tests.support.refused import refuses

# The Jacobian of a function of d entries, evaluated in float64: cancellation of up to 1e5 (offset
# 1e3, squared 1e6) on 16 digits.
NEAR = 1e-8


def of_sequence(function, x):
    """k_{c,c} of each output token with respect to the whole sequence."""
    whole = jacobian(function, x).flatten(-2)
    return condition_numbers.componentwise(whole, x.flatten().expand(len(x), -1), function(x))


def row(kind, width, seed):
    return features(kind, 1, width, seed)[0]


def varied(x):
    """Not all equal, so that a norm has a Jacobian; nothing exactly at the mean."""
    centred = x - x.mean()
    return bool(centred.abs().min() > 1e-12 * x.abs().max())


widths = st.integers(3, 7)
tried = settings(max_examples=50, deadline=None)


@tried
@given(inputs, widths, seeds, st.sampled_from([0.0, 1e-5, 1.0]))
def test_rms_norm_is_exact(kind, width, seed, eps):
    x = row(kind, width, seed)
    assume((x != 0).any())
    parts = TheoryNorm(eps=eps)
    found = condition_numbers.norm(x, parts).item()
    assert found == pytest.approx(componentwise(parts.value, x), rel=NEAR)
    assert found <= 2
    if eps == 0:
        smallest = x[x != 0].abs().min()
        assert found == pytest.approx(2 * (1 - (smallest / x.norm()).item() ** 2), rel=NEAR)
    gained = replace(parts, gain=weights(width, seed=seed, size=1.0))
    assert condition_numbers.norm(x, gained).item() == pytest.approx(found, rel=1e-12)


@tried
@given(inputs, widths, seeds, st.booleans())
def test_layer_norm_is_never_below_the_definition(kind, width, seed, plain):
    x = row(kind, width, seed)
    assume(varied(x))
    parts = norm("layer", width, seed, plain)
    found = condition_numbers.norm(x, parts).item()
    assert componentwise(parts.value, x) <= found * (1 + NEAR)
    if plain:
        centred = (x - x.mean()).abs()
        assert found <= 3 * x.abs().max().item() / centred.min().item() * (1 + 1e-9)


@tried
@given(inputs, seeds, st.sampled_from(sorted(ACTIVATIONS)), st.booleans(), st.booleans())
def test_feed_forward_layers_are_never_below_the_definition(kind, seed, name, gated, biases):
    x = row(kind, 4, seed).clamp(-30, 30)
    assume(x.any())
    parts = feedforward(name, 4, 6, seed, biases=biases, gated=gated)
    assert componentwise(parts.value, x) <= condition_numbers.mlp(x, parts).item() * (1 + NEAR)


@tried
@given(inputs, seeds, st.booleans())
def test_scores_are_exact_but_for_a_token_with_itself(kind, seed, turned):
    x = features(kind, 3, 4, seed)
    assume(x.any())
    parts = attention(4, 3, seed, biases=turned, rotary=turned)
    whole = jacobian(lambda v: parts.scores(v, 0), x).flatten(-2)
    exact = whole.abs() @ x.flatten().abs()
    found = condition_numbers.score_numerator(x, parts)
    apart = ~torch.eye(3, dtype=torch.bool)
    size = found.max().item()
    assert torch.allclose(found[apart], exact[apart], rtol=1e-9, atol=1e-12 * size)
    assert (exact.diagonal() <= found.diagonal() * (1 + 1e-9) + 1e-12 * size).all()
    ratio = condition_numbers.quotient(found, parts.scores(x, 0)).masked_fill(~parts.mask(x), 0.0)
    assert torch.equal(condition_numbers.scores(x, parts), ratio.amax(-1))


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["gaussian", "zeros", "tiny", "nearly equal"]), seeds, st.integers(0, 3)
)  # fmt: skip
def test_attention_is_never_below_the_definition(kind, seed, shape):
    options = (
        {"projected": False},
        {"heads": 2, "head_width": 2},
        {"heads": 4, "shared": 2, "head_width": 2, "biases": True},
        {"heads": 2, "head_width": 2, "biases": True, "rotary": True},
    )[shape]
    x = features(kind, 3, 4, seed)
    assume(x.any(-1).all())
    parts = attention(4, 3, seed, size=0.7, **options)
    exact = of_sequence(parts.value_of, x)
    assert (exact <= condition_numbers.attention(x, parts) * (1 + NEAR)).all()
    assert (condition_numbers.cancellation(x, parts) >= 1 - 1e-9).all() or shape > 1
    if shape < 2:
        uniform = condition_numbers.attention_uniform(x, parts)
        assert (condition_numbers.attention(x, parts) <= uniform * (1 + 1e-9)).all()


@pytest.mark.parametrize("options", [{"biases": True}, {"rotary": True}])
def test_the_uniform_form_is_refused_where_it_says_nothing(options):
    parts = attention(4, 3, 1, **options)
    with pytest.raises(UserError, match="knows no biases and no rotary positions"):
        condition_numbers.attention_uniform(gaussian(3, 4), parts)


@pytest.mark.parametrize(("p", "q"), [(1, 1), (1, 3), (2, math.inf), (2, 2), (math.inf, 2), (3, 1)])
def test_induced_norms_are_attained_and_not_passed(p, q):
    matrix = gaussian(4, 5, seed=3)
    norm_found = condition_numbers.induced_norm(matrix, p, q).item()

    def ratio(x):
        image = matrix @ x
        return (torch.linalg.vector_norm(image, q) / torch.linalg.vector_norm(x, p)).item()

    tries = [ratio(gaussian(5, seed=seed)) for seed in range(200)]
    tries += [ratio(column) for column in torch.eye(5, dtype=DOUBLE)]
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=DOUBLE)] * 5)
    tries += [ratio(sign) for sign in signs]
    tries.append(ratio(torch.linalg.svd(matrix).Vh[0]))
    for image in torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=DOUBLE)] * 4):
        dual = matrix.T @ image  # Hölder: the x that attains y^T A x over ||x||_p = 1
        if 1 < p < math.inf:
            tries.append(ratio(dual.sign() * dual.abs() ** (1 / (p - 1))))
    for line in matrix:
        tries.append(ratio(line))
    assert max(tries) == pytest.approx(norm_found, rel=1e-9)


def test_norms_that_are_not_known_are_refused():
    refuses("is not known exactly; take p=1", condition_numbers.induced_norm, gaussian(3, 3), 3, 3)
    with pytest.raises(UserError, match="tries all signs, too many for 17 columns"):
        condition_numbers.induced_norm(gaussian(3, 17), math.inf, 2)
    most = gaussian(1, 16)
    assert condition_numbers.induced_norm(most, math.inf, 2).item() == pytest.approx(
        most.abs().sum()
    )


def test_conventions_at_zero_are_those_of_the_source():
    above, below = torch.tensor([0.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, -2.0])
    assert condition_numbers.quotient(above, below).tolist() == [0, math.inf, 1.5]
    exact = torch.tensor([[0.0, 2.0], [0.0, 1.0]])
    found = torch.tensor([[0.0, 3.0], [0.5, 1.0]])
    assert condition_numbers.distance(found, exact).tolist() == [0.5, math.inf]
    unit = torch.tensor([1.0, 0.0, 0.0])
    assert condition_numbers.norm(unit, TheoryNorm()).item() == 0


def test_near_constant_inputs_ruin_layer_norm_and_not_rms_norm():
    noise = gaussian(8, seed=1)
    for spread in (1e-2, 1e-4, 1e-6):
        x = 1 + spread * noise
        exact = componentwise(TheoryNorm(kind="layer").value, x)
        assert exact > 0.3 / spread
        assert condition_numbers.norm(x, TheoryNorm()).item() <= 2


def test_leading_axes_are_free():
    parts = attention(4, 3, 1, heads=2, head_width=2, biases=True, rotary=True)
    x = gaussian(2, 5, 3, 4, seed=1)
    hidden = feedforward("silu", 4, 6, 1, gated=True)
    for measure in (
        lambda x: condition_numbers.attention(x, parts),
        lambda x: condition_numbers.scores(x, parts),
        lambda x: condition_numbers.mlp(x, hidden),
        lambda x: condition_numbers.norm(x, norm("layer", 4, 1)),
        condition_numbers.softmax,
    ):
        assert measure(x).shape == (2, 5, 3)
        assert torch.allclose(measure(x)[1, 2], measure(x[1, 2]), rtol=1e-9)
