"""Section 4 of budzinskiy25, "Numerical Error Analysis of Large Language Models": rounding.

Each bound is tried against results rounded to t digits and against the exact worst case over all
roundings, every one a variable of its own. What is false as printed stays here as refuted, with its
number, beside the form that holds. Where the formula of our copy cannot be read the test says so.
Conditions (section 3) are in test_rounding_condition.py.
"""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from layerlab.numerics.theory import attention_bounds, condition_numbers, depth_bounds
from layerlab.numerics.theory.error_bounds import relative
from layerlab.numerics.theory.modules import TheoryNorm
from layerlab.numerics.theory.roundoff_model import uniform
from tests.numerics.draw import (
    DOUBLE,
    attention,
    block,
    digits,
    features,
    feedforward,
    gaussian,
    inputs,
    row,
    seeds,
    weights,
)
from tests.numerics.literal import Literal, Rounded, observed, pushed, worst

# float64, in which everything is evaluated, against 24 digits, times a few terms.
ABOVE = 1 + 1e-6
UNIT = 2.0**-24
RMS, LAYER = TheoryNorm(), TheoryNorm(kind="layer")
tried = settings(max_examples=40, deadline=None)
few = settings(max_examples=15, deadline=None)


def beyond(run, bound, outputs=4):
    """The exact worst case over the bound, both relative to u: 1 is attained, above 1 is false."""
    exact, limit = worst(run, uniform(UNIT), outputs), bound.flatten()[:outputs] * UNIT
    return condition_numbers.quotient(exact, limit).max().item()


def absolute_scores(x, parts):
    """|x_i|^T |W_k|^T |W_q| |x_t| / sqrt(d), query by key."""
    query = x.abs() @ parts.query[0].abs().T
    return parts.scale * query @ (x.abs() @ parts.key[0].abs().T).T


@tried
@given(inputs, seeds, digits, st.integers(1, 8))
def test_lemma_4_3_inner_products_in_any_order(kind, seed, t, width):
    x = features(kind, 3, width, seed)
    matrix = weights(2, width, seed=seed)
    shuffle = torch.randperm(width, generator=torch.Generator().manual_seed(seed))
    off = observed(
        lambda run: run.product(x[:, shuffle], matrix[:, shuffle]), uniform(2.0**-t), x @ matrix.T
    )
    gamma = width * 2.0**-t / (1 - width * 2.0**-t)
    assert (off <= gamma * ABOVE * x.abs() @ matrix.abs().T).all()


@tried
@given(inputs, seeds, digits, st.integers(2, 8))
def test_lemma_4_6_rms_norm_rounds_to_half_d_plus_3_units(kind, seed, t, width):
    x = row(kind, width, seed)[None]
    unit = 2.0**-t
    off = observed(lambda run: run.norm(x, RMS), uniform(unit), RMS.value(x))
    # The second order, which the source leaves out, is less than the square of the first.
    printed = (width / 2 + 3) * unit
    assert (off <= (printed + 2 * printed**2) * ABOVE * RMS.value(x).abs()).all()
    assert beyond(lambda run: run.norm(x, RMS), (width / 2 + 3) * RMS.value(x).abs()) <= ABOVE


def test_lemma_4_6_the_constant_is_attained():
    x = torch.full((1, 6), 1e-9, dtype=DOUBLE)
    x[0, 0] = 1.0
    found = worst(lambda run: run.norm(x, RMS), uniform(UNIT)) / UNIT / RMS.value(x)[0]
    assert found[1].item() == pytest.approx(6 / 2 + 3, rel=1e-6)


@few
@given(inputs, seeds, st.integers(2, 6), st.sampled_from([1e-6, 1e-4]))
def test_lemma_4_8_and_corollary_4_9_an_error_of_the_input_counts_at_most_twice(
    kind, seed, width, size
):
    x = row(kind, width, seed)[None]
    wrong = x * (1 + size * gaussian(1, width, seed=seed).clamp(-1, 1))
    unit = 2.0**-24
    off = observed(lambda run: run.norm(wrong, RMS), uniform(unit), RMS.value(x))
    first = (width / 2 + 3) * unit + 2 * size
    assert (off <= (first + 4 * first**2) * ABOVE * RMS.value(x).abs()).all()


@tried
@given(inputs, seeds, st.integers(2, 6))
def test_lemma_4_10_centring(kind, seed, width):
    x = row(kind, width, seed)[None]
    centred = (x - x.mean()).abs()
    printed = (1 + x.abs().sum() / centred.min()) * centred
    assert beyond(lambda run: run.centre(x), printed) <= ABOVE


def test_lemma_4_10_the_constant_is_attained():
    x = torch.tensor([[1.0, 1e-9, 1e-9]], dtype=DOUBLE)
    centred = (x - x.mean()).abs()
    printed = (1 + x.abs().sum() / centred.min()) * centred
    assert beyond(lambda run: run.centre(x), printed, outputs=3) == pytest.approx(1, rel=1e-6)


