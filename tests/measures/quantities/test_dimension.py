import contextlib
import io
import math
import queue
import threading
import warnings
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from layerlab import UserError
from layerlab.measures.measure import MeasureContext
from layerlab.measures.quantities.dimension import (
    MEASURES,
    effective_dimension,
    effective_rank,
    entropy_rank,
    participation_ratio,
    reliable,
    stable_rank,
)
from layerlab.measures.quantities.diversity import relative_residual
from layerlab.measures.support.centring import Pool, SecondMoments, centre, gram_eigenvalues
from layerlab.observe.tracing import device_schedule
from tests.measures.quantities.stream import features, record

COUNTS = [effective_dimension, effective_rank, participation_ratio, stable_rank, entropy_rank]
ROUNDING = torch.finfo(torch.float64).eps


def measured(h):
    return gram_eigenvalues(centre(h))


spectra = st.lists(st.sampled_from([0.0, 1e-9, 1e-3, 0.5, 1.0, 1.0, 7.0, 1e6]), min_size=1).filter(
    any
)
shares = st.floats(1e-3, 1.0)


@pytest.mark.parametrize("size", [1, 5, 10, 30])
def test_equal_eigenvalues_count_themselves(size):
    values = torch.full((size,), 0.1)
    assert effective_dimension(values, 0.8) == math.ceil(0.8 * size)
    for count in COUNTS[1:]:
        assert math.isclose(count(values), size, rel_tol=4 * size * ROUNDING)


@pytest.mark.parametrize("count", COUNTS)
def test_one_direction_counts_as_one(count):
    h = features(0, 30, 1) * features(1, 1, 8)
    assert math.isclose(count(measured(h)), 1, rel_tol=30 * ROUNDING)


@pytest.mark.parametrize("tokens", [5, 9])
def test_one_hot_tokens_span_one_dimension_less_than_they_are(tokens):
    values = measured(torch.eye(tokens))
    for count in COUNTS[1:]:
        assert math.isclose(count(values), tokens - 1, rel_tol=tokens**2 * ROUNDING)
    assert effective_dimension(values, 1.0) == tokens - 1


def marchenko_pastur_share(ratio, epsilon):
    """Share of the largest eigenvalues that hold epsilon of the trace, as width / N = ratio."""
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    # The half-angle substitution removes the square-root ends of the density.
    angle = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    x = (high + low) / 2 + (high - low) / 2 * angle.cos()
    count = angle.sin().square() / x
    weight = count * x
    reached = (weight.cumsum(0) / weight.sum() >= epsilon).nonzero()[0]
    return (count.cumsum(0) / count.sum())[reached].item()


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_an_isotropic_cloud_reads_its_marchenko_pastur_dimension(ratio):
    width = 200
    values = measured(features(3, round(width / ratio), width))
    limit = width * marchenko_pastur_share(ratio, 0.8)
    # Eigenvalues of a random covariance are rigid: a count of them varies by O(log width).
    assert abs(effective_dimension(values) - limit) <= math.log(width)


@pytest.mark.parametrize("tokens", [150, 600])
def test_sampling_lowers_the_participation_ratio_as_the_reliability_rule_says(tokens):
    width = 150
    values = measured(features(4, tokens, width))
    expected = width / (1 + width / tokens)
    # Mean of the squares: 1 + d/N + O(1/N); its relative deviation is about 2 sqrt(2) / d.
    assert math.isclose(participation_ratio(values), expected, rel_tol=4 / width + 2 / tokens)


@settings(max_examples=100, deadline=None)
@given(spectra)
def test_the_counts_are_ordered_between_one_and_the_rank(values):
    values = torch.tensor(values, dtype=torch.float64)
    chain = [1.0, stable_rank(values), participation_ratio(values), entropy_rank(values)]
    chain += [effective_rank(values), (values > 0).sum().item()]
    for less, more in pairwise(chain):
        assert less <= more * (1 + 8 * len(values) * ROUNDING)


