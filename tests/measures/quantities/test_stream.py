import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.measures.measure import MeasureContext
from layerlab.measures.quantities.stream import (
    MEASURES,
    alignment,
    kurtosis,
    massive,
    median,
    norm,
    outliers,
    share,
)
from layerlab.records.layer_names import EMBEDDING
from tests.measures.quantities.stream import features, record

QUANTITIES = [norm, kurtosis, median, massive, outliers]
ROUNDING = torch.finfo(torch.float64).eps


seeds = st.integers(0, 10**6)
sizes = st.integers(1, 9)


@settings(max_examples=50, deadline=None)
@given(seeds, sizes, sizes)
def test_kurtosis_lies_between_one_and_the_width(seed, tokens, width):
    h = features(seed, tokens, width)
    slack = 4 * h.numel() * ROUNDING
    assert 1 - slack <= kurtosis(h) <= width * (1 + slack)


def test_kurtosis_is_one_for_equal_channels_and_the_width_for_a_single_one():
    assert kurtosis(torch.tensor([[2.0, -2.0], [2.0, 2.0]])) == 1
    assert kurtosis(torch.tensor([[5.0, 0.0, 0.0], [1.0, 0.0, 0.0]])) == 3


def test_gaussian_channels_of_unequal_size_have_their_closed_form():
    s = torch.tensor([1.0, 2.0, 3.0, 10.0], dtype=torch.float64)
    signs = features(1, 50).sign()
    expected = (s**4).mean() / (s**2).mean() ** 2
    assert math.isclose(kurtosis(signs * s), expected, rel_tol=200 * ROUNDING)


@settings(max_examples=50, deadline=None)
@given(seeds, sizes, sizes)
def test_norm_is_the_mean_of_the_lengths(seed, tokens, width):
    h = features(seed, tokens, width)
    lengths = [math.sqrt(sum(x * x for x in row)) for row in h.tolist()]
    assert math.isclose(norm(h), sum(lengths) / tokens, rel_tol=4 * h.numel() * ROUNDING)


@settings(max_examples=50, deadline=None)
@given(seeds, st.floats(1e-6, 1e6))
def test_a_branch_along_the_stream_has_its_factor_as_share(seed, factor):
    h = features(seed)
    slack = 16 * h.shape[1] * ROUNDING
    assert math.isclose(share(h * factor, h), factor, rel_tol=slack)
    assert math.isclose(alignment(h * factor, h), 1, rel_tol=slack)
    assert math.isclose(alignment(h * -factor, h), -1, rel_tol=slack)


@settings(max_examples=50, deadline=None)
@given(seeds, seeds)
def test_alignment_is_a_cosine(seed, other):
    assert -1 <= alignment(features(seed), features(other)) <= 1


def test_no_rounding_takes_a_cosine_beyond_one():
    for h in map(features, range(200)):
        assert alignment(h, h) <= 1 and alignment(-h, h) >= -1


def test_an_orthogonal_branch_has_alignment_zero():
    assert alignment(torch.tensor([[0.0, 3.0]]), torch.tensor([[2.0, 0.0]])) == 0


def test_tokens_of_zeros_are_left_out_of_the_shares():
    stream = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    branch = torch.tensor([[7.0, 7.0], [6.0, 8.0]])
    assert share(branch, stream) == 2
    assert math.isclose(alignment(branch, stream), 1, rel_tol=4 * ROUNDING)
    assert share(branch, torch.zeros(2, 2)).isnan()
    assert alignment(torch.zeros(2, 2), branch).isnan()


@pytest.mark.parametrize("rest, expected", [(0.05, 2), (0.5, 1), (6.0, 0)])
def test_a_massive_activation_passes_both_thresholds(rest, expected):
    h = torch.full((10, 10), rest)
    h[0, :3] = torch.tensor([100.0, 101.0, -5000.0])
    assert massive(h) == expected


def test_the_median_is_the_lower_of_two():
    assert median(torch.tensor([[4.0, -1.0], [2.0, -3.0]])) == 2


def test_outliers_are_six_or_more():
    assert outliers(torch.tensor([[6.0, -6.0, 5.999, 100.0]])) == 3


@settings(max_examples=30, deadline=None)
@given(seeds, seeds)
def test_permuting_tokens_or_channels_changes_nothing(seed, other):
    h = features(seed) * 200
    generator = torch.Generator().manual_seed(other)
    mixed = h[torch.randperm(6, generator=generator)][:, torch.randperm(4, generator=generator)]
    for quantity in QUANTITIES:
        assert math.isclose(quantity(mixed), quantity(h), rel_tol=64 * ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_half_precision_is_read_exactly(quantity, dtype):
    h = (features(3) * 40).to(dtype)
    assert quantity(h) == quantity(h.float())


def test_huge_features_do_not_overflow():
    h = features(4).half().float()
    huge = h * 2.0**120
    assert norm(huge) == norm(h) * 2.0**120
    assert kurtosis(huge) == kurtosis(h)
    assert share(huge, h) == share(h, h) * 2.0**120
    assert alignment(huge, h) == alignment(h, h)
    assert massive(huge) == 0 and outliers(huge) == h.count_nonzero()
    large = torch.full((3, 2), 1e300, dtype=torch.float64)
    assert median(large) == 1e300
    assert math.isclose(norm(large), math.sqrt(2) * 1e300, rel_tol=4 * ROUNDING)


def test_zeros_are_read_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        h = torch.zeros(3, 2)
        assert [norm(h), median(h), massive(h), outliers(h)] == [0, 0, 0, 0]
        assert kurtosis(h).isnan()


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_what_is_not_a_number_stays_so(quantity):
    h = features(5)
    h[2, 1] = math.nan
    assert quantity(h).isnan()


def rows(*records):
    run = MeasureContext(options={})
    return [row for entry in records for row in MEASURES[0].read(entry, run)]


def test_growth_is_relative_to_the_embedding_output_of_the_same_sequence():
    first, second = features(1), features(2)
    readings = rows(
        record(first, layer=EMBEDDING),
        record(second, layer=EMBEDDING, sequence=1),
        record(first * 4, layer=0),
        record(second * 8, layer=0, sequence=1),
    )
    assert [row["growth"] for row in readings] == [1, 1, 4, 8]


def test_growth_without_an_embedding_reading_is_not_a_number():
    assert math.isnan(rows(record(features(1)))[0]["growth"])
    assert math.isnan(rows(record(torch.zeros(2, 2), EMBEDDING), record(features(1)))[1]["growth"])


def test_shares_are_relative_to_what_entered_the_block():
    entered = features(1)
    (row,) = rows(record(entered * 5, entered=entered, attention=entered * 2, ffn=-entered))
    assert row["attention_share"] == 2 and row["ffn_share"] == 1
    assert math.isclose(row["attention_cosine"], 1) and math.isclose(row["ffn_cosine"], -1)


def test_the_embedding_output_has_no_shares_and_every_column():
    (row,) = rows(record(features(1), layer=EMBEDDING))
    assert math.isnan(row["attention_share"]) and math.isnan(row["ffn_share"])
    assert set(row) == {*MEASURES[0].per, *MEASURES[0].columns}


def test_the_largest_entry_is_named_by_token_and_channel():
    h = features(1)
    h[4, 2] = -50.0
    (row,) = rows(record(h))
    assert (row["largest"], row["largest_token"], row["largest_channel"]) == (50, 4, 2)


def test_a_single_token_is_read():
    (row,) = rows(record(torch.tensor([[3.0, 4.0]]), layer=EMBEDDING))
    assert row["norm"] == 5 and row["largest"] == 4 and row["growth"] == 1
