"""Golub-Kahan bidiagonalisation against the singular values of small matrices."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab import UserError
from layerlab.measures.support.golub_kahan import GolubKahan, largest_singular

DOUBLE = torch.finfo(torch.float64).eps


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_no_step_is_refused_instead_of_finding_zero() -> None:
    with pytest.raises(UserError, match=r"steps=0 finds nothing; give the number of steps, 1"):
        GolubKahan(lambda v: v, lambda v: v, torch.ones(3), steps=0, tolerance=0.1)


def golub_kahan(matrix: Tensor, steps: int, tolerance: float = 0.0, seed: int = 9) -> Any:
    start = gaussian(matrix.shape[1], seed=seed)
    run = GolubKahan(
        lambda v: matrix @ v, lambda u: matrix.T @ u, start, steps=steps, tolerance=tolerance
    )
    return largest_singular([run])[0]


matrices = st.builds(
    lambda rows, columns, exponent, seed: 10.0**exponent * gaussian(rows, columns, seed=seed),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(-6, 6),
    st.integers(0, 2**20),
)


@settings(deadline=None)
@given(matrices, st.integers(1, 12))
def test_value_is_a_lower_bound_and_never_falls_with_more_steps(matrix: Tensor, steps: int) -> None:
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    slack = 64 * DOUBLE * sum(matrix.shape) * truth
    fewer, more = golub_kahan(matrix, steps), golub_kahan(matrix, steps + 1)
    assert fewer.value <= truth + slack
    assert fewer.value <= more.value + slack


@settings(deadline=None)
@given(matrices)
def test_value_is_exact_once_the_krylov_space_is_exhausted(matrix: Tensor) -> None:
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    found = golub_kahan(matrix, min(matrix.shape) + 1)
    # A start that misses a direction by rounding alone would cost at most its square.
    assert found.value == pytest.approx(truth, rel=1e-6)


@settings(deadline=None)
@given(matrices, st.integers(1, 6))
def test_a_singular_value_lies_within_the_residual(matrix: Tensor, steps: int) -> None:
    found = golub_kahan(matrix, steps)
    values = torch.linalg.svdvals(matrix)
    # The value is half a step ahead of the residual: at most one residual further up.
    reach = 2 * found.residual * found.value + 64 * DOUBLE * sum(matrix.shape) * values[0]
    assert (values - found.value).abs().min() <= reach


def test_a_zero_map_has_the_value_zero() -> None:
    assert golub_kahan(torch.zeros(3, 4, dtype=torch.float64), 5).value == 0
