"""Errors that are drawn, beside those that an emulation makes."""

import pytest
import torch
from torch import Tensor, nn

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.attribution import outputs
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.formats.formats import find
from layerlab.numerics.prediction.error_state import spacing
from layerlab.numerics.prediction.monte_carlo import MonteCarlo, sample_errors
from layerlab.numerics.prediction.predict import spreads
from tests.measures.family import built


def size(error: Tensor, value: Tensor) -> float:
    return float((error.norm(dim=-1) / value.norm(dim=-1)).square().mean().sqrt())


@pytest.mark.few(1)
@pytest.mark.parametrize("format", ["bf16", "fp8_e5m2", "fp32"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_it_is_within_thirty_percent_of_what_is_observed(family, format):
    model = built(family)
    ids = torch.randint(3, 64, (2, 32), generator=torch.Generator().manual_seed(1))
    layers = tuple(next(one for one in model.modules() if isinstance(one, nn.ModuleList)))
    found = make_arithmetic(format)
    values, predicted = sample_errors(model, lambda: model(ids), found, layers)
    seen = outputs(Emulation(model, found), lambda: model(ids), layers)[1:]
    for value, spread, one in zip(values, predicted, seen, strict=True):
        assert size(one - value, value) / size(spread, value) == pytest.approx(1, abs=0.3)


@pytest.mark.full
def test_it_is_a_kind_of_prediction_and_repeats():
    model = built("llama")
    ids = torch.arange(3, 15)[None]
    first = spreads(model, lambda: model(ids), make_arithmetic("bf16"), [], "sampled")
    again = sample_errors(model, lambda: model(ids), make_arithmetic("bf16"), [])
    other = sample_errors(model, lambda: model(ids), make_arithmetic("bf16", seed=9), [])
    assert torch.equal(first[1][0], again[1][0])
    assert torch.equal(first[0][0], other[0][0])
    assert not torch.equal(first[1][0], other[1][0])


@pytest.mark.parametrize("format", ["bf16", "t11"])
def test_a_drawn_error_fills_half_a_gap_to_either_side_and_has_no_mean(format):
    run = MonteCarlo(nn.Linear(2, 2), make_arithmetic(format))
    kind = find(format)
    torch.manual_seed(0)
    values = torch.randn(20_000, dtype=torch.float64) + 0.1
    moved = run.rounder(kind)(values)
    part = (moved - values) / spacing(values, kind)
    assert float(part.abs().max()) <= 0.5
    # Uniform on (-1/2, 1/2): variance 1/12, and a mean within five standard errors of 0.
    assert float(part.square().mean()) == pytest.approx(1 / 12, rel=0.05)
    assert abs(float(part.mean())) < 5 * (1 / 12 / len(values)) ** 0.5


def test_what_the_format_holds_is_not_moved_nor_what_it_cannot():
    run = MonteCarlo(nn.Linear(2, 2), make_arithmetic("fp8_e4m3"))
    values = torch.tensor([0.0, 1.0, -0.375, 448.0, 1000.0, torch.inf, -3e38]).double()
    held = torch.tensor([0.0, 1.0, -0.375, 448.0, 448.0, 448.0, -3e38]).double()
    moved = run.rounder(find("fp8_e4m3"))(values)
    assert torch.equal(moved[:5], held[:5])
    assert moved[6] == values[6]


def test_what_is_too_small_for_the_format_becomes_zero():
    run = MonteCarlo(nn.Linear(2, 2), make_arithmetic("fp8_e4m3"))
    values = torch.tensor([2.0**-11, -(2.0**-20)]).double()
    assert not run.rounder(find("fp8_e4m3"))(values).any()


def test_weights_are_rounded_and_not_drawn():
    layer = nn.Linear(3, 3)
    for run in (
        MonteCarlo(layer, make_arithmetic("bf16")),
        Emulation(layer, make_arithmetic("bf16")),
    ):
        stored = run._weight(layer.weight.data.double(), OpSite("", "weight"), find("bf16"))
        assert torch.equal(stored, layer.weight.data.to(torch.bfloat16).double())


@pytest.mark.gpu
def test_a_gpu_draws_errors_of_the_size_that_a_processor_draws():
    found = {}
    for device in ("cpu", "cuda"):
        model = built("llama").to(device)
        ids = torch.arange(3, 35, device=device)[None]
        layers = tuple(next(one for one in model.modules() if isinstance(one, nn.ModuleList)))
        values, drawn = sample_errors(
            model, lambda ids=ids, model=model: model(ids), make_arithmetic("bf16"), layers
        )
        assert {one.device.type for one in drawn} == {device}
        found[device] = [size(a, b) for a, b in zip(drawn, values, strict=True)]
    assert found["cuda"] == pytest.approx(found["cpu"], rel=0.3)
