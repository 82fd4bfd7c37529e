"""Section 3 of budzinskiy25, "Numerical Error Analysis of Large Language Models": conditions.

Each lemma is tried against the definition, with Jacobians by automatic differentiation in float64.
What is false as printed stays here as refuted, with its number, beside the form that holds. The
rounding bounds of section 4 are in test_rounding.py.
"""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from layerlab.numerics.theory import condition_numbers, depth_bounds
from layerlab.numerics.theory.modules import TheoryNorm
from tests.numerics.draw import (
    DOUBLE,
    attention,
    block,
    componentwise,
    features,
    feedforward,
    gaussian,
    inputs,
    jacobian,
    row,
    seeds,
    weights,
)

RMS, LAYER = TheoryNorm(), TheoryNorm(kind="layer")
tried = settings(max_examples=40, deadline=None)
few = settings(max_examples=15, deadline=None)


@tried
@given(inputs, seeds, st.integers(2, 6))
def test_lemma_3_3_the_condition_numbers_are_what_small_changes_do(kind, seed, width):
    x, matrix = row(kind, width, seed), weights(3, width, seed=seed)
    value = matrix @ x
    assume(value.abs().min() > 1e-9 * value.abs().max())
    # A linear map has no higher orders: the worst change of every entry by a share is attained.
    line = (matrix.abs() @ x.abs() / value.abs()).argmax()
    changed = x * (1 + 0.25 * (matrix[line] * x).sign())
    found = condition_numbers.distance(matrix @ changed, value).item()
    assert found / 0.25 == pytest.approx(
        condition_numbers.componentwise(matrix, x, value).item(), rel=1e-6
    )
    top = torch.linalg.svd(matrix).Vh[0]
    moved = (matrix @ (x + 1e-3 * x.norm() * top) - value).norm() / value.norm() / 1e-3
    assert moved.item() == pytest.approx(
        condition_numbers.normwise(matrix, x, value).item(), rel=1e-6
    )


@tried
@given(inputs, seeds, st.integers(2, 6), st.booleans())
def test_lemma_3_4_affine_maps_and_the_sum_of_a_residual(kind, seed, width, biased):
    x, matrix = row(kind, width, seed), weights(3, width, seed=seed)
    bias = weights(3, seed=seed + 1) if biased else None
    exact = componentwise(lambda v: torch.nn.functional.linear(v, matrix, bias), x)
    assert condition_numbers.affine(x, matrix, bias).item() == pytest.approx(exact, rel=1e-9)
    added = gaussian(width, seed=seed + 2)
    both = componentwise(lambda v: v[:width] + v[width:], torch.cat([x, added]))
    assert condition_numbers.residual(x, added).item() == pytest.approx(both, rel=1e-9)


@tried
@given(inputs, seeds, st.integers(2, 7))
def test_lemma_3_6_rms_norm(kind, seed, width):
    x = row(kind, width, seed)
    matrix, length = jacobian(RMS.value, x), x.norm()
    unit = x / length
    expected = math.sqrt(width) / length * (torch.eye(width).double() - torch.outer(unit, unit))
    assert torch.allclose(matrix, expected, rtol=1e-9, atol=1e-12 * matrix.abs().max().item())
    values = torch.linalg.eigvalsh(matrix)
    assert values[0].abs() <= 1e-12 * values[-1]
    assert torch.allclose(values[1:], (math.sqrt(width) / length).expand(width - 1), rtol=1e-9)
    assert condition_numbers.normwise(matrix, x, RMS.value(x)).item() == pytest.approx(1, rel=1e-9)
    assert condition_numbers.mixed(matrix, x, RMS.value(x), 2) <= 1 + 1e-9
    if (x != 0).all():
        printed = 2 * (1 - (x.abs().min() / length).item() ** 2)
        assert componentwise(RMS.value, x) == pytest.approx(printed, rel=1e-9)
    assert componentwise(RMS.value, x) <= 2 + 1e-9


def test_refuted_lemma_3_6_is_no_identity_for_inputs_with_zeros():
    # Along e_1 nothing changes: k = 0, and the formula, whose minimum is over all entries, says 2.
    x = torch.tensor([3.0, 0.0, 0.0], dtype=DOUBLE)
    printed = 2 * (1 - (x.abs().min() / x.norm()).item() ** 2)
    assert (componentwise(RMS.value, x), printed) == (0.0, 2.0)
    assert condition_numbers.norm(x, RMS).item() == 0


@tried
@given(inputs, seeds, st.integers(2, 7))
def test_lemma_3_7_centring(kind, seed, width):
    x = row(kind, width, seed)
    above = x.abs().sum() + (width - 2) * x.abs()
    printed = (above / (width * (x - x.mean()).abs())).max().item()
    assert componentwise(lambda v: v - v.mean(), x) == pytest.approx(printed, rel=1e-9)


@tried
@given(inputs, seeds, st.integers(3, 7))
def test_lemma_3_8_layer_norm(kind, seed, width):
    x = row(kind, width, seed)
    centred = x - x.mean()
    matrix = jacobian(LAYER.value, x)
    values = torch.linalg.svdvals(matrix)
    assert (values[-2:] <= 1e-9 * values[0]).all()
    first = (centred.abs() @ x.abs() / centred.square().sum()).item()
    above = x.abs().sum() + (width - 2) * x.abs()
    middle = first + (above / (width * centred.abs())).max().item()
    last = 3 * (x.abs().max() / centred.abs().min()).item()
    assert componentwise(LAYER.value, x) <= middle * (1 + 1e-8)
    assert middle < last * (1 + 1e-12)


