"""WideNet: experts as a slow loop has them, none of them full, in blocks that are shared."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

from layerlab.blocks.context import Flow
from layerlab.model.cost.cost import account
from layerlab.model.laws import operations, parameters
from layerlab.variants.feedforward.widenet import Experts
from tests.model.small import SIZES, shaken, small
from tests.support.forked import python
from tests.variants.option import lawful

OPTIONS = [
    {},
    {"k": 1},
    {"k": 4},
    {"experts": 3, "k": 2, "inner": 20},
    {"experts": 1, "k": 1},
    {"gated": False, "activation": "relu"},
]


def features(tokens: int = 6, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, tokens, SIZES["width"], generator=generator, dtype=torch.float64)


def experts(**options: object) -> Experts:
    part = shaken(small("widenet", **options)).model.layers[0].ffn
    assert isinstance(part, Experts)
    return part


def slow(part: Experts, token: Tensor, inner: int) -> Tensor:
    """One token through its experts, one after another."""
    scores = [math.exp(row @ token) for row in part.router.weight]
    likely = [score / sum(scores) for score in scores]
    chosen = sorted(range(part.experts), key=lambda expert: -likely[expert])[: part.k]
    total = torch.zeros_like(token)
    for expert in chosen:
        here = slice(expert * inner, (expert + 1) * inner)
        if part.gate is None:
            inside = functional.relu(part.up.weight[here] @ token)
        else:
            inside = functional.silu(part.gate.weight[here] @ token) * (
                part.up.weight[here] @ token
            )
        total = total + likely[expert] * (part.down.weight[:, here] @ inside)
    return total


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_experts_are_a_slow_loop(options):
    part, x = experts(**options), features()
    inner = part.up.out_features // part.experts
    assert inner == options.get("inner", small("widenet").config.intermediate_size)
    expected = torch.stack([torch.stack([slow(part, one, inner) for one in row]) for row in x])
    torch.testing.assert_close(part(x, Flow()), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_experts_are_those_of_olmoe(k):
    part = experts(experts=5, k=k, inner=20)
    config = OlmoeConfig(
        hidden_size=SIZES["width"],
        intermediate_size=20,
        num_experts=5,
        num_experts_per_tok=k,
        norm_topk_prob=False,
        experts_implementation="eager",
    )
    theirs = OlmoeSparseMoeBlock(config).double()
    gate, up = (one.weight.unflatten(0, (5, 20)) for one in (part.gate, part.up))
    with torch.no_grad():
        theirs.gate.weight.copy_(part.router.weight)
        theirs.experts.gate_up_proj.copy_(torch.cat((gate, up), dim=1))
        theirs.experts.down_proj.copy_(part.down.weight.unflatten(1, (5, 20)).movedim(1, 0))
    x = features(40)
    expected = theirs(x)
    eps = torch.finfo(torch.float32).eps  # of their softmax: score - maximum, exponent, quotient
    tolerance = 8 * eps * expected.abs().max().item()
    torch.testing.assert_close(part(x, Flow()), expected, rtol=0, atol=tolerance)


def test_shares_are_those_of_the_k_most_likely():
    part, x = experts(k=3), features(50)
    shares = part.shares(x)
    assert ((shares > 0).sum(-1) == 3).all()
    likely = torch.softmax(part.router(x), dim=-1)
    assert torch.equal(shares[shares > 0], likely[shares > 0])
    least, left = shares.where(shares > 0, 1.0).amin(-1), likely.where(shares == 0, 0.0).amax(-1)
    assert (least >= left).all()


def test_no_token_is_dropped_when_all_go_to_one_expert():
    part, x = experts(k=1), features(200)
    with torch.no_grad():
        part.router.weight.zero_()
        x[..., 0] = 50
        part.router.weight[2, 0] = 1
    assert (part.shares(x)[..., 2] > 0.99).all()
    inner = part.up.out_features // part.experts
    here = slice(2 * inner, 3 * inner)
    gate, up = (functional.linear(x, one.weight[here]) for one in (part.gate, part.up))
    expected = functional.linear(functional.silu(gate) * up, part.down.weight[:, here])
    found = part(x, Flow())
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert (found.norm(dim=-1) > 0).all()


def test_a_token_is_routed_as_if_it_were_alone():
    part, x = experts(), features(30)
    alone = torch.cat([part(x[:, at : at + 1], Flow()) for at in range(30)], dim=1)
    torch.testing.assert_close(part(x, Flow()), alone, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_router_learns(k):
    part, x = experts(k=k), features()
    part(x, Flow()).square().sum().backward()
    assert (part.router.weight.grad.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("options", OPTIONS[1:], ids=str)
def test_options_keep_the_laws_and_the_formulas(options):
    if options.get("experts") == 1:  # a single expert has share 1, and a router without a choice
        assert parameters(small("widenet", **options)) == ""
        assert operations(small("widenet", **options)) == ""
    else:
        lawful("widenet", **options)


def test_depth_costs_norms_and_work():
    def said(layers: int) -> tuple[int, int]:
        model = small("widenet", layers=layers, device="meta")
        found = account(model.config.parse_spec(), model.config.shape())
        head = 2 * SIZES["width"] * SIZES["vocab"]
        return found.parameters, found.forward - head

    (few, work), (many, more) = said(2), said(6)
    assert many - few == 4 * 2 * SIZES["width"]
    assert more == 3 * work


@pytest.mark.full
def test_experts_compile_as_one_graph():
    code = """
import torch
from layerlab.blocks.context import Flow
from layerlab.blocks.shape import Shape, Site
from layerlab.variants.feedforward.widenet import Experts

sizes = {"width": 48, "layers": 1, "heads": 4, "kv_heads": 4, "head_width": 12, "inner": 128}
part = Experts(48, Site(shape=Shape(**sizes, vocab=61, context=24)))
whole = torch.compile(part, fullgraph=True, backend="eager", dynamic=False)
for tokens in (24, 1):
    x = torch.randn(2, tokens, 48)
    assert torch.equal(whole(x, Flow()), part(x, Flow()))
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("gated", [True, False])
def test_under_autocast_the_share_does_not_make_its_product_longer(gated):
    part = experts(gated=gated).float()
    given: list[torch.dtype] = []
    part.down.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        part(features().float(), Flow())
    assert given == [torch.bfloat16]
