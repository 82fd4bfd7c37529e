"""Golub-Kahan bidiagonalisation against the singular values of small matrices."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab import UserError
from layerlab.measures.support.golub_kahan import GolubKahan, converge, spectral_bounds
from layerlab.observe.tracing import device_schedule
from layerlab.observe.tracing.host_steps import run_steps
from tests.numerics.draw import gaussian
from tests.support.host_reads import counted

DOUBLE = torch.finfo(torch.float64).eps


def test_no_step_is_refused_instead_of_finding_zero():
    with pytest.raises(UserError, match=r"steps=0 finds nothing; give the number of steps, 1"):
        GolubKahan(lambda v: v, lambda v: v, torch.ones(3), steps=0, tolerance=0.1)


def golub_kahan(matrix: Tensor, steps: int, tolerance: float = 0.0, seed: int = 9) -> Any:
    start = gaussian(matrix.shape[1], seed=seed)
    run = GolubKahan(
        lambda v: matrix @ v, lambda u: matrix.T @ u, start, steps=steps, tolerance=tolerance
    )
    run_steps(converge([run]))
    return run.found


matrices = st.builds(
    lambda rows, columns, exponent, seed: 10.0**exponent * gaussian(rows, columns, seed=seed),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(-6, 6),
    st.integers(0, 2**20),
)


@settings(deadline=None)
@given(matrices, st.integers(1, 12))
def test_value_is_a_lower_bound_and_never_falls_with_more_steps(matrix, steps):
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    slack = 64 * DOUBLE * sum(matrix.shape) * truth
    fewer, more = golub_kahan(matrix, steps), golub_kahan(matrix, steps + 1)
    assert fewer.value <= truth + slack
    assert fewer.value <= more.value + slack


@settings(deadline=None)
@given(matrices)
def test_value_is_exact_once_the_krylov_space_is_exhausted(matrix):
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    found = golub_kahan(matrix, min(matrix.shape) + 1)
    # A start that misses a direction by rounding alone would cost at most its square.
    assert found.value == pytest.approx(truth, rel=1e-6)


@settings(deadline=None)
@given(matrices, st.integers(1, 6))
def test_a_singular_value_lies_within_the_residual(matrix, steps):
    found = golub_kahan(matrix, steps)
    values = torch.linalg.svdvals(matrix)
    # The value is half a step ahead of the residual: at most one residual further up.
    reach = 2 * found.residual * found.value + 64 * DOUBLE * sum(matrix.shape) * values[0]
    assert (values - found.value).abs().min() <= reach


def test_a_zero_map_has_the_value_zero():
    assert golub_kahan(torch.zeros(3, 4, dtype=torch.float64), 5).value == 0


# Bounds on spectral norms


@pytest.mark.parametrize("decay", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("shape", [(2, 300, 320), (340, 300)])
def test_bounds_of_large_matrices_are_certified_and_hardly_above(shape, decay):
    """As the largest eigenvalue says, but for the rounding that the bound allows for."""
    matrix = gaussian(*shape, seed=3)
    matrix = matrix * torch.logspace(0, -decay, shape[-1], dtype=torch.float64)
    rows, columns = sorted(shape[-2:])
    (bound,) = spectral_bounds([matrix])
    truth = torch.linalg.matrix_norm(matrix, 2)
    slack = 4 * rows * (columns + 8) * DOUBLE
    assert (bound >= truth).all() and (bound <= truth * (1 + slack)).all()


def test_a_direction_that_lanczos_does_not_meet_is_within_the_bound():
    start = torch.randn(300, generator=torch.Generator().manual_seed(0)).double()
    hidden = gaussian(300, seed=4)
    hidden = hidden - start * (start @ hidden) / (start @ start)
    hidden = hidden / hidden.norm()
    matrix = torch.eye(300, dtype=torch.float64) + torch.outer(hidden, hidden)
    (bound,) = spectral_bounds([matrix])
    assert bound >= torch.linalg.matrix_norm(matrix, 2) * (1 - DOUBLE)


def test_bounds_of_zeros_and_of_what_is_not_finite():
    given = torch.stack([torch.zeros(300, 300), torch.eye(300), torch.full((300, 300), torch.inf)])
    (bound,) = spectral_bounds([given])
    assert bound[0] == 0 and bound[1] == pytest.approx(1) and bound[2].isnan()


def test_the_host_waits_for_all_bounds_of_a_layer_at_once(monkeypatch):
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)
    given = [gaussian(300, 300), gaussian(280, 400), gaussian(4, 8, 300)]
    with counted() as counts:
        spectral_bounds(given)
    # Once for what is small and for Lanczos, once for the factors.
    assert +counts.reads == {"cpu": 2}
    assert counts.operations["aten.linalg_cholesky_ex.default"] == 2
    assert counts.operations["aten._linalg_eigh.default"] <= 1 + 2 * 2  # of 60 rows at most


def count_operations(matrices: list[Tensor]) -> int:
    with counted() as counts:
        spectral_bounds(matrices)
    return counts.operations.total()


@pytest.mark.full
def test_matrices_with_shorter_sides_of_one_length_are_bounded_side_by_side(monkeypatch):
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)
    given = [gaussian(260, 300), gaussian(300, 260, seed=1), gaussian(2, 260, 400, seed=2)]
    assert count_operations(given) < 1.1 * count_operations(given[:1])
    apart = [spectral_bounds([one])[0] for one in given]
    for matrix, one, found in zip(given, apart, spectral_bounds(given), strict=True):
        assert found.shape == one.shape and torch.allclose(found, one, rtol=1e-9)
        assert (found >= torch.linalg.matrix_norm(matrix, 2)).all()


@pytest.mark.full
def test_only_what_has_no_factor_is_factored_again(monkeypatch):
    """All singular values are close to each other in the first: Lanczos falls short of them."""
    gap = torch.linspace(1, 1 + 1e-4, 300, dtype=torch.float64)
    hard = torch.linalg.qr(gaussian(300, 300)).Q * gap
    easy = torch.diag(torch.logspace(0, -6, 300, dtype=torch.float64))
    with counted() as counts:
        bounds = spectral_bounds([hard, easy])
    assert counts.operations["aten.linalg_cholesky_ex.default"] == 3
    for matrix, bound in zip((hard, easy), bounds, strict=True):
        assert bound >= torch.linalg.matrix_norm(matrix, 2)


# What the host does for an accelerator


@pytest.mark.parametrize("schedule", [device_schedule.PROCESSOR, device_schedule.ACCELERATOR])
def test_work_of_the_host_keeps_its_order_and_is_done_by_all_threads(monkeypatch, schedule):
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", schedule)
    aside = schedule is device_schedule.ACCELERATOR
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    # Passed by three at once, or by nobody.
    gate = threading.Barrier(3 if aside else 1, timeout=20)
    begun: list[int] = []

    def give() -> Iterator[int]:
        for number in range(6):
            begun.append(number)
            yield number

    def work(number: int) -> tuple[int, int]:
        gate.wait()
        return number, torch.get_num_threads()

    try:
        found = device_schedule.map_host(work, give(), torch.device("cpu"))
        assert next(found) == (0, 1 if aside else 3)
        assert len(begun) <= (4 if aside else 1)
        assert [number for number, _ in found] == [1, 2, 3, 4, 5]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