@few
@given(inputs, seeds, st.integers(2, 6))
def test_lemma_4_11_layer_norm_with_the_constants_that_can_be_derived(kind, seed, width):
    # Those of the source cannot be read.
    x = row(kind, width, seed)[None]
    centred = (x - x.mean()).abs()
    limit = (width / 2 + 5 + 2 * x.abs().sum() / centred.min()) * LAYER.value(x).abs()
    assert beyond(lambda run: run.norm(x, LAYER), limit) <= ABOVE


def test_lemma_4_11_layer_norm_is_unstable_near_constant_inputs_and_rms_norm_is_not():
    noise, unit = gaussian(1, 16, seed=3), 2.0**-11
    lost = {LAYER: [], RMS: []}
    for spread in (1.0, 1e-1, 1e-2):
        x = 1 + spread * noise
        for parts, found in lost.items():
            value = Literal(Rounded(uniform(unit))).norm(x, parts)
            found.append(condition_numbers.distance(value, parts.value(x)).item() / unit)
    assert lost[LAYER][2] > 100 * lost[RMS][2]
    assert max(lost[RMS]) <= 16 / 2 + 3


@few
@given(inputs, seeds)
def test_lemma_4_14_two_layer_perceptron_with_settled_signs(kind, seed):
    x = row(kind, 4, seed)[None]
    parts = feedforward("relu", 4, 6, seed)
    inner = x @ parts.inward.T + parts.inward_bias
    reach = x.abs() @ parts.inward.abs().T + parts.inward_bias.abs()
    assume((inner.abs() > 2 * 5 * UNIT * reach).all() and (inner > 0).any())
    active = int((inner > 0).sum())
    above = reach * (inner > 0) @ parts.outward.abs().T + parts.outward_bias.abs()
    limit = (4 + active + 2) * above  # xi |y| is what stands above y in the quotient xi
    assert beyond(lambda run: run.mlp(x, parts), limit) <= ABOVE


def test_refuted_lemma_4_14_needs_that_adding_zero_is_exact():
    # Model 4.1 to the letter would round x + 0 as well: 8.4 times the bound, unless D stands for
    # |Omega|.
    parts = feedforward("relu", 2, 40, 3, biases=False)
    parts.inward[1:] = -parts.inward[1:].abs()
    parts.inward[0] = 1.0
    x = torch.ones(1, 2, dtype=DOUBLE)
    assert int((x @ parts.inward.T > 0).sum()) == 1
    above = (x @ parts.inward.T).clamp_min(0) @ parts.outward.abs().T

    class Charged(Literal):
        def add(self, a, b, kind):
            return self.rounded(a + b, kind)

    def charged(run):
        return Charged(run.rounded).mlp(x, parts)

    assert beyond(lambda run: run.mlp(x, parts), (2 + 1 + 2) * above, 2) <= ABOVE
    assert beyond(charged, (2 + 1 + 2) * above, 2) > 8
    assert beyond(charged, (2 + 40 + 2) * above, 2) <= ABOVE


@pytest.mark.full
@few
@given(inputs, seeds)
def test_lemma_4_17_scores_round_to_3_d_plus_1_units(kind, seed):
    x, parts = features(kind, 3, 4, seed), attention(4, 3, seed)
    limit = (3 * 4 + 1) * absolute_scores(x, parts)
    exact = worst(lambda run: run.scores(x, parts), uniform(UNIT), 9)
    assert (exact <= limit.flatten() * UNIT * ABOVE).all()


def test_lemma_4_17_the_constant_is_attained():
    # Each of the three sums carries everything in its first term.
    x = torch.tensor([[1.0, 1e-9, 1e-9]], dtype=DOUBLE)
    head = torch.full((1, 3, 3), 1e-9, dtype=DOUBLE)
    head[0, 0, 0] = 1.0
    parts = attention(3, 1, 1, projected=False, query=head, key=head)
    limit = (3 * 3 + 1) * absolute_scores(x, parts)
    assert beyond(lambda run: run.scores(x, parts), limit, 1) == pytest.approx(1, rel=1e-6)


def test_refuted_remark_4_18_scores_do_not_care_for_the_condition_of_the_form():
    # Through sigma_min the relative bound grows without end; the errors themselves do not.
    x, unit = gaussian(4, 4, seed=1), 2.0**-11
    left, right = (torch.linalg.qr(gaussian(4, 4, seed=seed)).Q for seed in (2, 3))
    sizes = []
    for condition in (1.0, 1e2, 1e4, 1e8):
        values = torch.logspace(0, -math.log10(condition), 4, dtype=DOUBLE)
        query = (left * (values / values.norm())) @ right
        parts = attention(4, 4, 1, query=query[None], key=torch.eye(4, dtype=DOUBLE)[None])
        run = Literal(Rounded(uniform(unit))).scores(x, parts)
        sizes.append(((run - parts.scores(x, 0)).norm() / parts.scores(x, 0).norm()).item())
    assert max(sizes) < 4 * min(sizes)


