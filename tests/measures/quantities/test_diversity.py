import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.measures.measure import MeasureContext
from layerlab.measures.quantities.diversity import (
    MEASURES,
    composite_residual,
    cosine,
    diversity,
    relative_residual,
)
from layerlab.measures.support.centring import centre
from tests.measures.quantities.stream import features, record

QUANTITIES = [diversity, relative_residual, composite_residual, cosine]
ROUNDING = torch.finfo(torch.float64).eps


def tolerance(h):
    """Sums of n*d terms, each step of which rounds once; 8 covers the steps in a row."""
    return 8 * h.numel() * ROUNDING


matrices = st.builds(
    lambda seed, tokens, width, mean, scale: features(seed, tokens, width, mean) * scale,
    st.integers(0, 10**6),
    st.integers(2, 9),
    st.integers(1, 7),
    st.sampled_from([0.0, 1.0, 1e3, 1e8]),
    st.sampled_from([1e-6, 1.0, 1e6]),
)


@pytest.mark.parametrize("value", [0.1, 1e-30, 1e30, -7.0])
def test_diversity_is_exactly_zero_when_all_tokens_agree(value):
    h = (torch.arange(1.0, 6.0) * value).expand(7, 5)
    assert diversity(h) == 0
    assert relative_residual(h) == 0
    assert composite_residual(h) == 0


def test_cosine_is_one_when_all_tokens_point_the_same_way():
    h = torch.arange(1.0, 8.0)[:, None] * torch.tensor([3.0, -1.0, 2.0])
    assert abs(cosine(h) - 1) <= tolerance(h)


@pytest.mark.parametrize("tokens", [2, 5, 64])
def test_one_hot_tokens_have_their_closed_forms(tokens):
    h = torch.eye(tokens)
    residual = math.sqrt((tokens - 1) / tokens)
    assert math.isclose(diversity(h), math.sqrt(tokens - 1), rel_tol=tolerance(h))
    assert math.isclose(relative_residual(h), residual, rel_tol=tolerance(h))
    assert math.isclose(composite_residual(h), 2 * (tokens - 1) / tokens, rel_tol=tolerance(h))
    assert abs(cosine(h)) <= tolerance(h)


def test_cosine_reaches_its_lower_end_on_a_simplex():
    simplex = centre(torch.eye(5))
    assert math.isclose(cosine(simplex), -1 / 4, rel_tol=tolerance(simplex))


@settings(max_examples=60, deadline=None)
@given(matrices)
def test_diversity_is_the_least_distance_to_equal_rows(h):
    direct = torch.linalg.matrix_norm(h - h.mean(0))
    assert diversity(h) <= direct + tolerance(h) * h.abs().max()
    for row in (h[0], h.median(0).values, torch.zeros(h.shape[1], dtype=h.dtype)):
        assert diversity(h) <= torch.linalg.matrix_norm(h - row) * (1 + tolerance(h))


def test_the_composite_norm_is_that_of_rows_and_columns():
    h = features(4, mean=0.5)
    centred, whole = (
        torch.linalg.matrix_norm(m, 1) * torch.linalg.matrix_norm(m, math.inf)
        for m in (h - h.mean(0), h)
    )
    assert math.isclose(composite_residual(h), (centred / whole).sqrt(), rel_tol=tolerance(h))


@settings(max_examples=60, deadline=None)
@given(matrices)
def test_every_ratio_stays_in_its_range(h):
    tokens = len(h)
    assert 0 <= relative_residual(h) <= 1 + tolerance(h)
    assert 0 <= composite_residual(h) <= 2 * (tokens - 1) / tokens + tolerance(h)
    assert -1 / (tokens - 1) <= cosine(h) <= 1


@settings(max_examples=60, deadline=None)
@given(matrices)
def test_cosine_equals_the_mean_over_pairs(h):
    unit = h / h.norm(dim=1, keepdim=True)
    pairs = [unit[i] @ unit[j] for i in range(len(h)) for j in range(len(h)) if i != j]
    assert abs(cosine(h) - sum(pairs) / len(pairs)) <= tolerance(h)


@settings(max_examples=60, deadline=None)
@given(matrices)
def test_residual_and_cosine_agree_on_tokens_of_equal_length(h):
    unit = h / h.norm(dim=1, keepdim=True)
    tokens = len(h)
    expected = (tokens * (1 - relative_residual(unit) ** 2) - 1) / (tokens - 1)
    assert abs(cosine(unit) - expected) <= tolerance(h)


def test_the_cosine_of_centred_tokens_cannot_tell_a_line_from_a_simplex():
    simplex = centre(torch.eye(8))
    line = torch.tensor([1.0, -1.0]).repeat(4)[:, None] * torch.ones(1, 8)
    assert torch.equal(centre(line), line.double())
    for cloud in (simplex, line):
        assert math.isclose(cosine(cloud), -1 / 7, rel_tol=tolerance(cloud))


