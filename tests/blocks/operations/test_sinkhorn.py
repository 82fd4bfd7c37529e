"""Doubly stochastic matrices: by kernels in Triton's interpreter, and the choice of them."""

import os

import pytest
import torch
from torch import Tensor

from layerlab.blocks.operations import sinkhorn
from tests.support.forked import empty_python

ASKED = (  # rows, iterations, guard, spread of logits
    (4, 20, 1e-18, 3.0),
    (3, 20, 1e-6, 1.0),
    (2, 1, 0.0, 1.0),
    (5, 3, 1e-2, 10.0),
    (8, 2, 0.0, 1.0),
    (4, 20, 1e-18, 1e4),
)


@pytest.fixture
def kernels():
    pytest.importorskip("triton", reason="triton is not installed: it is in the extra gpu")
    return pytest.importorskip("layerlab.blocks.operations.sinkhorn_kernels")


def drawn(n: int, spread: float, *places: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(n)
    logits, gradient = torch.randn(2, n, n, *places, generator=draw)
    return spread * logits, gradient


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Take a processor's tensors for those of a GPU, which `sinkhorn` looks for."""
    monkeypatch.delenv("LAYERLAB_KERNEL", raising=False)
    monkeypatch.setattr(sinkhorn, "GPU", "cpu")
    found = sinkhorn._try_kernels
    found.cache_clear()
    yield
    found.cache_clear()


@pytest.mark.parametrize("places", [(3, 40), (1, 1), (0, 5)])
@pytest.mark.parametrize(("n", "iterations", "guard", "spread"), ASKED)
def test_kernels_compute_what_operations_of_torch_do(
    n, iterations, guard, spread, places, kernels, on_a_gpu
):
    logits, gradient = drawn(n, spread, *places)
    wide = logits.double()
    exact = sinkhorn.balance(wide, iterations, guard)
    slope = sinkhorn.balance_gradient(gradient.double(), wide, *exact, guard)
    assert sinkhorn._find_kernels(logits) is kernels
    matrix, columns, rows = sinkhorn.balance(logits, iterations, guard)
    found = sinkhorn.balance_gradient(gradient, logits, matrix, columns, rows, guard)
    pairs = ((matrix, exact[0]), (columns, exact[1]), (rows[1:], exact[2][1:]), (found, slope))
    for one, other in pairs:
        size = other.abs().max().item() if other.numel() else 0.0
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-6 * size + 1e-30)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_kernels_of_a_gpu_compute_what_a_processor_does(n):
    logits, gradient = drawn(n, 2.0, 3, 1000)
    matrix, columns, rows = sinkhorn.balance(logits.double(), 20, 1e-18)
    slope = sinkhorn.balance_gradient(gradient.double(), logits.double(), matrix, columns, rows, 0)
    assert sinkhorn._find_kernels(logits.cuda()) is not None
    on_gpu = sinkhorn.balance(logits.cuda(), 20, 1e-18)
    found = sinkhorn.balance_gradient(gradient.cuda(), logits.cuda(), *on_gpu, 0)
    for one, other in ((on_gpu[0], matrix), (on_gpu[1], columns), (found, slope)):
        size = other.abs().max().item()
        torch.testing.assert_close(one.cpu().double(), other, rtol=0, atol=1e-6 * size)


def test_blocks_of_a_gpu_leave_no_matrix_out(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", 32)
    logits, _ = drawn(4, 1.0, 77)
    columns, rows = sinkhorn._make_sums(logits, 3)
    found = kernels.balance(logits, columns, rows, 0.0)
    torch.testing.assert_close(found, sinkhorn.balance(logits, 3, 0.0)[0])


@pytest.mark.full
def test_kernels_compile_without_a_spill_and_exchange_nothing(kernels):
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    done = empty_python("-m", "tests.blocks.operations.compile_sinkhorn", env=env, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [
        [name, str(side)] for name in ("_balance", "_balance_gradient") for side in (2, 4)
    ]
    for _, _, *used in lines:
        assert used[1:] == ["STACK:0", "LOCAL:0", "shared:0", "exchanged:0"]


def test_what_kernels_do_not_know_is_left_to_torch(on_a_gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(sinkhorn, "_try_kernels", lambda device: asked.append(device))
    for one in (torch.zeros(4, 4, 2).double(), torch.zeros(9, 9, 2)):
        assert sinkhorn._find_kernels(one) is None and not asked
    sinkhorn._find_kernels(torch.zeros(4, 4, 2))
    assert asked == ["cpu"]
    monkeypatch.setenv("LAYERLAB_KERNEL", "0")
    sinkhorn._find_kernels(torch.zeros(4, 4, 2))
    assert asked == ["cpu"]


def test_a_kernel_that_does_not_run_is_replaced_and_named_once(
    kernels, on_a_gpu, monkeypatch, caplog
):
    def broken(*given):
        raise RuntimeError("no such GPU\nand more")

    monkeypatch.setattr(kernels, "balance_gradient", broken)
    logits, _ = drawn(4, 1.0, 5)
    for _ in range(2):
        found = sinkhorn.balance(logits, 20, 0.0)[0]
    assert (found.sum(0) - 1).abs().max() <= 1e-6
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == "streams are mixed without Triton, which is slower: RuntimeError: no such GPU"


def test_memory_that_runs_out_is_no_reason_to_do_without(kernels, on_a_gpu, monkeypatch):
    def full(*given):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(kernels, "balance", full)
    with pytest.raises(torch.OutOfMemoryError):
        sinkhorn.balance(torch.zeros(4, 4, 2), 20, 0.0)