@few
@given(st.sampled_from(["gaussian", "zeros", "tiny", "nearly equal"]), seeds, st.integers(2, 6))
def test_lemma_4_19_softmax(kind, seed, width):
    s = 2 * features(kind, 1, width, seed)
    seen, p = torch.ones_like(s, dtype=torch.bool), torch.softmax(s, -1)
    plain = (width + 2) * p
    assert beyond(lambda run: run.softmax(s, seen, shifted=False), plain) <= ABOVE
    down = s.max() - s
    shifted = (width + 2 + down + (p * down).sum()) * p
    assert beyond(lambda run: run.softmax(s, seen), shifted) <= ABOVE


def test_refuted_lemma_4_19_without_the_range_fails_for_the_shifted_softmax_of_all_real_code():
    # 34 u where the row says 4 u.
    s = torch.tensor([[0.0, 30.0]], dtype=DOUBLE)
    seen, p = torch.ones_like(s, dtype=torch.bool), torch.softmax(s, -1)
    assert beyond(lambda run: run.softmax(s, seen), (2 + 2) * p, 2) > 8


@few
@given(st.sampled_from(["gaussian", "tiny", "nearly equal"]), seeds, st.floats(0, 0.4))
def test_corollary_4_20_holds_as_an_exponential_and_not_to_first_order(kind, seed, size):
    s = features(kind, 1, 5, seed)
    wrong = s + size * (2 * (gaussian(1, 5, seed=seed) > 0) - 1)
    found = condition_numbers.distance(torch.softmax(wrong, -1), torch.softmax(s, -1)).item()
    assert found <= math.expm1(2 * size) + 1e-12


def test_refuted_corollary_4_20_to_first_order_is_passed_by_large_errors():
    # Off by 6.2 times, where 2 max |error| is 2.
    s, error = torch.tensor([0.0, 5.0, 5.0], dtype=DOUBLE), torch.tensor([1.0, -1.0, -1.0])
    found = condition_numbers.distance(torch.softmax(s + error, -1), torch.softmax(s, -1)).item()
    assert found > 6


def scored(x, parts, width, ranged):
    """xi |y| [2t + d + 2 + 2 (3d + 1) max E + 2 range] per entry; t, E, range of each row."""
    chance, value = parts.weights(x, 0), parts.value[0].abs()
    reach = chance @ (x.abs() @ value.T)
    allowed = parts.mask(x)
    largest = absolute_scores(x, parts).masked_fill(~allowed, 0.0).amax(-1, keepdim=True)
    s = parts.scores(x, 0)
    spread = s.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True)
    spread = spread - s.masked_fill(~allowed, math.inf).amin(-1, keepdim=True)
    tokens = allowed.sum(-1, keepdim=True)
    bracket = 2 * tokens + width + 2 + 2 * (3 * width + 1) * largest + ranged * 2 * spread
    return reach * bracket


@pytest.mark.full
@few
@given(st.sampled_from(["gaussian", "zeros", "tiny", "nearly equal"]), seeds)
def test_lemma_4_21_attention_with_the_range_of_the_scores(kind, seed):
    # The leading constant of the source cannot be read; this one is derived.
    x, parts = features(kind, 3, 3, seed), attention(3, 3, seed, projected=False, size=0.7)
    limit = scored(x, parts, 3, ranged=True)
    exact = worst(lambda run: run.attention(x, parts), uniform(UNIT), 9)
    assert (exact <= limit.flatten() * UNIT * ABOVE).all()


def adversary(size):
    """Two tokens with scores -E and E, E = size^2 / sqrt 2, whose sums carry all in one term.

    The second token sees itself; what its second feature has comes from the first token alone.
    """
    x = torch.tensor([[size, 1e-3], [-size, 1e-14]], dtype=DOUBLE)
    head = torch.full((1, 2, 2), 1e-9, dtype=DOUBLE)
    head[0, 0, 0] = 1.0
    value = torch.tensor([[[1.0, 1e-9], [0.0, 1.0]]], dtype=DOUBLE)
    return x, attention(2, 2, 1, projected=False, query=head, key=head, value=value)


def test_refuted_lemma_4_21_without_the_range_is_passed_by_the_shifted_softmax():
    # 1.12 times the bound, at E = 6.4.
    x, parts = adversary(3.0)
    found = {
        ranged: beyond(lambda run: run.attention(x, parts), scored(x, parts, 2, ranged), 4)
        for ranged in (False, True)
    }
    assert found[False] > 1.12
    assert found[True] <= ABOVE


