"""mHC against DeepSeek-V4's classes, and its mixing matrices against Birkhoff's bound."""

import math

import pytest
import torch
from torch import Tensor, nn
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4HyperConnection,
    DeepseekV4HyperHead,
)

from layerlab.blocks.context import Flow
from layerlab.variants.residual.mhc import doubly_stochastic, normed_product
from tests.blocks.operations.pieces import drawn
from tests.model.small import shaken, small, tokens
from tests.variants.option import costs_as_counted
from tests.variants.residual.test_hyper import ROUNDING, streams

UNIT = 2.0**-24
# float32: a product over n * width terms, then 40 sums of 4 and divisions of what it gave
PUBLISHED = (4 * 48 + 40 * 6) * UNIT
OPTIONS = [{}, {"streams": 2}, {"streams": 3, "collapse": "head"}, {"collapse": "sum"}]


@pytest.fixture
def config() -> DeepseekV4Config:
    return DeepseekV4Config(hidden_size=48)


def filled(theirs: nn.Module, ours: nn.Module) -> nn.Module:
    """Their module with our values, which stand in the same order."""
    values = [ours.weight, ours.static, ours.scale]
    with torch.no_grad():
        for parameter, value in zip(theirs.parameters(), values, strict=True):
            parameter.copy_(value)
    return theirs


def test_a_sublayer_is_deepseeks(config):
    model = shaken(small("mhc", dtype=torch.float32, guard=config.hc_eps))
    ours = model.model.layers[1].attention_residual
    theirs = filled(DeepseekV4HyperConnection(config), ours)
    hyper, y = streams(4, dtype=torch.float32), streams(1, dtype=torch.float32)[:, :, 0]
    flow = Flow(carry={"residual.streams": hyper})
    entered = ours.read(y, flow)
    ours.write(y, y, flow)
    post, comb, collapsed = theirs(hyper)
    after = post.unsqueeze(-1) * y.unsqueeze(-2) + comb.transpose(-1, -2) @ hyper
    size = hyper.abs().max().item() * 4  # four streams are added up, with weights about 1
    torch.testing.assert_close(entered, collapsed, rtol=0, atol=size * PUBLISHED)
    kept = flow.carry["residual.streams"]
    torch.testing.assert_close(kept, after, rtol=0, atol=size * PUBLISHED)


def test_the_head_is_deepseeks(config):
    model = shaken(small("mhc", dtype=torch.float32, collapse="head", guard=config.hc_eps))
    ours, hyper = model.model.residual, streams(4, dtype=torch.float32)
    theirs = filled(DeepseekV4HyperHead(config), ours)
    closed = ours.close(hyper[:, :, 0], Flow(carry={"residual.streams": hyper}))
    size = hyper.abs().max().item() * 4
    torch.testing.assert_close(closed, theirs(hyper), rtol=0, atol=size * PUBLISHED)


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("n", [2, 4, 7])
def test_mixing_is_doubly_stochastic(n, spread):
    """Birkhoff: a half step shrinks Hilbert's distance by tanh(diameter / 4)."""
    generator = torch.Generator().manual_seed(n)
    logits = spread * (2 * torch.rand(50, n, n, generator=generator, dtype=torch.float64) - 1)
    found = doubly_stochastic(logits, 20, 1e-18)
    assert found.min() > 0
    unit = 2.0**-53
    assert (found.sum(-2) - 1).abs().max() <= 2 * n * unit
    shrink = math.tanh(4 * spread / 4)  # entries differ by 2 spread, cross ratios by twice that
    columns = logits.softmax(-1).sum(-2)
    first = (columns.amax(-1) / columns.amin(-1)).log()
    bound = torch.expm1(shrink ** (2 * 20 - 1) * first) + 40 * 2 * n * unit
    assert ((found.sum(-1) - 1).abs().amax(-1) <= bound).all()
    assert bound.max() < 0.5


def test_the_mixing_of_a_model_conserves_the_sum_of_its_streams():
    part = shaken(small("mhc")).model.layers[0].ffn_residual
    hyper = streams(4)
    flow = Flow(carry={"residual.streams": hyper})
    x = part.read(hyper[:, :, 0], flow)
    part.write(x, torch.zeros_like(x), flow)
    mixed, rows = flow.carry["residual.streams"], part.coefficients(hyper)[1]
    missing = (rows[..., 1:, :].sum(-2) - 1).abs().max()  # what 20 divisions leave
    difference = (mixed.sum(-2) - hyper.sum(-2)).abs().max()
    assert difference <= 4 * hyper.abs().max() * (missing + 1e-15)


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[3e4, 0.0], [3e4, -3e4]]).requires_grad_()
    mixing = doubly_stochastic(logits, 20, 1e-18)
    mixing.square().sum().backward()
    assert mixing.isfinite().all()
    assert logits.grad.isfinite().all()


def test_the_value_of_a_normed_product():
    x, weight = drawn((2, 3, 6), (4, 6))
    norm = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    found = normed_product(x, weight)[0]
    torch.testing.assert_close(found, x @ weight.T / norm, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("guard", [0.0, 1e-6, 1e-2])
def test_the_gradient_of_balancing_is_the_true_one(guard):
    (logits,) = drawn((2, 3, 3))

    def mixing(logits: Tensor) -> Tensor:
        return doubly_stochastic(logits, 3, guard)

    assert torch.autograd.gradcheck(mixing, (logits,))
    assert torch.autograd.gradgradcheck(mixing, (logits,))


@pytest.mark.parametrize("options", [*OPTIONS, {"guard": 1e-6, "collapse": "head"}])
def test_start_is_the_plain_residual(options):
    """Seen before the final norm; with a guard, sums of streams lose as much in each sublayer."""
    found = []
    for name, given in (("llama", {}), ("mhc", options)):
        model = small(name, **given)
        model.model.norm.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        model(tokens())
    plain, ours = found
    if options.get("collapse") == "sum":
        plain = 4 * plain
    size = plain.abs().max().item()
    lost = 2 * 3 * 10 * options.get("guard", 0)
    torch.testing.assert_close(ours, plain, rtol=0, atol=size * (lost + ROUNDING))


@pytest.mark.parametrize("n", range(2, 9))
def test_what_is_read_at_the_start_sums_to_one_though_float32_is_kept(n):
    for layer in small("mhc", streams=n).model.layers:
        for part in (layer.attention_residual, layer.ffn_residual):
            read = part.static[:n].sigmoid()
            assert abs(read.sum().item() - 1) <= 4 * n * 2.0**-53
            assert read.max() > 1.2 * read.median()


@pytest.mark.full
@pytest.mark.parametrize("options", OPTIONS[1:])
def test_cost_is_as_pytorch_counts_it(options):
    costs_as_counted(small("mhc", dtype=torch.float32, **options))