@settings(max_examples=40, deadline=None)
@given(matrices, st.integers(0, 10**6))
def test_rotating_features_and_permuting_tokens_change_nothing(h, seed):
    turned = h @ torch.linalg.qr(features(seed, h.shape[1], h.shape[1]))[0]
    order = torch.randperm(len(h), generator=torch.Generator().manual_seed(seed))
    # A rotation rounds relative to the features, so a small spread on a large mean loses digits.
    slack = tolerance(h) * max(1.0, (h.abs().max() / diversity(h).clamp_min(1e-300)).item())
    for quantity in (diversity, relative_residual, cosine):
        assert math.isclose(quantity(turned), quantity(h), rel_tol=slack, abs_tol=tolerance(h))
    for quantity in QUANTITIES:
        assert math.isclose(quantity(h[order]), quantity(h), rel_tol=slack, abs_tol=tolerance(h))


@settings(max_examples=40, deadline=None)
@given(matrices, st.sampled_from([1e-9, -3.0, 1e12]))
def test_scaling_moves_the_distance_alone(h, factor):
    slack = tolerance(h) * max(1.0, (h.abs().max() / diversity(h).clamp_min(1e-300)).item())
    assert math.isclose(diversity(h * factor), abs(factor) * diversity(h), rel_tol=slack)
    for quantity in QUANTITIES[1:]:
        assert math.isclose(quantity(h * factor), quantity(h), rel_tol=slack, abs_tol=slack)


def test_a_small_spread_on_a_large_mean_is_not_lost():
    spread = features(3).round(decimals=3)
    h = spread * 2**-20 + 2.0**20
    exact = h - 2.0**20
    assert exact.count_nonzero() == exact.numel()
    assert math.isclose(diversity(h), (exact - exact.mean(0)).norm(), rel_tol=tolerance(h))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_half_precision_is_read_exactly(quantity, dtype):
    h = features(5, mean=2.0).to(dtype)
    assert quantity(h) == quantity(h.double())


@pytest.mark.parametrize("scale", [2.0**120, 2.0**-120])
def test_huge_and_tiny_features_neither_overflow_nor_vanish(scale):
    h = features(6).half().float()
    scaled = h * scale
    assert torch.equal(scaled / scale, h)
    assert diversity(scaled) == diversity(h) * scale
    for quantity in QUANTITIES[1:]:
        assert abs(quantity(scaled) - quantity(h)) <= tolerance(h)


def test_float64_features_near_the_largest_number_do_not_overflow():
    h = features(7)
    assert math.isclose(diversity(h * 1e300), diversity(h) * 1e300, rel_tol=tolerance(h))
    assert math.isclose(relative_residual(h * 1e300), relative_residual(h), rel_tol=tolerance(h))


def test_zeros_have_distance_zero_and_no_ratio():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        h = torch.zeros(4, 3)
        assert diversity(h) == 0
        assert all(quantity(h).isnan() for quantity in QUANTITIES[1:])


def test_a_token_of_zeros_has_no_direction_and_is_left_out():
    h = torch.cat([torch.zeros(1, 4, dtype=torch.float64), features(8)])
    assert float(cosine(h)) == pytest.approx(float(cosine(h[1:])), rel=1e-14)
    assert cosine(torch.tensor([[0.0, 0.0], [1.0, 2.0]])).isnan()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_what_is_not_a_number_stays_so(quantity, bad):
    h = features(9)
    h[2, 1] = bad
    assert quantity(h).isnan()


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_one_token_is_refused_in_one_clear_line(quantity):
    with pytest.raises(UserError, match=r"given 1 token; .* give a text of at least two tokens"):
        quantity(torch.ones(1, 3))


def test_a_block_gives_a_row_for_its_stream_and_one_for_each_branch():
    (measure,) = MEASURES
    stream, attention, ffn = features(1), features(2), features(3)
    rows = list(
        measure.read(record(stream, attention=attention, ffn=ffn), MeasureContext(options={}))
    )
    assert [row["place"] for row in rows] == ["stream", "attention", "ffn"]
    assert rows[1]["diversity"] == diversity(attention).item()
    assert set(rows[0]) == {*measure.per, *measure.columns}


def test_the_embedding_output_has_a_stream_only():
    rows = list(MEASURES[0].read(record(features(1), layer=0), MeasureContext(options={})))
    assert [(row["layer"], row["place"]) for row in rows] == [(0, "stream")]


def test_one_token_reads_as_not_a_number():
    (row,) = MEASURES[0].read(record(torch.ones(1, 3), layer=0), MeasureContext(options={}))
    assert all(math.isnan(row[column]) for column in MEASURES[0].columns)