@settings(max_examples=100, deadline=None)
@given(spectra, shares, shares)
def test_effective_dimension_grows_with_the_share(values, one, other):
    values = torch.tensor(values, dtype=torch.float64)
    low, high = sorted((one, other))
    assert 1 <= effective_dimension(values, low) <= effective_dimension(values, high)
    assert effective_dimension(values, high) <= (values > 0).sum()


@settings(max_examples=100, deadline=None)
@given(spectra, shares)
def test_effective_dimension_is_the_literal_minimum(values, epsilon):
    exact = sorted((Fraction(value) for value in values if value > 1e-6), reverse=True)
    assume(exact)
    goal = (Fraction(epsilon) - len(values) * Fraction(ROUNDING)) * sum(exact)
    literal = min(k for k in range(1, len(exact) + 1) if sum(exact[:k]) >= goal)
    found = torch.tensor([float(value) for value in exact], dtype=torch.float64)
    assert effective_dimension(found, epsilon) == literal


@settings(max_examples=50, deadline=None)
@given(spectra, st.sampled_from([1e-30, 1e30, 1e150]))
def test_the_counts_do_not_depend_on_order_or_scale(values, factor):
    values = torch.tensor(values, dtype=torch.float64)
    for count in COUNTS:
        assert math.isclose(
            count(values.flip(0) * factor), count(values), rel_tol=8 * len(values) * ROUNDING
        )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 12))
def test_rotating_features_and_permuting_tokens_change_nothing(seed, tokens, width):
    h = features(seed, tokens, width)
    turned = h @ torch.linalg.qr(features(seed + 1, width, width))[0]
    turned = turned[torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))]
    floor = max(tokens, width) * ROUNDING
    for count in COUNTS[1:]:
        # Roots of eigenvalues move by the root of the rounding, eigenvalues by rounding itself.
        slack = min(tokens, width) * (math.sqrt(floor) * 20 if count is effective_rank else floor)
        assert math.isclose(count(measured(turned)), count(measured(h)), rel_tol=64 * slack)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12))
def test_eigenvalues_are_squared_singular_values(seed, rows, columns):
    m = features(seed, rows, columns)
    exact = torch.linalg.svdvals(m).square()
    slack = 8 * max(rows, columns) * ROUNDING * exact[0]
    assert torch.all((gram_eigenvalues(m) - exact).abs() <= slack)


@pytest.mark.parametrize("decay", [0.9, 0.5, 0.1])
def test_what_the_gram_matrix_hides_moves_the_effective_rank_by_less_than_stated(decay):
    size = 60
    sigma = decay ** torch.arange(size, dtype=torch.float64)
    left, right = (torch.linalg.qr(features(seed, size, size))[0] for seed in (5, 6))
    values = gram_eigenvalues(left @ torch.diag(sigma) @ right)
    moved = abs(effective_rank(values).log() - effective_rank(sigma.square()).log())
    delta = size * math.sqrt(size * ROUNDING)
    coin = -delta * math.log(delta) - (1 - delta) * math.log1p(-delta)
    assert moved <= coin + delta * math.log(2 * size)


def test_uncentred_stable_rank_is_held_down_by_the_mean():
    h = features(7, 40, 6, mean=3.0)
    ceiling = 1 / (1 - relative_residual(h) ** 2)
    assert stable_rank(gram_eigenvalues(h)) <= ceiling * (1 + 40 * ROUNDING)
    assert stable_rank(measured(h)) > ceiling


chunks = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), chunks, st.sampled_from([1, 3, 30]), st.sampled_from([0.0, 1e4]))
def test_tokens_in_any_chunks_and_order_give_the_spectrum_of_all(seed, sizes, width, mean):
    h = features(seed, sum(sizes), width, mean)
    h[: sizes[0]] += mean  # sequences have means of their own
    pool = Pool()
    for part in reversed(h.split(sizes)):
        pool.add(part)
    exact = torch.linalg.svdvals(h - h.mean(0)).square()
    found = pool.on_host().eigenvalues()[: len(exact)]
    # Squares of deviations round relative to themselves, means relative to their own size.
    slack = 16 * max(h.shape) * ROUNDING * (exact.max() + len(h) * mean * h.abs().max())
    assert torch.all((found - exact[: len(found)]).abs() <= slack)
    assert pool.tokens == len(h)