def test_refuted_lemma_4_21_to_first_order_is_no_bound_in_bfloat16():
    # 1.44 times the first order at E = 11.3; the full form holds, and is within 6 % of attained.
    x, parts = adversary(4.0)
    arithmetic = uniform(2.0**-8)
    off = pushed(lambda run: run.attention(x, parts), arithmetic, 3).flatten()[3]
    linear, full = (
        attention_bounds.attention(x, parts, a).flatten()[3]
        for a in (arithmetic.linear(), arithmetic)
    )
    assert off > 1.4 * linear
    assert 0.94 * full < off < full


def test_not_decided_the_leading_constant_of_lemma_4_21():
    # Our copy reads "2 alpha + 2 delta". What stands behind it is so large that a constant of 1
    # would do for these draws.
    for seed in range(5):
        x, parts = gaussian(3, 3, seed=seed), attention(3, 3, seed, projected=False, size=0.7)
        form = torch.linalg.svdvals(parts.key[0].T @ parts.query[0])
        absolute = torch.linalg.matrix_norm(parts.key[0].abs().T @ parts.query[0].abs(), 2)
        grown = absolute * form[0] / form[-1] * x.square().sum(-1).max()
        reach = parts.weights(x, 0) @ (x.abs() @ parts.value[0].abs().T)
        limit = reach * (1 + 2 / math.sqrt(3) * grown)
        assert beyond(lambda run, x=x, p=parts: run.attention(x, p), 15 * limit, 9) < 1


@pytest.mark.full
@settings(max_examples=30, deadline=None)
@given(seeds, st.sampled_from(["rms", "layer"]), st.sampled_from([16, 24]))
def test_theorem_4_30_holds_as_a_recursion(seed, kind, t):
    x = gaussian(3, 4, seed=seed)
    blocks = [block(4, 3, 5, seed + 100 * layer, kind, size=0.02) for layer in range(2)]
    arithmetic = uniform(2.0**-t)
    limits, exact, found = depth_bounds.recursion(x, blocks, arithmetic), x, x
    for parts, limit in zip(blocks, limits, strict=True):
        exact, found = parts.value(exact), Literal(Rounded(arithmetic)).block(found, parts)
        # From 0.01 on the first order, which this is, bounds nothing; nor was it seen to be passed.
        assert condition_numbers.distance(found, exact).max() <= limit * 1.1


def test_theorem_4_30_is_vacuous_for_ordinary_weights():
    # Six layers at 24 digits: the error is below 1e-3, both forms of the bound above 1e20 times it.
    x, arithmetic = gaussian(12, 12, seed=1), uniform(UNIT)
    blocks = [block(12, 12, 12, 50 * layer, size=0.2) for layer in range(6)]
    found = x
    for parts in blocks:
        found = Literal(Rounded(arithmetic)).block(found, parts)
    *_, running = depth_bounds.stack(x, blocks, arithmetic)
    error = condition_numbers.distance(found, running.value).max().item()
    theorem = depth_bounds.recursion(x, blocks, arithmetic)[-1]
    assert error < 1e-3 < 1 < theorem < depth_bounds.printed_bound(x, blocks, UNIT)
    assert error < relative(running.error, running.value).max().item() < theorem
    assert theorem / error > 1e20


def test_not_decided_the_constants_of_theorem_4_30():
    # The RMS form reads 16n + 23d + 17.., the form for layer norms 16^L/15 [8n + 3d + D]: the
    # smaller constants with the larger base. Any constant above 1 is far above the error.
    x, blocks = gaussian(3, 4, seed=1), [block(4, 3, 5, 1, size=0.3)]
    one = depth_bounds.printed_bound(x, blocks, UNIT, constant=1.0)
    found = Literal(Rounded(uniform(UNIT))).block(x, blocks[0])
    assert condition_numbers.distance(found, blocks[0].value(x)).max() < one
    assert depth_bounds.printed_bound(x, blocks, UNIT) == pytest.approx(
        one * (16 * 3 + 23 * 4 + 17 * 5), rel=1e-9
    )


@few
@given(seeds, st.sampled_from(["rms", "layer"]))
def test_lemmas_4_25_to_4_29_hold_for_one_block(seed, kind):
    x, parts, arithmetic = gaussian(3, 4, seed=seed), block(4, 3, 5, seed, kind), uniform(UNIT)
    step = depth_bounds.block(x, parts, arithmetic)
    found = Literal(Rounded(arithmetic)).block(x, parts)
    assert ((found - step.value).abs() <= step.error * ABOVE).all()
    limit = depth_bounds.layer(x, parts, arithmetic).after(0.0)
    linear = depth_bounds.block(x, parts, arithmetic.linear())
    assert relative(linear.error, linear.value).max() <= limit * (1 + 1e-9)
