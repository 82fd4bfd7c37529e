"""Polynomial activations against a literal transcription of their two equations."""

import pytest
import torch

from layerlab.variants.feedforward.polynorm import Polynomial
from tests.model.small import small
from tests.variants.option import TIGHT


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def literal(form: str, x: torch.Tensor, weights: list[float], bias: float) -> torch.Tensor:
    """One feature after the other, one token after the other."""
    found = torch.empty_like(x)
    for token, row in enumerate(x):
        terms = []
        for power, weight in enumerate(weights, start=1):
            values = [
                max(float(v), 0.0) ** power if form == "relu" else float(v) ** power for v in row
            ]
            square = sum(v * v for v in values) / len(values)
            scale = 1.0 if form == "relu" else (square + 1e-6) ** -0.5
            terms.append([weight * v * scale for v in values])
        found[token] = torch.tensor(
            [bias + sum(column) for column in zip(*terms, strict=True)], dtype=x.dtype
        )
    return found


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("form", ["norm", "relu"])
def test_it_is_the_sum_of_weighted_powers(form, order):
    weights = [0.5 - 0.2 * term for term in range(order)]
    activation = Polynomial(form, order, 1e-6).double()
    activation.load_state_dict({"weight": torch.tensor(weights), "bias": torch.tensor([0.25])})
    exact = activation.weight.tolist()
    x = random(7, 10) * 2
    torch.testing.assert_close(activation(x), literal(form, x, exact, 0.25), rtol=0, atol=TIGHT)


def test_weights_start_even_and_the_constant_at_zero():
    for order in (3, 4):
        activation = small("polynorm", order=order).model.layers[2].ffn.activation
        third = torch.full((order,), 1 / order).double()
        torch.testing.assert_close(activation.weight.data, third, rtol=0, atol=1e-7)
        assert activation.bias.tolist() == [0.0]


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_in_bfloat16_it_is_the_rounded_exact_value(size):
    activation = Polynomial("norm", 3, 1e-6)
    with torch.no_grad():
        activation.weight.fill_(1 / 4)  # exact in bfloat16
    x = (random(5, 64) * size).bfloat16()
    found, exact = activation.bfloat16()(x), activation.double()(x.double())
    assert torch.isfinite(found).all()
    # One rounding to 8 bits at the end, and float32 roundings of which there are far fewer than 64.
    bound = 2**-8 * exact.abs() + 64 * torch.finfo(torch.float32).eps * exact.abs().max()
    assert ((found.double() - exact).abs() <= bound).all()


def test_first_order_norm_is_scale_free_and_first_order_relu_is_relu():
    x = random(3, 48)
    linear = Polynomial("norm", 1, 1e-30).double()
    torch.testing.assert_close(linear(x), linear(1000 * x), rtol=0, atol=TIGHT)
    torch.testing.assert_close(
        Polynomial("relu", 1, 1e-6).double()(x), x.clamp(min=0), rtol=0, atol=TIGHT
    )
