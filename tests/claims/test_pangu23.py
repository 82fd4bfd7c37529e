"""PanGu-pi (pangu23), sections 3 and 4: lemmas and theorems on feature diversity, run.

Each inequality is tried on random and on adversarial features, attention matrices and weights, with
constants measured from the very matrices it speaks about. What is false as printed stays here as a
refuted claim, with the number that refutes it and beside the form that holds. Theorems 3 and 7, on
the feed-forward sublayer, are in test_pangu23_feedforward.py; that 4, 6, 7 and 9 hold is in
test_pangu23_blocks.py, on the blocks that layerlab builds.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from layerlab.measures.quantities.diversity import diversity as d
from tests.claims.adversary import (
    DOUBLE,
    LIPSCHITZ,
    Draw,
    contraction,
    draws,
    holds,
    mlp,
    msa,
    msa_factor,
    seen,
    spectral,
)

EPS = torch.finfo(DOUBLE).eps
activations = st.sampled_from(sorted(LIPSCHITZ))
tried = settings(max_examples=120, deadline=None)


# Lemmas 1 and 2


@tried
@given(draws)
def test_lemma_1_a_matrix_stretches_diversity_by_its_norm_at_most(draw):
    h, w = draw.features(), draw.weights(draw.width, 5, 1)
    assert holds(d(h @ w), spectral(w) * d(h), h, w)


@tried
@given(draws, activations)
def test_lemma_1_an_activation_stretches_diversity_by_its_lipschitz_constant(draw, name):
    activation, constant = LIPSCHITZ[name]
    h = draw.features()
    assert holds(d(activation(h)), constant * d(h), 1 + h.abs())


@tried
@given(draws, st.floats(-3, 3), st.floats(-3, 3))
def test_lemma_1_of_a_sum_holds_with_absolute_coefficients(draw, one, other):
    h, b = draw.features(), draw.features(salt=1)
    right = abs(one) * d(h) + abs(other) * d(b)
    assert holds(d(one * h + other * b), right, 3 * (h.abs() + b.abs()))


def test_lemma_1_of_a_sum_is_violated_without_its_condition_on_the_signs():
    h = torch.eye(3, dtype=DOUBLE)
    one, other, b = -1, 1, -h
    assert d(one * h + other * b) == 2 * d(h)
    assert one * d(h) + other * d(b) == 0


@tried
@given(draws)
def test_lemma_1_attention_stretches_diversity_by_root_lambda_at_most(draw):
    h, a = draw.features(), draw.matrix(0)
    assert holds(d(a @ h), contraction(a) * d(h), a, h)


@pytest.mark.parametrize("attention", ["softmax", "causal", "uniform causal", "two blocks"])
def test_lemma_1_of_attention_is_attained_by_the_leading_singular_vector(attention):
    a = Draw(3, 8, 1, 1, attention, "gaussian", "gaussian").matrix(0)
    worst = torch.linalg.svd(a - a.mean(0)).Vh[:1].T.contiguous()
    ratio = d(a @ worst) / d(worst)
    assert torch.isclose(ratio, contraction(a), rtol=64 * 8 * EPS)


def test_lemma_1_of_attention_needs_rows_that_sum_to_one():
    sinking = torch.diag(torch.tensor([1.0, 0.5], dtype=DOUBLE))
    equal = torch.ones(2, 1, dtype=DOUBLE)
    assert d(sinking @ equal) > 0 and contraction(sinking) * d(equal) == 0


@tried
@given(draws)
def test_lemma_2_squared_diversities_of_heads_add_up(draw):
    heads = [draw.features(salt) for salt in range(draw.heads)]
    together, apart = d(torch.cat(heads, 1)) ** 2, sum(d(h) ** 2 for h in heads)
    size = 1 + torch.cat(heads, 1).square()
    assert holds(together, apart, size) and holds(apart, together, size)


# Theorems 1 and 2: attention


@tried
@given(draws)
def test_theorem_1_holds_without_the_factor_of_the_output_matrix(draw):
    z, a, w = draw.features(), draw.matrix(0), draw.values()[0]
    assert holds(d(a @ z @ w), contraction(a) * spectral(w) * d(z), a, z, w)


def test_theorem_1_as_printed_is_refuted_by_a_factor_of_two_at_half():
    z, eye, output_norm = torch.eye(4, dtype=DOUBLE), torch.eye(4, dtype=DOUBLE), 0.5
    printed = contraction(eye) * spectral(eye) * output_norm * d(z)
    assert torch.isclose(d(eye @ z @ eye) / printed, torch.tensor(2.0, dtype=DOUBLE))


@tried
@given(draws)
def test_theorem_2_bounds_multi_head_attention_and_the_sum_over_heads_is_sharper(draw):
    z, a, v, o = draw.features(), draw.attentions(), draw.values(), draw.output()
    sharper = (contraction(a) * spectral(v)).square().sum().sqrt() * spectral(o)
    assert holds(d(msa(z, a, v, o)), sharper * d(z), a, z, v, o)
    assert holds(sharper, msa_factor(a, v, o), a, v, o)


@pytest.mark.parametrize("heads", [1, 4])
def test_theorem_2_is_attained_by_heads_that_agree(heads):
    z = eye = torch.eye(5, dtype=DOUBLE)
    a, v, o = eye.repeat(heads, 1, 1), eye.repeat(heads, 1, 1), eye.repeat(heads, 1)
    bound = msa_factor(a, v, o) * d(z)
    assert torch.isclose(d(msa(z, a, v, o)), bound, rtol=64 * 5 * EPS)


# The largest eigenvalue lambda


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10**6), st.floats(0.01, 1.0))
def test_lambda_is_below_one_for_positive_doubly_stochastic_attention(tokens, seed, even):
    generator = torch.Generator().manual_seed(seed)
    shares = torch.softmax(torch.randn(4, generator=generator, dtype=DOUBLE) * 3, 0)
    orders = [torch.randperm(tokens, generator=generator) for _ in shares]
    mixed = sum(s * torch.eye(tokens, dtype=DOUBLE)[o] for s, o in zip(shares, orders, strict=True))
    assert contraction((1 - even) * mixed + even / tokens) < 1


@pytest.mark.parametrize(
    "tokens, value", [(5, 0.54), (8, 0.71), (16, 0.98), (32, 1.26), (64, 1.53), (512, 2.21)]
)
def test_lambda_below_one_is_refuted_by_uniform_causal_attention_from_32_tokens(tokens, value):
    a = Draw(0, tokens, 1, 1, "uniform causal", "gaussian", "gaussian").matrix(0)
    squared = contraction(a).item() ** 2
    assert (squared < 1) == (tokens <= 16)
    assert abs(squared - value) <= 0.005
    # Hardy's inequality: the infinite matrix of running means has norm 2.
    assert squared < 4


@pytest.mark.parametrize("tokens", [4, 10, 64])
def test_lambda_reaches_half_the_tokens_for_two_blocks(tokens):
    a = Draw(0, tokens, 1, 1, "two blocks", "gaussian", "gaussian").matrix(0)
    assert abs(contraction(a) ** 2 - tokens / 2) <= tokens**2 * EPS


# Theorem 4: shortcuts


def test_theorem_4_a_factor_above_one_does_not_prevent_collapse():
    z, eye = torch.eye(4, dtype=DOUBLE), torch.eye(4, dtype=DOUBLE)
    a, v, o = eye[None], -eye[None], eye
    # Both terms of the factor, and a shortcut whose attention takes away what it hands on.
    assert msa_factor(a, v, o) + 1 > 1
    assert d(msa(z, a, v, o) + z) == 0


# Noise: Eq. 6, Lemma 3, Theorem 5


@tried
@given(draws)
def test_equation_6_noise_moves_diversity_by_its_own_at_most(draw):
    h, noise = draw.features(), draw.features(salt=1) - draw.features(salt=2)
    size = 1 + h.abs() + noise.abs()
    assert holds((d(h + noise) - d(h)).abs(), d(noise), size)
    assert holds(d(noise), torch.linalg.matrix_norm(noise), size)


def test_equation_6_is_no_equality_for_noise_of_zero_mean():
    h = torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)
    noise = -2 * h
    assert noise.mean() == 0 and d(noise) == torch.linalg.matrix_norm(noise) > 0
    assert d(h + noise) - d(h) == 0


@tried
@given(draws, st.sampled_from([1e-3, 1.0, 10.0]))
def test_lemma_3_bounds_what_noise_does_to_attention(draw, level):
    z, a, v, o = draw.features(), draw.attentions(), draw.values(), draw.output()
    noise, moved = level * draw.gaussian(*z.shape, salt=80), draw.attentions(salt=90)
    left = d(msa(z + noise, moved, v, o) - msa(z, a, v, o))
    weight = len(a) ** 0.5 * spectral(v).max() * spectral(o)
    right = contraction(moved).max() * torch.linalg.matrix_norm(noise)
    right = weight * (right + contraction(moved - a).max() * d(z))
    assert holds(left, right, 1 + a.abs() + moved.abs(), 1 + z.abs() + noise.abs(), v, o)


@tried
@given(draws, activations, st.sampled_from([1e-3, 1.0, 10.0]))
def test_theorem_5_holds_as_an_inequality(draw, name, level):
    activation, constant = LIPSCHITZ[name]
    z, theta = draw.features(), draw.weights(draw.width, draw.width, 1)
    noise = level * draw.gaussian(*z.shape, salt=80)
    left = d(activation((z + noise) @ theta) - activation(z @ theta))
    right = constant * spectral(theta) * torch.linalg.matrix_norm(noise)
    assert holds(left, right, 1 + z.abs() + noise.abs(), 1 + theta.abs())


def test_theorem_5_strictness_is_refuted_by_active_units():
    z, eye = torch.full((2, 1), 5.0, dtype=DOUBLE), torch.eye(1, dtype=DOUBLE)
    noise = torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)
    left = d(functional.relu((z + noise) @ eye) - functional.relu(z @ eye))
    assert left == spectral(eye) * torch.linalg.matrix_norm(noise)


def test_theorem_5_condition_for_equality_is_refuted_by_silent_units():
    z, noise = torch.full((2, 1), -5.0, dtype=DOUBLE), torch.ones(2, 1, dtype=DOUBLE)
    change = functional.relu(z + noise) - functional.relu(z)
    assert change.mean() == 0 and d(change) == 0 < torch.linalg.matrix_norm(noise)


# Theorem 8: stacks


@tried
@given(draws, activations, st.integers(1, 3), st.integers(1, 3))
def test_theorem_8_bounds_a_stack_by_the_powers_of_its_factors(draw, name, above, below):
    activation, constant = LIPSCHITZ[name]
    z = start = draw.features()
    first, second, size = [], [], torch.linalg.matrix_norm(1 + start.abs())
    for salt in range(1000, 1000 + 200 * above, 200):
        a, v, o = draw.attentions(salt), draw.values(salt + 20), draw.output(salt + 40)
        z, factor = msa(z, a, v, o), msa_factor(a, v, o)
        first.append(factor)
        size = size * draw.heads * a.norm() * v.norm() * o.norm()
    for layer in range(below):
        inside = draw.weights(draw.width, 7, 5000 + layer)
        outside = draw.weights(7, draw.width, 6000 + layer)
        z = mlp(z, inside, outside, activation)
        second.append(constant * spectral(inside) * spectral(outside))
        size = size * 2 * inside.norm() * outside.norm()
    product = torch.stack(first + second).prod() * d(start)
    powers = max(first) ** above * max(second) ** below * d(start)
    assert holds(d(z), product, size.expand(20)) and holds(product, powers, 1 + powers.expand(20))


# On models as they are used


def heads_of(family, attention):
    """Values [head, width, head_width] and the output matrix [all heads, width] of a module."""
    if family == "gpt2":
        width = attention.embed_dim
        value = attention.c_attn.weight[:, 2 * width :]
        return torch.stack(value.split(attention.head_dim, 1)), attention.c_proj.weight
    value = torch.stack(attention.v_proj.weight.split(attention.head_dim)).transpose(1, 2)
    return value.repeat_interleave(attention.num_key_value_groups, 0), attention.o_proj.weight.T


@pytest.mark.parametrize(
    "family, path", [("gpt2", "transformer.h.1.attn"), ("llama", "model.layers.1.self_attn")]
)
def test_theorem_2_holds_on_a_model_with_its_own_attention_and_weights(tiny, family, path):
    model = tiny(family, attn_implementation="eager").double()
    ids = torch.arange(24)[None] % 7
    z, left, result = seen(model, path, lambda: model(ids, output_attentions=True))
    a = result.attentions[1][0].double()
    v, o = (part.detach() for part in heads_of(family, model.get_submodule(path)))
    # Softmax and rotary angles are computed in float32 whatever the model's own precision is.
    single = 64 * len(z) * torch.finfo(torch.float32).eps
    rebuilt = msa(z, a, v, o)
    assert d(left - rebuilt) <= single * a.norm() * z.norm() * v.norm() * o.norm()
    assert 0 < d(left) <= msa_factor(a, v, o) * d(z) * (1 + single)
