"""Whether torch rounds square roots to nearest here: MKL's on some processors does not always."""

import math

import pytest
import torch

# Its root lies next to the middle of two numbers of float16.
_GIVEN = 3.998046875
_NEAREST = float(torch.tensor(math.sqrt(_GIVEN), dtype=torch.float64).float())
needs_rounded_roots = pytest.mark.skipif(
    float(torch.full((16,), _GIVEN).sqrt()[0]) != _NEAREST,
    reason="torch's root in float32 is not rounded to nearest on this processor",
)
