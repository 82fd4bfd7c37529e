from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layerlab.measures.measure import MeasureContext
from layerlab.measures.quantities.spectrum import MEASURES, Spectrum, spectrum, uniform_norm
from layerlab.measures.support.lanczos import GAP
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import triangular
from layerlab.observe.tracing.records import Layer
from tests.measures.regime import KINDS, attention, record, svd_contraction, svd_norm

ROUNDING = torch.finfo(torch.float32).eps / 2
MEASURE = MEASURES[0]


def read(attended, measure=MEASURE):
    none = torch.empty(0, dtype=torch.long)
    layer = Layer(sequence=3, layer=1, tokens=none, stream=torch.empty(0, 4), attention=attended)
    return list(measure.read(layer, MeasureContext(options=measure.options)))


def of_scores(scores, **options):
    return spectrum(
        AttentionRecord(layer=0, name="scores", scores=scores, **options), dtype=torch.float64
    )


def agree(one: Spectrum, other: Spectrum, relative: float) -> bool:
    """Every reading; the upper bound only to its gap: it improves while other heads still work."""
    return all(
        torch.allclose(
            getattr(one, field.name).double(),
            getattr(other, field.name).double(),
            rtol=GAP if field.name == "upper" else relative,
        )
        for field in fields(Spectrum)
    )


def cesaro(tokens):
    matrix = np.tril(np.ones((tokens, tokens)))
    return matrix / matrix.sum(1, keepdims=True)


@pytest.mark.parametrize("tokens", [1, 2, 17])
def test_uniform_attention_without_a_mask_has_norm_one(tokens):
    found = of_scores(torch.zeros(1, tokens, tokens), causal=False)
    assert found.norm.item() == pytest.approx(1, rel=1e-12)
    assert found.contraction.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("tokens", [1, 2, 5, 128, 300])
def test_uniform_causal_attention_has_the_norm_of_the_cesaro_matrix(tokens):
    exact = np.linalg.norm(cesaro(tokens), 2)
    found = of_scores(torch.zeros(1, tokens, tokens))
    assert found.norm.item() == pytest.approx(exact, rel=1e-9)
    assert uniform_norm(tokens, tokens) == pytest.approx(exact, rel=1e-9)


def test_uniform_norm_knows_fewer_rows_than_keys_and_no_mask():
    last = cesaro(40)[30:]
    assert uniform_norm(10, 40) == pytest.approx(np.linalg.norm(last, 2), rel=1e-9)
    assert uniform_norm(10, 40, causal=False) == pytest.approx(0.5)


@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_one_column_attains_the_column_and_the_token_bound(tokens):
    scores = torch.full((1, tokens, tokens), -torch.inf, dtype=torch.float64)
    scores[..., 0] = 0.0
    found = of_scores(scores)
    for value in (found.norm, found.column_bound, found.column_lower):
        assert value.item() == pytest.approx(tokens**0.5, rel=1e-12)


def test_a_permutation_and_the_identity_have_norm_one():
    scores = torch.full((2, 9, 9), -torch.inf, dtype=torch.float64)
    scores[0][torch.arange(9), torch.randperm(9)] = 0.0
    scores[1].fill_diagonal_(0.0)
    assert of_scores(scores, causal=False).norm.tolist() == pytest.approx([1, 1], rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 65, 200, pytest.param(512, marks=pytest.mark.full)])
