"""Spectral norms of weights against the SVD, and their product over a block."""

from math import isnan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.measures.support.spectral_norms import spectral_norms, weight_products
from tests.numerics.draw import gaussian


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(-6, 6), st.integers(0, 2**20))
def test_spectral_norm_equals_the_svd(rows, columns, exponent, seed):
    matrix = 10.0**exponent * gaussian(rows, columns, seed=seed)
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    assert float(spectral_norms([matrix])[0]) == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize(("columns", "seed"), [(5, 8784), (24, 24949), (64, 64489)])
def test_a_start_with_little_of_the_largest_vector_is_not_taken_for_the_end(columns, seed):
    """At a small residual runs had met the second value: 25, 3 and 0.8 % below the largest."""
    draw = torch.Generator().manual_seed(seed)
    matrix = torch.randn(columns + columns // 2, columns, generator=draw, dtype=torch.float64)
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    assert float(spectral_norms([matrix])[0]) == pytest.approx(truth, rel=1e-6)


@pytest.mark.full
def test_a_norm_beside_which_others_lie_is_not_missed():
    """A run that stopped at a small residual had met another value, 4e-4 below the largest."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(768, 768), (768, 3072), (3072, 768)]
    given = [torch.randn(*shape, generator=draw) for shape in shapes]
    truth = [float(torch.linalg.matrix_norm(one.double(), 2)) for one in given]
    assert [float(one) for one in spectral_norms(given)] == pytest.approx(truth, rel=1e-5)


def test_weights_multiply_the_norms_and_count_experts_once():
    experts = torch.stack([gaussian(4, 3, seed=seed) for seed in range(3)])
    plain = gaussian(5, 5)
    norms = [float(torch.linalg.matrix_norm(m, 2)) for m in experts]
    listed = {f"experts.{index}.up": matrix for index, matrix in enumerate(experts)}
    for given_experts in (listed, {"experts.up": experts}):
        (product,) = weight_products([{"attn": plain, **given_experts}])
        truth = float(torch.linalg.matrix_norm(plain, 2)) * max(norms)
        assert float(product) == pytest.approx(truth, rel=1e-5)
    assert isnan(*weight_products([{}]))


def test_matrices_that_follow_each_other_in_a_list_are_no_experts():
    """CTRL's feed-forward is a sequence of modules that have numbers for names."""
    given = {f"ffn.{number}.weight": gaussian(4, 4, seed=number) for number in (0, 2)}
    norms = [float(torch.linalg.matrix_norm(one, 2)) for one in given.values()]
    (product,) = weight_products([given])
    assert float(product) == pytest.approx(norms[0] * norms[1], rel=1e-5)
