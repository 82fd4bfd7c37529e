"""Which sublayers have the form that a theorem speaks about, found from their data."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from layerlab.measures.support.sublayers import sublayer_forms
from layerlab.measures.support.sublayers.activations import ACTIVATIONS, Elementwise
from layerlab.measures.support.sublayers.sublayer_forms import (
    FeedForward,
    Fit,
    attention_fit,
    is_routed,
    rounding,
    sift_feedforward,
)
from layerlab.observe.tracing.host_steps import run_steps
from layerlab.observe.tracing.records import Layer, Sublayer
from tests.families.recipe import build
from tests.measures.family import built, traced
from tests.support.host_reads import counted


def named(name: str) -> Elementwise:
    return next(activation for activation in ACTIVATIONS if activation.name == name)


def fit_attention(layer: Layer, part: Sublayer | None = None) -> Fit:
    assert layer.attention is not None and layer.weights is not None
    part = part or layer.sublayers["attention"]
    return run_steps(attention_fit(layer.attention, layer.weights, part))


def find_feedforward(block: nn.Module | None, part: Sublayer) -> FeedForward | None:
    assert block is not None
    sifted = run_steps(sift_feedforward(block, part))
    return run_steps(sifted.choose()).form


@pytest.mark.parametrize(
    ("hugging_face", "name"),
    [
        ("gelu_new", "gelu-tanh"),
        ("gelu", "gelu"),
        ("relu", "relu"),
        ("silu", "silu"),
        ("quick_gelu", "quick-gelu"),
        ("tanh", "tanh"),
        ("relu2", "relu-squared"),
    ],
)
def test_activation_is_found_from_what_the_layer_gives(hugging_face, name, tiny):
    model = tiny("gpt2", activation_function=hugging_face, initializer_range=0.5)
    layer = traced(model, range(20))[0]
    found = find_feedforward(layer.block, layer.sublayers["ffn"])
    assert found is not None and found.activation == named(name)


@pytest.mark.parametrize("family", ["gpt2", "openai-gpt", "llama"])
def test_attention_is_computed_again_up_to_rounding(family, tiny):
    for layer in traced(tiny(family), range(20)):
        fit = fit_attention(layer)
        assert fit.holds and fit.gap <= rounding(torch.float32, 64) < 1e-4


def test_a_norm_on_the_values_is_another_form(tiny):
    layer = traced(tiny("llama"), range(20))[0]
    part = layer.sublayers["attention"]
    wrong = replace(part, left=nn.functional.rms_norm(part.left, part.left.shape[1:]))
    assert not fit_attention(layer, wrong).holds


@pytest.mark.parametrize(
    ("family", "maps"),
    [
        ("llama", ("up_proj", "down_proj", "gate_proj")),
        ("phi3", ("gate_up_proj, second half", "down_proj", "gate_up_proj, first half")),
        ("gemma", ("up_proj", "down_proj", "gate_proj")),
    ],
)
def test_a_gated_layer_is_found_with_its_maps_in_their_places(family, maps):
    layer = traced(built(family), range(20))[0]
    found = find_feedforward(layer.block, layer.sublayers["ffn"])
    assert found is not None
    assert [name.removeprefix("mlp.") for name in found.maps] == list(maps)
    assert found.activation == named("gelu-tanh" if family == "gemma" else "silu")


@pytest.mark.parametrize(
    ("family", "activation"), [("llama", "silu"), ("gemma", "gelu-tanh"), ("opt", "relu")]
)
def test_an_activation_is_told_from_others_in_a_coarse_format(family, activation):
    layer = traced(built(family).to(torch.bfloat16), range(20))[0]
    found = find_feedforward(layer.block, layer.sublayers["ffn"])
    assert found is not None and found.activation == named(activation)


def test_an_activation_that_is_none_of_those_known_is_not_taken_for_one_in_a_coarse_format():
    layer = traced(build("apertus").to(torch.bfloat16), range(20))[0]  # xIELU
    assert find_feedforward(layer.block, layer.sublayers["ffn"]) is None


class _Layer(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(32, 128), nn.Linear(128, 32), act
        for one in (self.up, self.down):
            nn.init.normal_(one.weight, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


def find_beside(act: Callable[[Tensor], Tensor], dtype: torch.dtype, large: float) -> str | None:
    """The name of what is found of an activation where one of twenty tokens is so much larger."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        block, entered = _Layer(act).to(dtype), torch.randn(20, 32)
        entered[3] *= large
        left = block(entered.to(dtype))
    found = find_feedforward(block, Sublayer(entered=entered.to(dtype), left=left, branch=None))
    return None if found is None else found.activation.name


@pytest.mark.parametrize("large", [1, 30, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("act", [torch.sin, torch.cos, nn.functional.softsign])
def test_a_large_token_hides_no_other_activation(act, dtype, large):
    assert find_beside(act, dtype, large) is None


@pytest.mark.parametrize("large", [1, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("one", ACTIVATIONS, ids=lambda one: one.name)
def test_every_activation_is_found_beside_a_large_token(one, dtype, large):
    if one.name == "relu-squared" and dtype == torch.float16:
        large = 1  # its squares are beyond float16
    # Those two are off each other by less than a coarse format rounds.
    alike = {"gelu": "gelu-tanh"} if dtype != torch.float32 else {}
    assert find_beside(one.function, dtype, large) == alike.get(one.name, one.name)


def test_what_no_form_gives_has_none():
    layer = traced(built("llama"), range(20))[0]
    part = layer.sublayers["ffn"]
    wrong = replace(part, left=nn.functional.rms_norm(part.left, part.left.shape[1:]))
    assert find_feedforward(layer.block, wrong) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loudest", [0, 30])
def test_the_rows_that_sift_rule_out_nothing_that_all_rows_allow(loudest, dtype, monkeypatch):
    """Of one token that is far larger than all others, activations can hardly be told apart."""
    layer = traced(built("llama"), range(40))[0]
    assert layer.block is not None
    block = layer.block.to(dtype)
    entered = layer.sublayers["ffn"].entered.to(dtype).clone()
    entered[loudest] *= 1000
    with torch.no_grad():
        left = block.mlp(entered)  # type: ignore[operator]
    sublayer = replace(layer.sublayers["ffn"], entered=entered, left=left)
    sifted = find_feedforward(block, sublayer)
    monkeypatch.setattr(sublayer_forms, "FEW", sublayer_forms.ROWS)
    monkeypatch.setattr(sublayer_forms, "SIFTED", float("inf"))
    assert sifted is not None and sifted == find_feedforward(block, sublayer)


def test_forms_are_sifted_side_by_side(tiny):
    """Halves of maps that are twice as wide as the stream make 40 chains; before, 7,562."""
    layer = traced(tiny("llama"), range(20))[0]
    with counted() as counts:
        assert find_feedforward(layer.block, layer.sublayers["ffn"]) is not None
    assert counts.operations.total() <= 620 and counts.reads.total() == 2


@pytest.mark.parametrize(
    ("paths", "mixed"),
    [
        (("mlp.experts.0", "mlp.gate"), True),
        (("moe.router", "moe.input_linear"), True),
        (("self_attention.experts", "mlp.up_proj"), False),
        (("mlp.shared_expert_gate", "mlp.fc"), False),
    ],
)
def test_a_block_with_experts_outside_of_attention_routes(paths, mixed):
    block = nn.Module()
    for path in paths:
        place = block
        for name in path.split("."):
            if name not in dict(place.named_children()):
                place.add_module(name, nn.Module())
            place = place.get_submodule(name)
    assert is_routed(block) == mixed
