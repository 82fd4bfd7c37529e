"""A process after a run: as good as new, or given up."""

import sys

import pytest
import torch

from layerlab.system.hardware import peak_memory, reset_peak_memory
from layerlab.training import fresh_start as module
from layerlab.training.fresh_start import FreshStart

pytestmark = pytest.mark.full

LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the peak of a process as Linux tells it"
)


def test_the_next_run_draws_what_it_would_in_a_new_process():
    start = FreshStart()
    torch.manual_seed(torch.initial_seed())
    wanted = torch.rand(3)
    torch.rand(5)
    start.restore()
    assert torch.equal(torch.rand(3), wanted)


@LINUX
def test_what_is_left_behind_ends_the_process(monkeypatch):
    start = FreshStart()
    assert start.restore()
    kept = torch.ones(40 * 2**20)
    monkeypatch.setattr(module, "LEFT", 80 * 2**20)
    assert not start.restore()
    assert kept[0] == 1


@LINUX
def test_memory_that_was_free_before_hides_nothing(monkeypatch):
    """Of many small pieces the allocator keeps what is freed, until it is told to give it back."""
    pieces = [bytearray(2**14) for _ in range(10_000)]
    last = bytearray(2**14)
    del pieces
    start = FreshStart()
    kept = torch.ones(40 * 2**20)
    monkeypatch.setattr(module, "LEFT", 80 * 2**20)
    assert not start.restore()
    assert kept[0] == 1 and last


@LINUX
def test_a_peak_is_that_of_what_came_after():
    large = torch.ones(64 * 2**20)
    high = peak_memory("cpu")
    del large
    assert FreshStart().restore()
    assert reset_peak_memory() and peak_memory("cpu") < high - 200 * 2**20


@LINUX
def test_workspaces_of_products_are_no_memory_that_a_run_has_left(monkeypatch):
    """Where there is no GPU, in place of one whose cuBLAS keeps 64 MiB."""
    kept = [64 * 2**20]
    start = FreshStart()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: sum(kept))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", kept.clear, raising=False)
    assert start.restore()
    kept.append(64 * 2**20)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    assert not start.restore()
