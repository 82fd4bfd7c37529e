from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layerlab.measures.support.lanczos import Krylov, Perron, settle
from layerlab.measures.support.products import CHUNK, RowBlocks, dense
from tests.measures.regime import KINDS, attention, enclosed, record, svd_contraction, svd_norm

EPS = torch.finfo(torch.float64).eps


def tolerance(matrix):
    """Sums over rows, then over columns; 8 covers the few sums in a row and the SVD's own error."""
    return 8 * sum(matrix.shape[1:]) * torch.finfo(matrix.dtype).eps


@dataclass(frozen=True)
class Counted(RowBlocks):
    """Matrices that count the products they are asked for."""

    passes: list[int] = field(default_factory=lambda: [0])

    def gram(self, vectors, shift):
        self.passes[0] += 1
        return super().gram(vectors, shift)


def sums_to_one(matrix):
    return bool((matrix.sum(-1) > 1 - 1e-12).all())


def stochastic(seed, tokens, keys, sharpness, causal, missing):
    """Rows that sum to 1, or to less where a sink takes the probability `missing`."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, tokens, keys, generator=draw, dtype=torch.float64) * sharpness
    if causal:
        scores = scores.masked_fill(~torch.ones(tokens, keys).tril().bool(), -torch.inf)
    return torch.softmax(scores, -1) * (1 - missing)


matrices = st.builds(
    stochastic,
    st.integers(0, 10**6),
    tokens := st.integers(1, 12),
    tokens,
    st.sampled_from([0.0, 0.1, 1.0, 10.0, 100.0]),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 0.99]),
)


@given(matrices)
@example(stochastic(3024, 8, 4, 10.0, False, 0.0))  # the SVD is 7e-16 below 40 digits' value
@settings(max_examples=150, deadline=None)
def test_norm_is_the_largest_singular_value_and_lies_in_its_enclosure(matrix):
    perron, _ = enclosed(matrix, stochastic=sums_to_one(matrix))
    exact = svd_norm(matrix)
    own = max(matrix.shape) * EPS  # the SVD's error, which is none of the enclosure's
    assert (perron.lower <= exact * (1 + own)).all() and (exact <= perron.upper * (1 + own)).all()
    assert (perron.norm <= exact * (1 + tolerance(matrix))).all()
    assert torch.allclose(perron.norm, exact, rtol=1e-6, atol=tolerance(matrix))


@given(matrices)
@example(stochastic(1532, 4, 3, 100.0, False, 0.0))  # all rows agree but for 6e-11
@settings(max_examples=150, deadline=None)
def test_contraction_is_the_norm_of_the_centred_matrix(matrix):
    _, ritz = enclosed(matrix, stochastic=sums_to_one(matrix))
    exact, floor = svd_contraction(matrix), tolerance(matrix) * svd_norm(matrix)
    assert (ritz.norm <= exact + floor).all()
    assert torch.allclose(ritz.norm, exact, rtol=1e-6, atol=float(floor.max()))


@pytest.mark.parametrize("kind", KINDS)
def test_what_columns_sum_to_is_the_first_product(kind):
    """A^T A 1 of rows that sum to 1: the norm is the same, and takes one pass less."""
    matrix = attention(record(kind, 40))
    passes = []
    for known in (False, True):
        given = Counted(**vars(dense(matrix)))
        profile = given.profile()
        settle(given, profile, (perron := Perron(profile, known),))
        passes.append(given.passes[0])
        assert torch.allclose(perron.norm, svd_norm(matrix), rtol=1e-9)
    assert passes[1] == passes[0] - 1


@given(matrices)
@settings(max_examples=100, deadline=None)
def test_column_and_row_bounds_hold(matrix):
    known = dense(matrix).profile()
    exact, above = svd_norm(matrix), 1 + tolerance(matrix)
    assert (exact <= known.column_sums.amax(-1).sqrt() * above).all() or known.row_sum_min.max() > 1
    assert (known.column_norms.amax(-1) <= exact * above).all()
    assert (known.row_norm <= exact * above).all()


@pytest.mark.parametrize("keys", [CHUNK, CHUNK + 1, 3 * CHUNK - 1])
def test_products_with_rows_of_any_length_are_those_of_the_whole_matrix(keys):
    draw = torch.Generator().manual_seed(keys)
    matrix, vectors = (
        torch.randn(2, count, keys, generator=draw, dtype=torch.float64) for count in (5, 3)
    )
    shift = torch.randn(2, 3, generator=draw, dtype=torch.float64)
    images = vectors @ matrix.mT - shift[..., None]
    wanted = (images @ matrix, images.square().sum(-1), images.sum(-1))
    torch.testing.assert_close(dense(matrix).gram(vectors, shift), wanted)


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_identity_and_permutation_have_norm_one_and_an_exhausted_krylov_space(size):
    shuffled = torch.eye(size, dtype=torch.float64)[torch.randperm(size)]
    both = torch.stack([torch.eye(size, dtype=torch.float64), shuffled])
    perron, ritz = enclosed(both)
    assert torch.allclose(perron.norm, torch.ones(2, dtype=torch.float64), rtol=4 * size * EPS)
    # Centring the identity leaves the projector I - e e^T, whose norm is 1 from size 2 on.
    assert torch.allclose(
        ritz.norm, torch.full((2,), float(size > 1)).double(), atol=8 * size * EPS
    )


def test_a_head_that_has_settled_is_not_disturbed_by_one_that_has_not():
    hard = stochastic(1, 40, 40, 2.0, True, 0.0)[:1]
    pair = torch.cat([torch.eye(40, dtype=torch.float64)[None], hard])
    together, apart = enclosed(pair)[0], enclosed(hard)[0]
    assert together.norm[0] == pytest.approx(1, rel=40 * EPS)
    assert together.norm[1] == pytest.approx(float(apart.norm[0]), rel=1e-12)


def test_a_rank_one_matrix_settles_in_one_step():
    krylov = Krylov(torch.ones(1, 9, dtype=torch.float64))
    matrix = torch.full((1, 9, 9), 1 / 9, dtype=torch.float64)
    product, energy, _ = dense(matrix).gram(krylov.vector[:, None], torch.zeros(1, 1).double())
    krylov.absorb(product[:, 0], energy[:, 0])
    krylov.judge(krylov.evidence())
    assert krylov.settled


def test_columns_of_zeros_are_left_out_of_the_quotient():
    matrix = torch.zeros(1, 6, 6, dtype=torch.float64)
    matrix[..., 2] = 0.75
    matrix[..., 4] = 0.25
    perron, _ = enclosed(matrix)
    assert perron.lower <= svd_norm(matrix) <= perron.upper
    assert perron.upper / perron.lower - 1 < 1e-3


def test_a_reducible_matrix_is_enclosed_although_its_perron_vector_has_zeros():
    blocks = torch.block_diag(torch.full((8, 2), 0.5), torch.eye(5)).double()[None]
    perron, _ = enclosed(blocks)
    assert perron.lower <= svd_norm(blocks) <= perron.upper
    assert perron.upper / perron.lower - 1 < 1e-3


def test_a_matrix_of_zeros_has_norm_zero_on_every_side():
    perron, ritz = enclosed(torch.zeros(2, 5, 5))
    for value in (perron.norm, perron.lower, perron.upper, ritz.norm):
        assert (value == 0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_head_that_is_not_finite_reads_nan_and_spares_the_others(bad):
    matrix = torch.full((2, 5, 5), 0.2)
    matrix[1, 3, 2] = bad
    perron, ritz = enclosed(matrix)
    for value in (perron.norm, perron.lower, ritz.norm):
        assert value[0].isfinite() and not value[1].isfinite()
    assert not perron.upper[1].isfinite()


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_nearly_uniform_matrix_keeps_the_digits_of_its_contraction(dtype):
    # Centred products lose nothing; the root of a Rayleigh quotient would stop at sqrt(u) = 2e-4.
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 512, 512, generator=draw, dtype=torch.float64) * 1e-4
    matrix = torch.softmax(scores, -1).to(dtype)
    exact = float(svd_contraction(matrix))
    assert exact < 1e-5
    floor = 512**0.5 * torch.finfo(dtype).eps
    assert float(enclosed(matrix)[1].norm) == pytest.approx(exact, rel=1e-6, abs=floor)


def test_contraction_of_equal_rows_is_rounding_where_the_all_ones_start_would_break_down():
    matrix = torch.softmax(torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(3)), -1)
    assert float(enclosed(matrix.expand(1, 64, 64))[1].norm) <= 8 * torch.finfo().eps


def test_float32_encloses_the_stored_matrix_too():
    matrix = stochastic(5, 200, 200, 3.0, True, 0.0).float()
    perron, _ = enclosed(matrix)
    exact = svd_norm(matrix)
    assert (perron.lower <= exact).all() and (exact <= perron.upper).all()
    assert (perron.upper / perron.lower - 1 <= 1e-3).all()
