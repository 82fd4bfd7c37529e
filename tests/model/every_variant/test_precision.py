"""Every variant stays finite in 16 bits, and what it computes is the function of its weights."""

import copy

import pytest
import torch

from layerlab.model.modeling import LabForCausalLM
from tests.model.exempt import bound
from tests.model.small import kept, tokens


def rounded(name: str, dtype: torch.dtype) -> LabForCausalLM:
    return copy.deepcopy(kept(name)).to(dtype)


def gap(name: str, rough: torch.Tensor) -> float:
    """How far from float64, as a share of its size, in root mean square."""
    exact = kept(name)(tokens(), use_cache=False).logits
    assert bool(rough.isfinite().all())
    return float((rough.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


# A random walk of the roundings of some hundred operations in a row: a step that lost its meaning
# (an epsilon flushed to zero, a cast that forgets) is off by the whole size, or not finite.
STEPS = 32


@pytest.mark.parametrize("name", bound("bfloat16"))
def test_bfloat16_is_finite_and_off_by_its_rounding_only(name):
    model, x = rounded(name, torch.bfloat16).train().requires_grad_(True), tokens()
    given = model(x, labels=x, use_cache=False)
    assert given.logits.dtype == torch.bfloat16
    assert gap(name, given.logits.detach()) < STEPS * torch.finfo(torch.bfloat16).eps
    given.loss.backward()
    broken = [
        key
        for key, one in model.named_parameters()
        if one.grad is None or one.grad.dtype != torch.bfloat16 or not one.grad.isfinite().all()
    ]
    assert broken == []


@pytest.mark.parametrize("name", bound("float16"))
def test_float16_is_finite_and_off_by_its_rounding_only(name):
    given = rounded(name, torch.float16)(tokens(), use_cache=False).logits
    assert given.dtype == torch.float16
    assert gap(name, given) < STEPS * torch.finfo(torch.float16).eps