def test_norms_are_those_of_the_svd_in_every_regime(kind, tokens):
    attended = record(kind, tokens)
    matrix = attention(attended)
    exact, contraction = svd_norm(matrix), svd_contraction(matrix)
    fine, coarse = spectrum(attended, dtype=torch.float64), spectrum(attended)
    assert torch.allclose(coarse.norm, exact, rtol=1e-6)
    assert torch.allclose(fine.norm, exact, rtol=1e-9)
    assert (fine.lower <= exact * (1 + 1e-14)).all() and (exact <= fine.upper * (1 + 1e-14)).all()
    assert (fine.upper / fine.lower - 1 <= 1e-3).all()
    assert (coarse.upper / coarse.lower - 1 <= 1e-3).all()
    assert torch.allclose(coarse.contraction, contraction, rtol=2e-6, atol=tokens * ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_halves_that_hardly_touch_are_enclosed_and_told_to_the_gap(dtype):
    """Six digits are promised where one part of a matrix leads, and here neither does."""
    draw = torch.Generator().manual_seed(0)
    scores = 0.01 * torch.randn(1, 300, 300, generator=draw, dtype=torch.float64)
    scores[:, :150, 150:] = scores[:, 150:, :150] = -40.0
    attended = AttentionRecord(layer=0, name="halves", scores=scores)
    past = torch.ones(300, 300, dtype=torch.bool).tril()
    exact = torch.linalg.matrix_norm(scores.masked_fill(~past, -torch.inf).softmax(-1), 2)
    found = spectrum(attended, dtype=dtype)
    assert (found.lower <= exact * (1 + 1e-14)).all() and (exact <= found.upper).all()
    assert -GAP <= found.norm.item() / exact.item() - 1 <= 1e-6


def test_float32_keeps_six_digits_at_2048_tokens():
    attended = record("peaky", 2048, heads=1)
    coarse, fine = spectrum(attended), spectrum(attended, dtype=torch.float64)
    assert coarse.norm.item() == pytest.approx(fine.norm.item(), rel=1e-6)
    assert coarse.upper / coarse.lower - 1 <= 1e-3


@pytest.mark.parametrize("size", [4.0, 300.0, 3000.0])
def test_large_scores_do_not_cost_digits(size):
    # All rows choose alike, between keys whose scores nearly tie: rounding has nothing to average.
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(1, 1, 32, generator=draw)
    query = query / query.norm()
    key = torch.randn(1, 256, 32, generator=draw)
    key = key - (key @ query.mT) * query + (size + torch.rand(1, 256, 1, generator=draw)) * query
    attended = AttentionRecord(layer=0, name="tie", query=query.expand(1, 256, 32), key=key)
    error = spectrum(attended).norm / svd_norm(attention(attended)) - 1
    assert error.abs().item() <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_reads_what_kept_tiles_read(kind):
    attended = record(kind, 300)
    kept = spectrum(attended, dtype=torch.float64)
    assert agree(kept, spectrum(attended, dtype=torch.float64, dense=0), 1e-9)


OPTIONS = {
    "grouped": {"key": torch.randn(1, 150, 32, generator=torch.Generator().manual_seed(1))},
    "softcap": {"softcap": 2.0},
    "window": {"window": 20},
    "alibi": {"bias": -torch.arange(150).flip(0) * torch.tensor([0.5, 0.1, 0.02])[:, None, None]},
    "bidirectional": {"causal": False},
    "sinks": {"sinks": torch.tensor([1.0, -3.0, 6.0])},
    "all": {"window": 70, "softcap": 5.0, "sinks": torch.tensor([0.0, 1.0, 2.0])},
}


@pytest.mark.few(5)
@pytest.mark.parametrize("dense", [0, 4096])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_form_of_attention_agrees_with_the_svd(name, dense):
    options = dict(OPTIONS[name])
    if "bias" in options:
        options["bias"] = options["bias"].expand(3, 150, 150)
    attended = record("peaky", 150, **options)
    matrix = attention(attended)
    found = spectrum(attended, dtype=torch.float64, dense=dense)
    assert torch.allclose(found.norm, svd_norm(matrix), rtol=1e-9)
    assert torch.allclose(found.contraction, svd_contraction(matrix), rtol=1e-6)
    sums = matrix.sum(-1)
    assert torch.allclose(found.row_sum_min, sums.amin(-1), rtol=1e-9)
    assert torch.allclose(found.row_lower, sums.norm(dim=-1) / 150**0.5, rtol=1e-9)
    assert torch.allclose(found.column_lower, matrix.norm(dim=1).amax(-1), rtol=1e-9)
    assert torch.allclose(found.column_bound, matrix.sum(1).amax(-1).sqrt(), rtol=1e-9)


def test_a_sink_pushes_the_norm_below_one_and_the_row_bound_with_it():
    found = spectrum(record("init", 40, sinks=torch.full((3,), 6.0)), dtype=torch.float64)
    assert (found.norm < 1).all() and (found.row_lower <= found.norm).all()
    assert (found.row_sum_min < 1).all()


@pytest.mark.parametrize("boolean", [True, False])
def test_a_mask_that_only_says_causal_is_found_and_dropped(boolean):
    past = torch.ones(1, 90, 90).tril().bool()
    mask = past if boolean else torch.zeros(1, 90, 90).masked_fill(~past, torch.finfo().min)
    plain = record("local", 90)
    masked = replace(plain, causal=False, bias=mask)
    assert triangular(masked).causal and triangular(masked).bias is None
    assert agree(spectrum(masked), spectrum(plain), 1e-6)


@pytest.mark.parametrize("window", [1, 7, 89, 90, 200])
@pytest.mark.parametrize("boolean", [True, False])
def test_a_mask_that_only_says_a_window_is_found_and_dropped(boolean, window):
    seen = torch.ones(1, 90, 90).tril().triu(1 - window).bool()
    mask = seen if boolean else torch.zeros(1, 90, 90).masked_fill(~seen, torch.finfo().min)
    plain = record("local", 90)
    found = triangular(replace(plain, causal=False, bias=mask))
    assert (found.causal, found.bias) == (True, None)
    assert found.window == (window if window < 90 else None)
    exact = torch.softmax(plain.masked_scores(dtype=torch.float64).where(seen, -torch.inf), -1)
    norm = spectrum(replace(plain, causal=False, bias=mask), dtype=torch.float64).norm
    assert torch.allclose(norm, svd_norm(exact), rtol=1e-9)


@pytest.mark.parametrize("row", [3, 50, 89])
def test_a_mask_of_a_window_with_one_row_otherwise_is_kept(row):
    seen = torch.ones(1, 90, 90).tril().triu(-6).bool()
    seen[:, row, row - 2] = False
    masked = replace(record("local", 90), causal=False, bias=seen)
    assert triangular(masked).causal and triangular(masked).window is None
    assert triangular(masked).bias is seen


def test_a_mask_of_a_window_that_adds_something_is_kept():
    seen = torch.ones(1, 90, 90).tril().triu(-6).bool()
    bias = torch.zeros(1, 90, 90).masked_fill(~seen, -torch.inf)
    bias[:, 40, 38] = 0.5
    masked = replace(record("local", 90), causal=False, bias=bias)
    assert triangular(masked).bias is bias and triangular(masked).window is None


def test_a_mask_of_a_window_before_a_learned_prefix_is_read_from_the_last_key():
    plain = record("local", 90)
    rows = replace(plain, query=plain.query[:, 30:], causal=False)
    seen = torch.ones(1, 90, 90).tril().triu(-6).bool()[:, 30:]
    found = triangular(replace(rows, bias=seen))
    assert (found.causal, found.window, found.bias) == (True, 7, None)


def test_a_mask_that_says_more_is_kept():
    past = torch.ones(1, 90, 90).tril().bool()
    past[:, 1:, 4] = False
    masked = replace(record("local", 90), causal=False, bias=past)
    assert triangular(masked).causal and triangular(masked).bias is past
    assert of_scores(torch.zeros(1, 3, 3), causal=False).norm.item() == pytest.approx(1)
    exact = svd_norm(torch.softmax(masked.masked_scores(dtype=torch.float64), -1))
    assert torch.allclose(spectrum(masked, dtype=torch.float64).norm, exact, rtol=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0, 50), st.booleans())
