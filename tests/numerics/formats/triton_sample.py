"""What the tests of kernels in Triton share: where they run, and what is rounded."""

import pytest
import torch
from torch import Tensor

from layerlab.numerics.formats import choose_kernel

# In Triton's interpreter where there is no GPU; tests/conftest.py has asked for it.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}


def bits(x: Tensor) -> Tensor:
    return x.cpu().view(WORDS[x.dtype])


def equal(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are the same bit for bit, wherever they lie."""
    return one.shape == two.shape and torch.equal(bits(one), bits(two))


def draw_words(count: int, dtype: torch.dtype, seed: int = 3) -> Tensor:
    words = torch.empty(count, dtype=dtype)
    return words.random_(generator=torch.Generator().manual_seed(seed))


def take_for_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of the device of these tests be rounded as those of a GPU."""
    monkeypatch.delenv("LAYERLAB_KERNEL", raising=False)
    monkeypatch.setattr(choose_kernel, "GPUS", (DEVICE,))
