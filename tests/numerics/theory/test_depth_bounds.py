"""Bounds of whole blocks and stacks against blocks in which every operation is rounded."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.numerics.theory import condition_numbers, depth_bounds, error_bounds
from layerlab.numerics.theory.roundoff_model import Arithmetic, mixed, uniform
from tests.numerics import draw
from tests.numerics.draw import features, gaussian, inputs, seeds, weights
from tests.numerics.literal import Literal, Rounded, worst

TOKENS, WIDTH, INNER = 3, 4, 5
# float64 against at most 24 digits, through a few layers.
ABOVE = 1 + 1e-6
styles = st.sampled_from([("rms", True), ("rms", False), ("layer", False)])


def stack(layers, seed, style=("rms", True), size=0.2):
    return [
        draw.block(WIDTH, TOKENS, INNER, seed + 100 * layer, *style, size=size)
        for layer in range(layers)
    ]


def computed(x, blocks, arithmetic):
    for parts in blocks:
        x = Literal(Rounded(arithmetic)).block(x, parts)
        yield x


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(inputs, seeds, styles, st.sampled_from([8, 11, 24]), st.booleans())
def test_the_running_bound_is_never_below_the_error(kind, seed, style, t, two):
    x, blocks = features(kind, TOKENS, WIDTH, seed), stack(3, seed, style)
    arithmetic = mixed(2.0 ** -min(t, 11), 2.0**-24) if two else uniform(2.0**-t)
    for found, step in zip(
        computed(x, blocks, arithmetic), depth_bounds.stack(x, blocks, arithmetic), strict=True
    ):
        assert ((found - step.value).abs() <= step.error * ABOVE).all()


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(["gaussian", "zeros"]), seeds, styles)
def test_the_first_order_is_never_below_the_exact_worst_case_of_two_blocks(kind, seed, style):
    x, blocks = features(kind, 2, WIDTH, seed) + 0.1, stack(2, seed, style)
    arithmetic = uniform(2.0**-24)

    def run(literal):
        return literal.block(literal.block(x, blocks[0]), blocks[1])

    exact = worst(run, arithmetic, outputs=3)
    *_, last = depth_bounds.stack(x, blocks, arithmetic.linear())
    assert (exact <= last.error.flatten()[:3] * (1 + 1e-9)).all()


@pytest.mark.full
@settings(max_examples=20, deadline=None)
@given(seeds, styles)
def test_the_recursion_is_no_sharper_than_the_running_bound(seed, style):
    x, blocks = features("gaussian", TOKENS, WIDTH, seed), stack(2, seed, style)
    arithmetic = uniform(2.0**-30).linear()
    bound = depth_bounds.recursion(x, blocks, arithmetic)
    for limit, step in zip(bound, depth_bounds.stack(x, blocks, arithmetic), strict=True):
        assert error_bounds.relative(step.error, step.value).max() <= limit * (1 + 1e-9)


def test_a_layer_multiplies_large_errors_by_its_factor():
    layer = depth_bounds.layer(gaussian(TOKENS, WIDTH), stack(1, 1)[0], uniform(2.0**-24))
    assert layer.after(1e9) / 1e9 == pytest.approx(layer.factor, rel=1e-9)
    assert layer.after(0.0) > 0


def test_a_layer_that_changes_nothing_adds_the_errors_of_its_two_sums():
    plain = dict.fromkeys(depth_bounds.LayerFactors.__dataclass_fields__, 1.0)
    own = {"norm_own": 0.0, "attention_own": 0.0, "middle_norm_own": 0.0, "feedforward_own": 0.0}
    layer = depth_bounds.LayerFactors(**{**plain, **own, "added": 0.25})
    assert [layer.after(error) for error in (0.0, 1.0)] == [0.5, 1.5]


def test_exact_arithmetic_has_no_error():
    *_, last = depth_bounds.stack(gaussian(TOKENS, WIDTH), stack(2, 1), Arithmetic())
    assert (last.error == 0).all()


def test_a_residual_stream_in_higher_precision_lowers_the_bound():
    x, parts = gaussian(TOKENS, WIDTH, seed=2), stack(1, 5)[0]
    low = uniform(2.0**-8)
    helped = replace(low, residual=2.0**-24)
    assert (
        depth_bounds.block(x, parts, helped).error < depth_bounds.block(x, parts, low).error
    ).all()
    scores = depth_bounds.block(x, parts, low, scoring=uniform(2.0**-24))
    assert (scores.error < depth_bounds.block(x, parts, low).error).all()


def test_factors_from_weights_alone_are_those_of_the_source():
    parts = stack(1, 3, size=1.0)[0]
    attention = parts.attention
    form = attention.key[0].T @ attention.query[0]
    values = torch.linalg.svdvals(form)
    assert depth_bounds.weight_factor(parts) == pytest.approx(
        4 * (1 + 4 * math.sqrt(WIDTH) * values[0].item()), rel=1e-6
    )  # the stored scale is that of float32
    absolute = torch.linalg.svdvals(attention.key[0].abs().T @ attention.query[0].abs())[0]
    expected = 1 + 4 * math.sqrt(WIDTH) * (absolute * values[0] / values[-1]).item()
    assert depth_bounds.printed_factor(parts) == pytest.approx(expected, rel=1e-9)
    narrow = replace(parts, attention=draw.attention(WIDTH, TOKENS, 1, heads=2, head_width=2))
    assert depth_bounds.printed_factor(narrow) == math.inf
    blind = replace(attention, query=torch.zeros_like(attention.query))
    assert depth_bounds.printed_factor(replace(parts, attention=blind)) == math.inf


def test_a_gain_and_a_shift_lengthen_what_attention_reads():
    parts = stack(1, 3, ("layer", False))[0]
    front = parts.attention_norm
    longest = math.sqrt(WIDTH) * front.gain.abs().max() + front.shift.norm()
    norms = condition_numbers.form_norms(parts.attention)
    expected = 4 * (1 + 4 * parts.attention.scale * longest**2 * norms.max())
    assert depth_bounds.weight_factor(parts) == pytest.approx(expected.item(), rel=1e-12)
    reached = front.value(1e3 * weights(50, WIDTH, seed=1, size=1.0)).norm(dim=-1)
    assert (reached <= longest).all()
