"""Rotary positions: the same bits as transformers, and derivatives of every kind."""

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from layerlab.blocks.position import rotate


def features(dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Heads as a projection leaves them: tokens apart in memory, heads side by side."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, 3, 8, generator=generator).to(dtype).transpose(1, 2)


def tables(dtype: torch.dtype, *, halves_equal: bool = True) -> tuple[Tensor, Tensor]:
    """Cosines and sines of five positions; of one angle for both of a pair, or of two."""
    angles = torch.arange(5.0)[None, :, None] * torch.tensor([1.0, 0.3, 0.1, 0.03])
    other = angles if halves_equal else 1.7 * angles
    both = torch.cat((angles, other), dim=-1)
    return both.cos().to(dtype), both.sin().to(dtype)


@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize(
    ("dtype", "of_tables"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ],
)
def test_bits_are_those_of_transformers(dtype, of_tables, learning):
    query, key, (cos, sin) = features(dtype), features(dtype, 1), tables(of_tables)
    with torch.set_grad_enabled(learning):
        found = rotate(query.requires_grad_(learning), key.requires_grad_(learning), cos, sin)
    for ours, theirs in zip(found, apply_rotary_pos_emb(query, key, cos, sin), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert found[0].requires_grad == learning


def test_gradients_are_those_of_the_written_out_form():
    cos, sin = tables(torch.float32)
    slopes = []
    for turn in (rotate, apply_rotary_pos_emb):
        query = features(torch.bfloat16).requires_grad_()
        (turn(query, query, cos, sin)[0] * features(torch.float32, 2)).sum().backward()
        slopes.append(query.grad)
    assert slopes[0].dtype == torch.bfloat16
    # There each product is rounded on its way to bfloat16 and then their sum; here the sum alone.
    eps, size = torch.finfo(torch.bfloat16).eps, features(torch.float32, 2).abs().max()
    torch.testing.assert_close(*slopes, rtol=0, atol=2 * eps * size.item())


@pytest.mark.full
@pytest.mark.parametrize("halves_equal", [True, False])
def test_derivatives_are_those_of_finite_differences(halves_equal):
    cos, sin = tables(torch.float64, halves_equal=halves_equal)
    query, key = features(torch.float64), features(torch.float64, 1)
    given = (query.requires_grad_(), key.requires_grad_())
    turn = lambda *both: rotate(*both, cos, sin)  # noqa: E731
    assert torch.autograd.gradcheck(turn, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(turn, given)


def test_function_transforms_reach_it():
    query, (cos, sin) = features(torch.float32), tables(torch.float32)

    def length(x: Tensor) -> Tensor:
        return rotate(x, x, cos, sin)[0].square().sum()

    # A turn keeps lengths, so the gradient of the squared length is 2 x; five roundings of it.
    bound = 5 * torch.finfo(torch.float32).eps * query.abs().max().item() * 2
    torch.testing.assert_close(torch.func.grad(length)(query), 2 * query, rtol=0, atol=bound)
