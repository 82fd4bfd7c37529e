"""One place decides which kernel rounds a tensor; what stands in the way is a reason."""

from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from layerlab.numerics.formats import choose_kernel as module
from layerlab.numerics.formats.choose_kernel import (
    GpuKernel,
    gpu_kernel,
    has_memory,
    kernels_with_scales,
    scalar_launch,
)
from layerlab.numerics.formats.formats import FLOATS
from layerlab.numerics.formats.grid import grid
from layerlab.numerics.formats.kernel import Launch, compiler
from layerlab.numerics.formats.round import round_to
from layerlab.numerics.formats.scalar import Rounding

GRID = grid(FLOATS["bf16"], "nearest", torch.float32)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known yet of triton, and nothing is kept of what is found out here."""
    monkeypatch.delenv("LAYERLAB_KERNEL", raising=False)
    module._import.cache_clear()
    yield
    module._import.cache_clear()


def test_without_triton_there_is_a_reason(fresh, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert gpu_kernel() == GpuKernel("triton is not installed")
    # And pure torch for a GPU: `meta` stands in for one.
    monkeypatch.setattr(module, "GPUS", ("meta",))
    assert scalar_launch(GRID, "nearest", torch.float32, torch.device("meta")) is None
    x = torch.ones(3, device="meta")
    assert kernels_with_scales(x) == gpu_kernel()
    assert round_to(x, "bf16").shape == round_to(x, "mxfp4").shape == (3,)


def test_a_triton_that_does_not_work_is_quoted(fresh, monkeypatch):
    def fail(name: str) -> None:
        raise RuntimeError("first\nno C compiler")

    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(module, "import_module", fail)
    assert gpu_kernel() == GpuKernel("triton cannot be used: no C compiler")


def test_kernels_are_tried_on_the_gpu_that_asks(fresh, monkeypatch):
    """What runs on the second GPU neither starts the first, nor minds that it is full."""
    tried: list[str] = []

    def check(device: str) -> None:
        tried.append(device)
        if device == "cuda:0":
            raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(module, "find_spec", lambda name: object())
    kernels = SimpleNamespace(check=check, TritonLaunch=lambda *given: given)
    monkeypatch.setattr(module, "import_module", lambda name: kernels)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    second = torch.device("cuda:1")
    assert gpu_kernel(second).reason is None and gpu_kernel(second).reason is None
    assert gpu_kernel("cuda:0").reason == "triton cannot be used: CUDA error: out of memory"
    assert tried == ["cuda:1", "cuda:0"]
    rounding = Rounding(FLOATS["bf16"])
    places = (SimpleNamespace(dtype=torch.float32, device=torch.device("cuda", n)) for n in (0, 1))
    assert [rounding._launch(one) is None for one in places] == [True, False]


def test_it_is_turned_off_as_the_other_kernel_is(monkeypatch):
    monkeypatch.setenv("LAYERLAB_KERNEL", "0")
    assert gpu_kernel() == GpuKernel("turned off by LAYERLAB_KERNEL=0")


@pytest.mark.skipif(compiler() is None, reason="no g++")
def test_each_device_has_its_kernel(monkeypatch):
    monkeypatch.delenv("LAYERLAB_KERNEL", raising=False)
    assert isinstance(scalar_launch(GRID, "nearest", torch.float32, torch.device("cpu")), Launch)
    assert scalar_launch(GRID, "nearest", torch.float32, torch.device("mps")) is None
    assert kernels_with_scales(torch.ones(2)).blocks is None


def test_a_tensor_without_memory_of_its_own_is_left_to_torch(monkeypatch):
    seen = []
    torch.vmap(lambda row: seen.append(has_memory(row)) or row)(torch.ones(2, 3))
    assert seen == [False]
    assert has_memory(torch.ones(2)) and not has_memory(torch.nn.Parameter(torch.ones(2)))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not has_memory(torch.ones(2))


def test_the_kernels_are_where_they_are_looked_for():
    assert all(find_spec(f"{module.HOME}.{name}") for name in module.MODULES)
