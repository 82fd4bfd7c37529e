from functools import partial

import pytest
import torch
from torch import nn

from layerlab.errors import UserError
from layerlab.numerics.emulation import weight_rows
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation, reference
from layerlab.numerics.emulation.weight_rows import WeightRows
from layerlab.numerics.prediction.predict import spreads

IDS = torch.arange(24).reshape(2, 12)


@pytest.fixture
def sizes(monkeypatch):
    """Numbers of the parts that are widened, once large matrices have more than 100."""
    found, read = [], WeightRows.read

    def note(rows, *args):
        values = read(rows, *args)
        found.append(values.numel())
        return values

    monkeypatch.setattr(weight_rows, "COPIED", 100)
    monkeypatch.setattr(WeightRows, "read", note)
    return found


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["variance", "bound", "sampled"])
def test_errors_are_followed_through_parts_of_a_matrix(tiny, kind, sizes):
    model = tiny("llama").bfloat16()
    call = partial(model, input_ids=IDS)
    given = (model, call, make_arithmetic("bf16"), list(model.model.layers), kind)
    weight_rows.COPIED = 1 << 26
    _, whole = spreads(*given)
    weight_rows.COPIED = 100
    _, parts = spreads(*given)
    # What is looked up is as many rows as there are tokens.
    assert set(sizes) <= {96, 64, 32, 24 * 16} and len(sizes) > 20
    for one, other in zip(whole, parts, strict=True):
        close(one, other)


@pytest.mark.parametrize("family", ["llama", "gpt2", "openai-gpt"])
@pytest.mark.parametrize("format", ["bf16", "fp8_e4m3", "mxfp4", "autocast"])
def test_an_emulation_by_layer_is_the_same_in_parts(tiny, family, format, sizes):
    model = tiny(family).bfloat16()
    found = []
    for limit in (1 << 26, 100):
        weight_rows.COPIED = limit
        mode = {"mode": "autocast"} if format == "autocast" else {}
        run = Emulation(model, make_arithmetic("bf16" if mode else format, **mode))
        with run.running(by_layer=True):
            found.append(model(input_ids=IDS))
    assert sizes
    close(found[0][0], found[1][0])


def test_a_head_with_a_bias_is_multiplied_in_parts(sizes):
    head = nn.Linear(8, 50, dtype=torch.bfloat16)
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    with reference(head, by_layer=True):
        found = head(x)
    assert max(sizes) <= 100
    close(found, nn.functional.linear(x.double(), head.weight.double(), head.bias.double()))


def test_what_needs_all_values_gets_them(sizes):
    stored = torch.randn(40, 8).bfloat16()
    rows = WeightRows(stored, torch.float64, stored.device)
    wide = stored.double()
    assert rows.sum() == wide.sum()
    assert torch.equal(rows @ rows.t(), wide @ wide.t())
    assert torch.equal(rows.t().abs() + 1, wide.t().abs() + 1)
    assert torch.equal(torch.randn(2, 40).double().mul_(0) @ rows, torch.zeros(2, 8).double())
    assert max(sizes) == 320
    assert torch.equal(stored.double(), wide)


def test_rounding_leaves_the_parameter_as_it_is(sizes):
    stored = torch.randn(40, 8)
    before = stored.clone()
    rows = WeightRows(stored, torch.float32, stored.device, [lambda values: values.zero_()])
    assert not (torch.ones(2, 8) @ rows.t()).any()
    assert torch.equal(stored, before)


def test_nothing_is_written_into_rows(sizes):
    rows = WeightRows(torch.randn(40, 8).bfloat16(), torch.float64, torch.device("cpu"))
    with pytest.raises(UserError, match="writes into a parameter of 320 numbers"):
        rows.mul_(2)
    assert not sizes
