"""The series over rows against the plain sum: the same bits forwards, the same derivatives."""

from functools import partial

import pytest
import torch
from torch import Tensor

from layerlab.blocks.activation import NAMES, activate, apply_slope
from layerlab.blocks.operations import chunking as file
from layerlab.variants.feedforward.series_sum import series
from tests.blocks.operations.pieces import cut, drawn, same_derivatives

SHAPE = (3, 50, 12)  # more rows than one piece has, and a last piece that is shorter


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch)


def terms(count: int, numbers: int = 12, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return drawn(SHAPE, *[(numbers,)] * (2 * count), dtype=dtype)


def ours(names: tuple[str, ...], x: Tensor, *numbers: Tensor) -> Tensor:
    return series(x, names, numbers[: len(names)], numbers[len(names) :])


def plain(names: tuple[str, ...], x: Tensor, *numbers: Tensor) -> Tensor:
    """A literal transcription."""
    n = len(names)
    y = activate(numbers[0] * x + numbers[n], names[0])
    for at in range(1, n):
        shift = numbers[n + at]
        y = y + activate(numbers[at] * x + shift, names[at]) - activate(shift, names[at])
    return y


@pytest.mark.parametrize("name", NAMES)
def test_slope_is_the_derivative(name):
    x = torch.linspace(-3, 3, 37, dtype=torch.float64).requires_grad_()
    given = torch.linspace(1, 2, 37, dtype=torch.float64)
    (expected,) = torch.autograd.grad(activate(x, name), x, given)
    torch.testing.assert_close(apply_slope(given, x, name), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("names", [("silu", "silu"), ("gelu", "relu", "tanh"), ("gelu-tanh",) * 4])
@pytest.mark.parametrize("numbers", [1, 12])
def test_value_and_derivatives(names, numbers):
    inputs = terms(len(names), numbers, torch.float64)
    same_derivatives(partial(ours, names), partial(plain, names), inputs, rtol=1e-12, atol=1e-12)


def test_start_is_the_first_term_to_the_bit():
    x, _, _, first, shift = terms(2)
    one, zero = torch.ones(12), torch.zeros(12)
    found = series(x, ("silu", "silu"), [one, zero], [zero, shift])
    assert torch.equal(found, torch.nn.functional.silu(x))
    assert not torch.equal(series(x, ("silu",), [one], [first]), torch.nn.functional.silu(x))


def test_pieces_are_the_whole_to_the_bit(monkeypatch):
    x, *rest = terms(2)
    found = series(x, ("silu", "gelu"), rest[:2], rest[2:])
    monkeypatch.setattr(file, "LARGE", 10**9)
    assert torch.equal(found, series(x, ("silu", "gelu"), rest[:2], rest[2:]))


def test_bfloat16_features_with_float32_numbers():
    x, *rest = terms(2)
    x = x.detach().bfloat16().requires_grad_()
    series(x, ("silu", "silu"), rest[:2], rest[2:]).sum().backward()
    assert x.grad.dtype == torch.bfloat16 and rest[0].grad.dtype == torch.float32
