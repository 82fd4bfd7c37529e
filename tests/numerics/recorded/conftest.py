"""The shallow built-in model, and texts that it writes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.numerics.recorded.recording import load_shallow


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return load_shallow("sdpa", torch.float32)


@pytest.fixture(scope="module")
def pieces(model: Any) -> list[Tensor]:
    """Texts that the model writes."""
    torch.manual_seed(0)
    with torch.no_grad():
        start = torch.tensor([[7], [19]])
        text = model.generate(start, max_new_tokens=96, min_new_tokens=96, do_sample=True)
    return list(text)