@settings(max_examples=80, deadline=None)
@example(1055, 8, 40.0, False)
def test_bounds_hold_in_their_order_on_random_attention(seed, tokens, sharpness, causal):
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, tokens, tokens, generator=draw, dtype=torch.float64) * sharpness
    found = of_scores(scores, causal=causal)
    above = 1 + 16 * tokens * torch.finfo(torch.float64).eps
    assert (found.lower <= found.norm).all() and (found.norm <= found.upper).all()
    assert (found.norm <= found.column_bound * above).all()
    assert (found.column_bound <= tokens**0.5 * above).all()
    # The norm is an estimate from below: what surely lies below the true one may lie above it.
    assert (found.column_lower <= found.upper * above).all()
    assert (found.norm * above >= 1).all()


def test_relabelling_tokens_changes_nothing_without_a_mask():
    scores = torch.randn(2, 30, 30, generator=torch.Generator().manual_seed(2)).double()
    order = torch.randperm(30)
    relabelled = scores[:, order][:, :, order]
    assert agree(of_scores(scores, causal=False), of_scores(relabelled, causal=False), 1e-8)


def test_scores_of_the_record_are_left_as_they_were():
    scores = torch.randn(1, 12, 12).masked_fill(~torch.ones(12, 12).tril().bool(), -1e38 * 3)
    before = scores.clone()
    spectrum(AttentionRecord(layer=0, name="scores", scores=scores, causal=False))
    assert torch.equal(scores, before)