def test_a_pool_keeps_whichever_is_smaller():
    few, many = Pool(), Pool()
    few.add(features(0, 4, 16).float())
    assert few.moments is None and few.features[0].dtype == torch.float32
    many.add(features(0, 64, 16).float())
    assert many.features == [] and many.moments.shape == (16, 16)


def test_a_pool_does_not_keep_the_batch_alive():
    batch = features(0, 64, 16)
    pool = Pool()
    pool.add(batch[:2])
    assert pool.features[0].untyped_storage().nbytes() == 2 * 16 * 8


@pytest.mark.few(1)
@pytest.mark.parametrize("tokens, width", [(40, 6), (12, 30)])
def test_effective_dimension_agrees_with_scikit_dimension(tokens, width):
    skdim = pytest.importorskip("skdim", reason="scikit-dimension (in `dev`) is not installed")
    h = features(8, tokens, width) * torch.logspace(0, -2, width, dtype=torch.float64)
    for epsilon in (0.5, 0.8, 0.95):
        oracle = skdim.id.lPCA(ver="ratio", alphaRatio=epsilon).fit(h.numpy())
        assert effective_dimension(measured(h), epsilon) == oracle.dimension_
    oracle = skdim.id.lPCA(ver="participation_ratio").fit(h.numpy())
    assert math.isclose(participation_ratio(measured(h)), oracle.dimension_, rel_tol=1e-9)


def test_stable_rank_agrees_with_weightwatcher_whose_spectral_norm_is_squared():
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weightwatcher = pytest.importorskip(
            "weightwatcher",
            reason="weightwatcher is not installed: it is in the extra `dev`",
            exc_type=ImportError,
        )
        model = nn.Sequential(nn.Linear(64, 80, bias=False))
        with torch.no_grad():
            model[0].weight.copy_(features(9, 80, 64))
        table = weightwatcher.WeightWatcher(model=model).analyze(plot=False)
    weight = model[0].weight.detach()
    values = gram_eigenvalues(weight)
    # WeightWatcher decomposes in float32.
    slack = 80 * torch.finfo(torch.float32).eps
    assert math.isclose(stable_rank(values), table["stable_rank"].item(), rel_tol=slack)
    assert math.isclose(values[0], table["spectral_norm"].item(), rel_tol=slack)


@pytest.mark.parametrize("count", COUNTS)
def test_without_variance_or_with_a_bad_number_there_is_no_count(count):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bad in (0.0, math.nan, math.inf):
            h = torch.full((6, 3), bad)
            assert count(measured(h)).isnan()
        spoiled = features(0, 6, 3)
        spoiled[1, 1] = math.nan
        assert count(gram_eigenvalues(spoiled)).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [3, 50])
def test_half_precision_is_read_exactly(dtype, tokens):
    h = features(2, tokens, 5, mean=1.0).to(dtype)
    assert torch.equal(gram_eigenvalues(h), gram_eigenvalues(h.double()))


@pytest.mark.parametrize("tokens", [3, 50])
def test_huge_features_do_not_overflow(tokens):
    h = features(2, tokens, 5).half().float()
    for count in COUNTS:
        huge = count(measured(h * 2.0**100))
        assert math.isclose(huge, count(measured(h)), rel_tol=50 * ROUNDING)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1.5, math.nan])
def test_a_share_outside_its_range_is_refused_in_one_clear_line(epsilon):
    with pytest.raises(UserError, match=r"given epsilon=.*above 0 and at most 1.*epsilon=0\.8"):
        effective_dimension(torch.ones(3), epsilon)


def frame(streams, **options):
    measure = MEASURES[0].given(**options)
    run = MeasureContext(options=measure.options)
    for sequence, layers in enumerate(streams):
        for layer, stream in enumerate(layers):
            assert list(measure.read(record(stream, layer, sequence), run)) == []
    return list(measure.close(run)), run


