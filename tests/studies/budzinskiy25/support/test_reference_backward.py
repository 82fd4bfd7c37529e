"""Gradients by hand: those of autograd where nothing is rounded, close to them where it is."""

import pytest
import torch

from layerlab.studies.budzinskiy25.support import reference_transformer
from layerlab.studies.budzinskiy25.support.reference_backward import block, gradients
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact, Strict

DOUBLE = torch.float64


def weights(seed, draws=3, width=6, inner=8):
    draw = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(draws, *shape, generator=draw, dtype=DOUBLE)

    return reference_transformer.Weights(
        query=random(width, width),
        key=random(width, width),
        value=random(width, width),
        inner=random(inner, width),
        outer=random(width, inner),
    )


def start(seed=0, draws=3, tokens=5, width=6):
    draw = torch.Generator().manual_seed(100 + seed)
    return torch.randn(draws, tokens, width, generator=draw, dtype=DOUBLE)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_the_way_back_is_that_of_autograd(norm):
    exact, stack, last = Exact(), [weights(seed) for seed in range(3)], start(1)
    streams, found = gradients(exact, start(), stack, last, norm)
    x = start().requires_grad_()
    inputs, result = [], x
    for one in stack:
        inputs.append(result)
        result = reference_transformer.block(exact, result, one, norm)
    expected = torch.autograd.grad((last * result).sum(), inputs)
    assert torch.allclose(streams[-1], result, rtol=1e-12)
    for seen, wanted in zip(found, expected, strict=True):
        assert torch.allclose(seen, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_the_way_forward_is_that_of_the_decoder_bit_for_bit(norm):
    strict = Strict(8)
    one, x = weights(0).convert(strict), strict.take(start())
    assert torch.equal(
        block(strict, x, one, norm)[0], reference_transformer.block(strict, x, one, norm)
    )


def test_errors_of_the_way_back_shrink_with_the_unit_roundoff():
    sizes = []
    for digits in (12, 16, 20):
        strict, exact = Strict(digits), Exact()
        stack, x = [weights(0).convert(strict)], strict.take(start())
        last = strict.take(start(1))
        seen = gradients(strict, x, stack, last)[1][0]
        truth = gradients(exact, x, stack, last)[1][0]
        assert torch.equal(strict.take(seen), seen), "the gradient has more digits than allowed"
        sizes.append(float(reference_transformer.errors(seen, truth)[:, 2].median()))
    assert 8 < sizes[0] / sizes[1] < 32 and 8 < sizes[1] / sizes[2] < 32


def test_the_gradient_of_an_empty_row_is_zero():
    x = start()
    x[:, 0] = 0
    _, (gradient,) = gradients(Exact(), x, [weights(0)], start(1), "rms")
    assert gradient.isfinite().all()
