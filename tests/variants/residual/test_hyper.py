"""Hyper-connections against their equations, written out token by token."""

import pytest
import torch
from torch import Tensor

from layerlab.blocks.context import Flow
from layerlab.blocks.operations import chunking
from layerlab.variants.residual.hyper import _normed_rows, _product_first
from tests.model.small import shaken, small, tokens
from tests.variants.option import costs_as_counted

OPTIONS = [{"dynamic": False}, {"streams": 1}, {"streams": 3, "collapse": "sum"}]
ROUNDING = 1e-12  # float64: sums of some hundred terms of 1e-16 each


def streams(count: int, width: int = 48, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 5, count, width, generator=generator, dtype=dtype)


def literal(part: torch.nn.Module, hyper: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 2 to 5 and 10 to 13 for one token: hyper is n x width."""
    n = hyper.shape[0]
    mean, var = hyper.mean(1, keepdim=True), hyper.var(1, keepdim=True, unbiased=False)
    norm = (hyper - mean) / (var + 1e-5).sqrt() * part.norm.weight + part.norm.bias
    matrix, (alpha, beta) = part.weight.weight, part.scale
    read = part.static[:, 0] + alpha * torch.tanh(norm @ matrix[0])
    mixed = part.static[:, 1 : n + 1] + alpha * torch.tanh(norm @ matrix[1 : n + 1].T)
    written = part.static[:, n + 1] + beta * torch.tanh(norm @ matrix[n + 1])
    entered = sum(read[i] * hyper[i] for i in range(n))
    rows = [sum(mixed[i, j] * hyper[i] for i in range(n)) + written[j] * y for j in range(n)]
    return entered, torch.stack(rows)


def test_one_sublayer_is_as_the_equations_say():
    part = shaken(small("hyper-connections")).model.layers[1].ffn_residual
    hyper, y = streams(4), streams(1)[:, :, 0]
    flow = Flow(carry={"residual.streams": hyper})
    entered = part.read(hyper[:, :, 0], flow)
    x = part.write(hyper[:, :, 0], y, flow)
    for batch in range(2):
        for token in range(5):
            read, after = literal(part, hyper[batch, token], y[batch, token])
            place = (batch, token)
            torch.testing.assert_close(entered[place], read, rtol=0, atol=ROUNDING)
            kept = flow.carry["residual.streams"]
            torch.testing.assert_close(kept[place], after, rtol=0, atol=ROUNDING)
            torch.testing.assert_close(x[place], after.mean(0), rtol=0, atol=ROUNDING)
    assert list(flow.carry) == ["residual.streams"]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("dynamic", [True, False])
def test_start_is_the_plain_residual_bit_for_bit(count, dynamic):
    x = tokens()
    ours = small("hyper-connections", streams=count, dynamic=dynamic)
    assert torch.equal(ours(x).logits, small("llama")(x).logits)


def test_the_sources_sum_is_the_mean_times_n():
    mean, total = (small("hyper-connections", collapse=how) for how in ("mean", "sum"))
    x = tokens()
    said = [model(x, output_hidden_states=True).hidden_states[1] for model in (mean, total)]
    assert torch.equal(said[0] * 4, said[1])


def test_two_streams_can_run_attention_and_feed_forward_side_by_side():
    """Section 3.2 of the source: weights exist that make the two sublayers parallel."""
    model = small("hyper-connections", streams=2, dynamic=False)
    with torch.no_grad():
        for layer in model.model.layers:  # columns: read, to stream 1, to stream 2, write
            layer.attention_residual.static.copy_(torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]))
            layer.ffn_residual.static.copy_(torch.tensor([[1, 0, 0, 1], [0, 1, 1, 1]]))
    llama = small("llama")
    for layer in llama.model.layers:
        layer.run = parallel(layer)
    x = tokens()
    expected = llama(x).logits
    torch.testing.assert_close(model(x).logits, expected, rtol=0, atol=ROUNDING)
    assert not torch.allclose(expected, small("llama")(x).logits)


def parallel(layer: torch.nn.Module) -> object:
    def run(x: Tensor, flow: Flow) -> Tensor:
        attended = layer.attention(layer.attention_norm(x), flow)[0]
        return x + attended + layer.ffn(layer.ffn_norm(x), flow)

    return run


@pytest.mark.parametrize("options", OPTIONS)
def test_cost_is_as_pytorch_counts_it(options):
    costs_as_counted(small("hyper-connections", dtype=torch.float32, **options))


def test_streams_keep_their_precision_under_autocast():
    part = small("hyper-connections", dtype=torch.float32).model.layers[0].ffn_residual
    hyper = streams(4, dtype=torch.float32)
    flow = Flow(carry={"residual.streams": hyper})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        entered = part.read(hyper[:, :, 0], flow)
        part.write(entered, torch.zeros(2, 5, 48, dtype=torch.bfloat16), flow)
    assert entered.dtype == torch.float32
    assert torch.equal(flow.carry["residual.streams"], hyper)


def test_the_product_before_the_norm_is_that_after_it():
    """As a compiler is given it, which keeps what a product reads."""
    part = shaken(small("hyper-connections")).model.layers[0].ffn_residual
    x = (streams(4) + 3).requires_grad_()  # with means, which the norm takes away
    given = x, part.norm.weight, part.norm.bias, part.weight.weight
    plain, found = (form(*given, part.norm.epsilon) for form in (_normed_rows, _product_first))
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-12)
    drawn = torch.randn_like(plain)
    slopes = (torch.autograd.grad(one, given, drawn) for one in (plain, found))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-11)


def test_who_listens_to_the_norm_or_the_product_hears_them_at_every_size(monkeypatch):
    monkeypatch.setattr(chunking, "LARGE", 1)
    model = small("hyper-connections", dtype=torch.float32)
    part = model.model.layers[0].ffn_residual
    for module in (part.norm, part.weight):
        heard = []
        handle = module.register_forward_hook(lambda *_, heard=heard: heard.append(1))
        model(tokens())
        handle.remove()
        assert heard == [1]