def test_a_layer_pools_the_tokens_of_all_sequences():
    streams = [[features(10 * s + layer, 7, 3) for layer in range(2)] for s in range(4)]
    rows, run = frame(streams)
    assert [row["layer"] for row in rows] == [0, 1]
    together = torch.cat([layers[1] for layers in streams])
    expected = participation_ratio(measured(together))
    assert math.isclose(rows[1]["participation_ratio"], expected, rel_tol=64 * ROUNDING)
    assert rows[1]["tokens"] == 28 and rows[1]["width"] == 3 and rows[1]["reliable"]
    assert set(rows[0]) == {*MEASURES[0].per, *MEASURES[0].columns}
    assert run.memory == {} and run.notes == {}


def fed(layers, batches, feed=lambda layer: None):
    """Rows of layers of which each is given two sequences and two more batches."""
    measure = MEASURES[0]
    run = MeasureContext(options=measure.options, batches=batches)
    for sequence in range(4):
        for layer in range(layers):
            stream = features(10 * sequence + layer, 9, 4)
            feed(sequence * layers + layer)
            if sequence < 2:
                assert list(measure.read(record(stream, layer, sequence), run)) == []
            else:
                measure.pool(layer, stream, run)
    feed(4 * layers)
    return list(measure.close(run))


@pytest.fixture
def decomposed(monkeypatch):
    """Of each decomposition, whether the main thread makes it and beside how many others."""
    found, read = queue.SimpleQueue(), SecondMoments.eigenvalues

    def give(moments):
        found.put((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
        return read(moments)

    monkeypatch.setattr(SecondMoments, "eigenvalues", give)
    return found


def test_a_layer_is_decomposed_beside_the_rest_once_its_last_tokens_have_come(
    decomposed, monkeypatch
):
    expected = fed(3, 4, lambda number: decomposed.empty() or pytest.fail("not at the end"))
    assert {decomposed.get() for _ in range(3)} == {(True, torch.get_num_threads())}
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)

    def feed(number):
        assert number > 9 or decomposed.empty()
        if number == 11:  # the last layer of the last batch is still to come
            assert decomposed.get(timeout=20) == (False, 1)

    assert fed(3, 4, feed) == expected
    assert [decomposed.get() for _ in range(2)] == [(False, 1), (False, 1)]


@pytest.mark.parametrize("batches", [0, 5])
def test_layers_whose_last_tokens_are_not_known_are_decomposed_at_the_end(
    batches, decomposed, monkeypatch
):
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)
    fed(3, batches, lambda number: decomposed.empty() or pytest.fail("not at the end"))
    assert {decomposed.get() for _ in range(3)} == {(False, 1)}


def test_no_more_layers_are_taken_to_the_host_than_threads_are_free(monkeypatch):
    """One of two threads is left to what gives the accelerator its work."""
    expected = fed(4, 4)
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    gate, taken = threading.Event(), []
    held, read = Pool.on_host, SecondMoments.eigenvalues
    monkeypatch.setattr(Pool, "on_host", lambda pool: taken.append(pool) or held(pool))
    monkeypatch.setattr(
        SecondMoments, "eigenvalues", lambda one: read(one) if gate.wait(20) else pytest.fail()
    )

    def feed(number):
        if number == 16:
            assert len(taken) == 1
            gate.set()

    assert fed(4, 4, feed) == expected and len(taken) == 4


def test_the_share_is_an_option():
    streams = [[features(1, 40, 6)]]
    assert frame(streams, epsilon=1.0)[0][0]["effective_dimension"] == 6
    assert frame(streams, epsilon=0.1)[0][0]["effective_dimension"] == 1


def test_too_few_tokens_are_said_to_be_too_few():
    rows, run = frame([[features(1, 23, 6)]])
    assert not rows[0]["reliable"]
    assert "23 tokens for a width of 6" in run.notes["tokens"]
    assert "at least 24 tokens" in run.notes["tokens"]
    assert reliable(24, 6)


def test_one_token_reads_as_not_a_number():
    rows, _ = frame([[torch.ones(1, 6)]])
    assert math.isnan(rows[0]["effective_dimension"]) and math.isnan(rows[0]["stable_rank"])
    assert rows[0]["tokens"] == 1