def test_refuted_lemma_3_8_as_printed_in_our_copy_is_below_the_condition():
    # Its last term reads 3 ||x||_inf / ||c||_inf, without the minus sign, a slip of the copy: the
    # condition is 4.1 times that.
    x = torch.tensor([1.0, 1.001, -1.0, 0.5], dtype=DOUBLE)
    centred = x - x.mean()
    read = 3 * x.abs().max() / centred.abs().max()
    assert componentwise(LAYER.value, x) > 4 * read


@tried
@given(inputs, seeds)
def test_lemma_3_10_two_layer_perceptron(kind, seed):
    x = row(kind, 4, seed)
    parts = feedforward("relu", 4, 6, seed)
    inner = parts.inward @ x + parts.inward_bias
    active = inner > 0
    expected = parts.outward[:, active] @ parts.inward[active]
    assert torch.allclose(jacobian(parts.value, x), expected, rtol=1e-9, atol=1e-12)
    reach = parts.inward[active].abs() @ x.abs() + parts.inward_bias[active].abs()
    above = parts.outward[:, active].abs() @ reach + parts.outward_bias.abs()
    printed = (above / parts.value(x).abs()).max().item()
    assert componentwise(parts.value, x) <= printed * (1 + 1e-8)
    assert condition_numbers.mlp(x, parts).item() == pytest.approx(printed, rel=1e-9)


@tried
@given(inputs, seeds)
def test_lemma_3_12_scores(kind, seed):
    x, parts = features(kind, 3, 4, seed), attention(4, 3, seed)
    assume(x.any(-1).all())
    form = parts.scale * parts.key[0].T @ parts.query[0]
    last = x[-1]
    above = x.abs() @ (form @ last).abs() + (x @ form).abs() @ last.abs()
    printed = (above / (x @ form @ last).abs()).max().item()
    whole = jacobian(lambda v: v @ form @ v[-1], x).flatten(1)
    value = (x @ form @ last)[None]
    exact = condition_numbers.componentwise(whole[None], x.flatten()[None], value).item()
    assert exact <= printed * (1 + 1e-8)
    assert condition_numbers.scores(x, parts)[-1].item() == pytest.approx(printed, rel=1e-6)


@tried
@given(
    st.sampled_from(["gaussian", "zeros", "tiny", "nearly equal", "outlier"]),
    seeds,
    st.integers(2, 8),
)
def test_lemma_3_13_softmax(kind, seed, width):
    # Beyond 300 weights lie below 1e-300 and lose their digits in a quotient.
    s = (3 * features(kind, 1, width, seed)[0]).clamp(-300, 300)
    p = torch.softmax(s, -1)
    matrix = jacobian(lambda v: torch.softmax(v, -1), s)
    assert torch.allclose(matrix, torch.diag(p) - torch.outer(p, p), atol=1e-14)
    assert torch.linalg.matrix_norm(matrix, 2) <= 0.5 + 1e-12
    rows = condition_numbers.induced_norm(matrix, math.inf, math.inf)
    assert rows.item() == pytest.approx((2 * p * (1 - p)).max().item(), rel=1e-9)
    printed = ((1 - 2 * p) * s.abs() + p @ s.abs()).max().item()
    assert componentwise(lambda v: torch.softmax(v, -1), s) == pytest.approx(printed, rel=1e-9)
    assert condition_numbers.softmax(s).item() == pytest.approx(printed, rel=1e-9)
    assert printed <= 2 * s.abs().max().item() * (1 + 1e-12)


@few
@given(st.sampled_from(["gaussian", "tiny", "nearly equal"]), seeds)
def test_lemma_3_14_attention(kind, seed):
    x, parts = features(kind, 3, 4, seed), attention(4, 3, seed, projected=False, size=0.7)
    whole = jacobian(parts.value_of, x).flatten(-2)
    exact = condition_numbers.componentwise(whole, x.flatten().expand(3, -1), parts.value_of(x))
    form = parts.scale * parts.key[0].T @ parts.query[0]
    factor = 4 * torch.linalg.matrix_norm(form, 2) * x.square().sum(-1).max()
    cancellation = condition_numbers.cancellation(x, parts)
    assert (cancellation >= 1 - 1e-9).all()
    assert (exact <= cancellation * (1 + factor) * (1 + 1e-8)).all()
    # The blocks of later tokens are 0: the Jacobian is block lower triangular.
    blocks = jacobian(parts.value_of, x)
    assert all((blocks[i, :, j] == 0).all() for i in range(3) for j in range(i + 1, 3))


def test_remark_3_15_behind_a_norm_the_bound_is_uniform_but_knows_gains():
    parts = block(4, 3, 5, 1, size=1.0)
    for kind in ("gaussian", "huge", "tiny", "offset"):
        x = features(kind, 3, 4, 1)
        normed = parts.attention_norm.value(x)
        assert torch.allclose(normed.square().sum(-1), torch.tensor(4.0).double(), rtol=1e-12)
        uniform_form = condition_numbers.attention_uniform(normed, parts.attention)
        limit = (
            condition_numbers.cancellation(normed, parts.attention)
            * depth_bounds.weight_factor(parts)
            / 4
        )
        assert (uniform_form <= limit * (1 + 1e-9)).all()
