"""Layers that share attention and feed-forward, and what stays their own."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import DynamicCache

from layerlab import UserError
from layerlab.blocks.convolution import CausalConvolution
from layerlab.blocks.flow import Flow
from layerlab.blocks.layer import Layer
from layerlab.blocks.part import Part
from layerlab.blocks.shape import Shape, Site
from layerlab.blocks.spec import BlockSpec, Choice, Spec
from layerlab.blocks.start import normal
from layerlab.model.account import account
from layerlab.model.build import assemble
from layerlab.model.modeling import LabForCausalLM
from layerlab.variants import inventory
from layerlab.variants.inventory import part
from tests.model.small import SIZES, shaken, small, tokens


def unshared(model: LabForCausalLM) -> LabForCausalLM:
    """A model of the same function in which every layer has its own copy."""
    plain = small("llama")
    plain.load_state_dict(model.state_dict())
    return plain


def test_layers_share_attention_and_feed_forward_and_nothing_else() -> None:
    first, *others = small("llama", sharing="blocks").model.layers
    for layer in others:
        assert layer.attention is first.attention and layer.ffn is first.ffn
        own = {id(one) for one in layer.parameters()} - {id(one) for one in first.parameters()}
        norms = [layer.attention_norm.weight, layer.ffn_norm.weight]
        assert own == {id(one) for one in norms}


def test_a_parameter_has_one_name_and_counts_once() -> None:
    model = small("llama", sharing="blocks")
    names = [name for name, _ in model.named_parameters()]
    assert not [name for name in names if "layers.1.attention." in name or "layers.2.ffn." in name]
    assert "model.layers.0.attention.query.weight" in names
    said = account(model.config.parsed(), model.config.shape())
    plain = account(small("llama").config.parsed(), model.config.shape())
    assert said.blocks * SIZES["layers"] == plain.blocks
    assert said.scalars == plain.scalars and said.forward == plain.forward
    assert said.parameters == sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize("cached", [False, True])
def test_sharing_is_the_same_as_equal_layers(cached: bool) -> None:
    model = shaken(small("llama", sharing="blocks"))
    plain, x = unshared(model), tokens()
    cache = DynamicCache(config=model.config) if cached else None
    seen = [model(x[:, :9], past_key_values=cache, use_cache=cached).logits]
    if cached:
        seen.append(model(x[:, 9:], past_key_values=cache, use_cache=True).logits)
        assert cache is not None and len(cache.layers) == SIZES["layers"]
        assert {layer.get_seq_length() for layer in cache.layers} == {x.shape[1]}
    found = torch.cat(seen, 1)
    expected = plain(x[:, : found.shape[1]]).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_the_gradient_is_the_sum_over_the_layers() -> None:
    model = shaken(small("llama", sharing="blocks")).train()
    plain, x = unshared(model).train(), tokens()
    model(x, labels=x).loss.backward()
    plain(x, labels=x).loss.backward()
    for name, shared in model.model.layers[0].attention.named_parameters():
        parts = [layer.attention.get_parameter(name).grad for layer in plain.model.layers]
        torch.testing.assert_close(shared.grad, sum(parts), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("head", ["untied", "tied"])
def test_a_checkpoint_holds_each_parameter_once_and_shares_again(head: str, tmp_path: Path) -> None:
    model = shaken(small("llama", sharing="blocks", head=head, dtype=torch.float32))
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = set(file.keys())
    assert stored == {name for name, _ in model.named_parameters()}
    again, info = LabForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    first, *others = again.model.layers
    assert all(layer.attention is first.attention for layer in others)
    assert [name for name, _ in again.named_parameters()] == [
        n for n, _ in model.named_parameters()
    ]
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == (head == "tied")


def test_an_attention_function_learns_in_which_layer_it_is() -> None:
    model, seen = small("llama", sharing="blocks"), []
    attention = model.model.layers[0].attention
    attend = attention.attend

    def watched(module: nn.Module, *given: Tensor, **options: object) -> object:
        seen.append(module.layer_idx)
        return attend(module, *given, **options)

    attention.attend = watched
    model(tokens())
    model(tokens())
    assert seen == [*range(SIZES["layers"])] * 2


class Stirring(Part):
    """A feed-forward that looks at three tokens."""

    name = "stirring"
    slot = "ffn"

    def __init__(self, width: int, site: Site) -> None:
        super().__init__()
        self.mix = CausalConvolution(width, 3, normal)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return torch.sin(self.mix(x, flow))


def test_a_shared_convolution_keeps_a_past_for_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inventory._ADDED, "here", inventory.Found("here", (Stirring,), ()))
    spec = Spec().with_block(ffn=Choice("stirring")).with_stack(sharing="blocks")
    sizes = small("llama", device="meta").config.shape()
    model, x = shaken(assemble("stirring", spec, sizes).double()), tokens()
    cache = DynamicCache(config=model.config)
    steps = [model(x[:, :5], past_key_values=cache, use_cache=True).logits]
    for at in range(5, x.shape[1]):
        steps.append(model(x[:, at : at + 1], past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(steps, 1), model(x).logits, rtol=0, atol=1e-11)


class Growing(Part):
    """A feed-forward whose width depends on the layer."""

    name = "growing"
    slot = "ffn"

    def __init__(self, width: int, site: Site) -> None:
        super().__init__()
        self.up = nn.Linear(width, width + site.layer)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return self.up(x)[..., : x.shape[-1]]


def test_layers_that_are_not_alike_cannot_share() -> None:
    def find(slot: str, name: str) -> type[Part]:
        return Growing if slot == "ffn" else part(slot, name)

    shape = Shape(
        width=8, layers=2, heads=2, kv_heads=2, head_width=4, inner=16, vocab=9, context=8
    )
    sites = [Site(shape=shape, layer=layer, attend=print) for layer in range(2)]
    first, second = (Layer(BlockSpec(), site, find) for site in sites)
    with pytest.raises(UserError, match="cannot share their ffn: the part differs from layer"):
        second.borrow(first)