def test_rows_name_sequence_layer_and_head_and_hold_every_declared_column():
    rows = read(record("sink", 50))
    assert [row["head"] for row in rows] == [0, 1, 2]
    assert all(row["sequence"] == 3 and row["layer"] == 0 for row in rows)
    assert set(rows[0]) == {*MEASURE.per, *MEASURE.columns}
    assert rows[0]["token_bound"] == 50**0.5
    ratio = rows[0]["norm"] / np.linalg.norm(cesaro(50), 2)
    assert rows[0]["uniform_ratio"] == pytest.approx(ratio, rel=1e-9)


def test_float64_is_an_option_and_makes_the_enclosure_tighter():
    coarse, fine = (
        read(record("init", 80)),
        read(record("init", 80), MEASURE.given(dtype="float64")),
    )
    for row in fine:
        assert row["norm"] == pytest.approx(coarse[row["head"]]["norm"], rel=1e-6)


def test_a_head_with_nan_reads_nan_and_the_others_are_spared():
    attended = record("init", 30)
    attended.query[1, 4] = torch.nan
    rows = read(attended)
    assert np.isnan(rows[1]["norm"]) and np.isnan(rows[1]["upper"])
    assert np.isfinite(rows[0]["norm"]) and np.isfinite(rows[2]["contraction"])


def test_columns_that_no_row_may_use_are_left_out():
    bias = torch.zeros(1, 40, 40)
    bias[:, 10:, 5] = -torch.inf
    bias[:, 8:, 7] = torch.finfo().min
    bias[:, 7, 7] = 0.0
    attended = record("peaky", 40, bias=bias)
    found = spectrum(attended, dtype=torch.float64)
    assert torch.allclose(found.norm, svd_norm(attention(attended)), rtol=1e-9)


def test_a_block_without_attention_gives_no_rows():
    assert read(None) == []


@pytest.mark.parametrize("tokens", [2, 3, 5, 64, 128])
def test_contraction_does_not_rest_on_a_smaller_singular_value(tokens):
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        query = 10 * torch.randn(2, tokens, 16, generator=draw)
        key = torch.randn(2, tokens, 16, generator=draw)
        record = AttentionRecord(layer=0, name="attention", query=query, key=key, scaling=0.25)
        matrix = record.weights().double()
        exact = torch.linalg.svdvals(matrix - matrix.mean(-2, keepdim=True))[:, 0]
        floor = tokens**0.5 * torch.finfo(torch.float32).eps * torch.linalg.matrix_norm(matrix, 2)
        error = (spectrum(record).contraction - exact).abs()
        assert (error <= 1e-4 * exact + 8 * floor).all(), (seed, error / exact)


def test_the_number_of_threads_is_what_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    spectrum(record("init", 10))
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == 2
