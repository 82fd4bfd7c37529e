"""Layers that share attention and feed-forward, and what stays their own."""

from copy import deepcopy

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import DynamicCache

from layerlab import UserError
from layerlab.blocks.context import Flow
from layerlab.blocks.layer import DecoderLayer
from layerlab.blocks.part import Part
from layerlab.blocks.shape import Shape, Site
from layerlab.blocks.spec import BlockSpec
from layerlab.model.cost.cost import account
from layerlab.model.modeling import LabForCausalLM
from layerlab.system.model_cache import read_on
from layerlab.variants.registry import part
from tests.model.small import SIZES, shaken, small, tokens


def unshared(model: LabForCausalLM) -> LabForCausalLM:
    """A model of the same function in which every layer has its own copy."""
    plain = small("llama")
    plain.load_state_dict(model.state_dict())
    return plain


def shares(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return one is not other and all(a is b for a, b in pairs)


def test_layers_share_the_parameters_of_attention_and_feed_forward_and_no_others():
    first, *others = small("llama", sharing="blocks").model.layers
    for layer in others:
        assert shares(layer.attention, first.attention) and shares(layer.ffn, first.ffn)
        own = {id(one) for one in layer.parameters()} - {id(one) for one in first.parameters()}
        norms = [layer.attention_norm.weight, layer.ffn_norm.weight]
        assert own == {id(one) for one in norms}


def test_what_is_shared_starts_as_the_first_layer_of_a_model_that_shares_nothing():
    model, plain = small("llama", sharing="blocks"), small("llama")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name)), name


def test_a_parameter_has_one_name_and_counts_once():
    model = small("llama", sharing="blocks")
    names = [name for name, _ in model.named_parameters()]
    assert not [name for name in names if "layers.1.attention." in name or "layers.2.ffn." in name]
    assert "model.layers.0.attention.query.weight" in names
    said = account(model.config.parse_spec(), model.config.shape())
    plain = account(small("llama").config.parse_spec(), model.config.shape())
    assert said.blocks * SIZES["layers"] == plain.blocks
    assert said.scalars == plain.scalars and said.forward == plain.forward
    assert said.parameters == sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize("cached", [False, True])
def test_sharing_is_the_same_as_equal_layers(cached):
    model = shaken(small("llama", sharing="blocks"))
    plain, x = unshared(model), tokens()
    cache = DynamicCache(config=model.config) if cached else None
    seen = [model(x[:, :9], cache=cache, use_cache=cached).logits]
    if cached:
        seen.append(read_on(model, x[:, 9:], cache).logits)
        assert cache is not None and len(cache.layers) == SIZES["layers"]
        assert {layer.get_seq_length() for layer in cache.layers} == {x.shape[1]}
    found = torch.cat(seen, 1)
    expected = plain(x[:, : found.shape[1]]).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_the_gradient_is_the_sum_over_the_layers():
    model = shaken(small("llama", sharing="blocks")).train()
    plain, x = unshared(model).train(), tokens()
    model(x, labels=x).loss.backward()
    plain(x, labels=x).loss.backward()
    for name, shared in model.model.layers[0].attention.named_parameters():
        parts = [layer.attention.get_parameter(name).grad for layer in plain.model.layers]
        torch.testing.assert_close(shared.grad, sum(parts), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("head", ["untied", "tied"])
def test_a_checkpoint_holds_each_parameter_once_and_shares_again(head, tmp_path):
    model = shaken(small("llama", sharing="blocks", head=head, dtype=torch.float32))
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = set(file.keys())
    assert stored == {name for name, _ in model.named_parameters()}
    again, info = LabForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    first, *others = again.model.layers
    assert all(shares(layer.attention, first.attention) for layer in others)
    assert all(shares(layer.ffn, first.ffn) for layer in others)
    assert [name for name, _ in again.named_parameters()] == [
        n for n, _ in model.named_parameters()
    ]
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == (head == "tied")


def test_each_layer_shows_its_own_features_and_attention():
    model = shaken(small("llama", sharing="blocks"))
    model.set_attn_implementation("eager")
    given = model(tokens(), output_hidden_states=True, output_attentions=True)
    assert len(given.attentions) == SIZES["layers"] == len(given.hidden_states) - 1
    first, second = given.attentions[:2]
    assert not torch.allclose(first, second)


def test_a_copy_shares_among_its_own_layers():
    model = small("llama", sharing="blocks")
    first, *others = deepcopy(model).model.layers
    assert all(shares(layer.attention, first.attention) for layer in others)
    assert first.attention.query.weight is not model.model.layers[0].attention.query.weight


def test_a_shared_convolution_keeps_a_past_for_every_layer():
    model, x = shaken(small("canon", sharing="blocks")), tokens()
    assert model.model.convolutions
    cache = DynamicCache(config=model.config)
    steps = [read_on(model, x[:, :5], cache).logits]
    for at in range(5, x.shape[1]):
        steps.append(read_on(model, x[:, at : at + 1], cache).logits)
    torch.testing.assert_close(torch.cat(steps, 1), model(x).logits, rtol=0, atol=1e-11)


def test_a_shared_part_keeps_a_bias_that_is_not_as_long_as_its_weight():
    model = small("polynorm", sharing="blocks")
    assert {tuple(layer.ffn.activation.bias.shape) for layer in model.model.layers} == {(1,)}
    assert model(tokens()).logits.isfinite().all()


class Growing(Part):
    """A feed-forward whose width depends on the layer."""

    name = "growing"
    slot = "ffn"

    def __init__(self, width: int, site: Site) -> None:
        super().__init__()
        self.up = nn.Linear(width, width + site.layer)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return self.up(x)[..., : x.shape[-1]]


def test_layers_that_are_not_alike_cannot_share():
    def find(slot: str, name: str) -> type[Part]:
        return Growing if slot == "ffn" else part(slot, name)

    shape = Shape(
        width=8, layers=2, heads=2, kv_heads=2, head_width=4, inner=16, vocab=9, context=8
    )
    sites = [Site(shape=shape, layer=layer, attend=print) for layer in range(2)]
    first, second = (DecoderLayer(BlockSpec(), site, find) for site in sites)
    with pytest.raises(UserError, match="cannot share their ffn: the part differs from layer"):
        second.borrow(first)
