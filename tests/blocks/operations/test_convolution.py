"""The causal convolution against PyTorch's, over documents, padding and every kind of cache."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, StaticCache

from layerlab import UserError
from layerlab.blocks.context import Flow
from layerlab.blocks.init import normal
from layerlab.blocks.operations.convolution import CausalConvolution, convolution_cost
from layerlab.model.config import LabConfig

TIGHT = 1e-14
"""In float64: a few products of size 1, each rounded by 1e-16."""


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def convolution(kernel: int = 4, channels: int = 6) -> CausalConvolution:
    module = CausalConvolution(channels, kernel, normal).double()
    with torch.no_grad():
        module.weight.copy_(random(channels, kernel, seed=1))
    return module


def literal(module: CausalConvolution, x: Tensor) -> Tensor:
    """PyTorch's depthwise convolution; its last weight is that of the token itself."""
    kernel = module.weight.flip(1).unsqueeze(1)
    padded = functional.pad(x.transpose(1, 2), (module.kernel - 1, 0))
    return functional.conv1d(padded, kernel, groups=x.shape[2]).transpose(1, 2)


def config() -> LabConfig:
    made = LabConfig(num_hidden_layers=2, hidden_size=6, num_attention_heads=1, head_dim=6)
    made.layer_types = ["hybrid"] * 2
    made.number_of_conv_states = 2
    return made


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("kernel", [1, 2, 4, 9])
@pytest.mark.parametrize("tokens", [1, 3, 12])
def test_it_is_a_depthwise_convolution_padded_on_the_left(kernel, tokens):
    module, x = convolution(kernel), random(2, tokens, 6)
    close(module(x, Flow()), literal(module, x))


def test_documents_do_not_see_each_other():
    module, x = convolution(), random(1, 9, 6)
    ages = torch.tensor([[0, 1, 0, 1, 2, 3, 4, 0, 1]])
    found = module(x, Flow(ages=ages))
    for document in (slice(0, 2), slice(2, 7), slice(7, 9)):
        close(found[:, document], literal(module, x[:, document]))


def test_what_stands_before_the_first_token_counts_as_zero():
    module, x = convolution(), random(2, 9, 6)
    ages = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
    found = module(x, Flow(ages=ages))
    close(found[:1, 3:], literal(module, x[:1, 3:]))
    close(found[1:], literal(module, x[1:]))


def test_gradients_stay_inside_a_document():
    module, x = convolution(), random(1, 6, 6).requires_grad_()
    found = module(x, Flow(ages=torch.tensor([[0, 1, 2, 0, 1, 2]])))
    found[:, 3:].sum().backward()
    assert not x.grad[:, :3].any()
    assert x.grad[:, 3:].all()


@pytest.mark.parametrize("kernel", [1, 2, 4, 9])
@pytest.mark.parametrize("pieces", [[1] * 12, [2, 1, 1, 5, 1, 2], [9, 3], [12]], ids=str)
@pytest.mark.parametrize("kind", [DynamicCache, StaticCache], ids=lambda kind: kind.__name__)
def test_piece_by_piece_is_the_same_as_all_at_once(kind, pieces, kernel):
    module, x = convolution(kernel), random(2, 12, 6)
    module.state = 1
    cache = kind(config=config(), **({"max_cache_len": 16} if kind is StaticCache else {}))
    found = [module(piece, Flow(cache=cache, layer=1)) for piece in x.split(pieces, dim=1)]
    close(torch.cat(found, 1), literal(module, x))


def test_layers_and_places_of_one_cache_are_kept_apart():
    modules = [(layer, state, convolution()) for layer in (0, 1) for state in (0, 1)]
    inputs = [random(1, 8, 6, seed=seed) for seed in range(4)]
    cache = DynamicCache(config=config())
    found: list[list[Tensor]] = [[] for _ in modules]
    for start in range(0, 8, 2):
        for outputs, (layer, state, module), x in zip(found, modules, inputs, strict=True):
            module.state = state
            outputs.append(module(x[:, start : start + 2], Flow(cache=cache, layer=layer)))
    for outputs, (_, _, module), x in zip(found, modules, inputs, strict=True):
        close(torch.cat(outputs, 1), literal(module, x))


def test_padding_is_left_out_from_the_cache_too():
    module, x = convolution(), random(1, 9, 6)
    ages = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4, 5]])
    cache = DynamicCache(config=config())
    cuts = [(0, 4), (4, 5), (5, 9)]
    pieces = [module(x[:, a:b], Flow(cache=cache, ages=ages[:, a:b])) for a, b in cuts]
    close(torch.cat(pieces, 1)[:, 3:], literal(module, x[:, 3:]))


def test_beams_may_be_reordered():
    module, x = convolution(), random(3, 8, 6)
    cache = DynamicCache(config=config())
    module(x[:, :5], Flow(cache=cache))
    order = torch.tensor([2, 0, 0])
    cache.layers[0].keys = cache.layers[0].values = torch.zeros(3, 1, 5, 6)
    cache.layers[0].is_initialized = True
    cache.layers[0].reorder_cache(order)
    mixed = torch.cat((x[order, :5], x[:, 5:]), dim=1)
    close(module(x[:, 5:], Flow(cache=cache)), literal(module, mixed)[:, 5:])


def test_tokens_that_were_tried_may_be_taken_back():
    module, x = convolution(), random(1, 10, 6)
    cache = DynamicCache(config=config())
    layer = cache.layers[0]
    layer.activate_past_recording()
    seen = 0
    for piece, rejected in ((2, 0), (4, 3), (3, 1)):
        module(x[:, seen : seen + piece], Flow(cache=cache))
        for state in range(layer.number_of_states):  # as `crop` does, of which attention has none
            if layer.is_conv_states_initialized[state]:
                end = layer.conv_states[state].shape[-1] - rejected
                first = max(end - layer.conv_kernel_size[state], 0)
                layer.conv_states[state] = layer.conv_states[state][..., first:end]
        seen += piece - rejected
    close(module(x[:, seen:], Flow(cache=cache)), literal(module, x)[:, seen:])


@pytest.mark.parametrize("made", [DynamicCache(), DynamicCache(config=LabConfig())])
def test_a_cache_that_keeps_no_features_is_refused(made):
    with pytest.raises(UserError, match=r"keeps no earlier features.*config=model\.config"):
        convolution()(random(1, 3, 6), Flow(cache=made))


def test_a_convolution_of_one_token_needs_no_cache():
    module, x = convolution(1), random(1, 3, 6)
    close(module(x, Flow(cache=DynamicCache())), literal(module, x))


def test_cost_counts_the_kernel():
    module = convolution(3, 7)
    cost = convolution_cost(7, 3)
    assert cost.parameters == cost.weights == module.weight.numel()
    assert cost.flops == 0
