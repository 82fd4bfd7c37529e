"""Where operations are said to happen."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from layerlab.numerics.emulation.emulate import Emulation, emulate
from layerlab.numerics.emulation.op_site import OpSite
from tests.measures.family import built

IDS = torch.arange(3, 15)[None]


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_attention_has_scores_softmax_and_context(family, kind):
    model = built(family)
    model.set_attn_implementation(kind)
    with emulate(model, "bf16", "flat") as run:
        model(IDS)
    inside = {p.operation for p in run.roundings if p.module.endswith(("attn", "attention"))}
    assert {"scores", "softmax", "context"} <= inside


def test_a_module_without_parts_is_one_place_and_a_block_adds():
    model = built("llama")
    with emulate(model, "bf16") as run:
        model(IDS)
    found = {str(place) for place in run.roundings}
    assert {"model.layers.0:add", "model.layers.1.mlp.down_proj", "model.layers.0.mlp:mul"} <= found
    assert OpSite("model.layers.0", "add") in run.roundings
    assert run.roundings[OpSite("model.layers.0", "add")] == 2


def test_backward_passes_are_placed_by_their_forward():
    model = built("llama")
    with emulate(model, "bf16") as forward:
        model(IDS, labels=IDS)
    with emulate(model, "bf16", backward=True) as both:
        model(IDS, labels=IDS).loss.backward()
    down = OpSite("model.layers.1.mlp.down_proj")
    # One product forward; backward one for the input and one for the weight.
    assert forward.roundings[down] == 1
    assert both.roundings[down] >= 3
    astray = sum(count for place, count in both.roundings.items() if place.module == "backward")
    assert astray <= 0.1 * both.roundings.total()


class Experts(nn.Module):
    """Products with one matrix for each expert, and a softmax that is no attention's."""

    def __init__(self, routed: bool) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Linear(8, 8)])
        self.experts = nn.Parameter(torch.randn(3, 8, 8))
        self.routed = routed

    def forward(self, x: Tensor) -> Tensor:
        x = torch.bmm(x, self.experts[:2].transpose(1, 2))
        return x.softmax(dim=-1) if self.routed else x.exp()


class Scan(nn.Module):
    """A state read out: exponentials and products of results, and no softmax anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x.exp(), self.read(x).transpose(1, 2))


class Attention(nn.Module):
    """Weights by a function, by a part, by a fused kernel; more than one attention."""

    def __init__(self, weigh: Callable[..., Tensor]) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.weigh = weigh

    def forward(self, x: Tensor) -> Tensor:
        return self.weigh(torch.bmm(self.query(x), x.transpose(1, 2))) @ x


def normalized(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1)


def operations(run: Emulation) -> set[str]:
    return {place.operation for place in run.roundings}


@pytest.mark.parametrize("module", [Experts(True), Experts(False), Scan()])
def test_a_product_with_parameters_or_without_a_softmax_is_no_attention(module):
    model = nn.Sequential(module)
    for _ in range(2):
        with emulate(model, "bf16", cache="int8") as run:
            kept = model(torch.ones(2, 3, 8))
            kept = model(torch.ones(2, 3, 8))
        assert "product" in operations(run)
        assert not {"scores", "context", "cache"} & operations(run)
    with emulate(model, "bf16") as run:
        assert torch.equal(model(torch.ones(2, 3, 8)), kept)


def test_what_meets_experts_is_an_activation_and_they_are_none():
    model = nn.Sequential(Experts(False))
    with emulate(model, "bf16", activations="int8") as run:
        model(torch.randn(2, 3, 8))
    assert run.roundings[OpSite("0", "factor")] == 1


@pytest.mark.parametrize(
    "weigh",
    [normalized, nn.Softmax(dim=-1), partial(torch.softmax, dim=-1), lambda s: s.softmax(-1)],
)
def test_attention_is_known_by_the_softmax_that_its_code_calls(weigh):
    # Also as the whole model, and in every call.
    for model in (Attention(weigh), nn.Sequential(Attention(weigh))):
        counted = []
        for calls in (1, 2):
            with emulate(model, "bf16") as run:
                for _ in range(calls):
                    model(torch.ones(2, 3, 8))
            counted.append({p: n for p, n in run.roundings.items() if p.operation != "input"})
            assert {"scores", "context"} <= operations(run)
        once, twice = ({p.operation: n for p, n in count.items()} for count in counted)
        assert twice["scores"] == 2 * once["scores"]
        assert twice["context"] == 2 * once["context"]


def test_names_without_numbers():
    place = OpSite("model.layers.12.self_attn.heads.3", "scores")
    assert place.component == "model.layers.*.self_attn.heads.3:scores"
    assert place.layer == 12
    assert OpSite("lm_head").layer is None
    assert str(OpSite("", "mul")) == ":mul"


@pytest.mark.parametrize("part", ["", "model.layers.1", "model.layers.1.mlp.down_proj"])
def test_a_hook_that_fails_before_a_module_is_entered_is_what_is_told(part):
    model = built("llama")

    def refuse(module: nn.Module, args: object) -> None:
        raise LookupError("the hook's own")

    handle = model.get_submodule(part).register_forward_pre_hook(refuse)
    with pytest.raises(LookupError, match="the hook's own"), emulate(model, "bf16"):
        model(IDS)
    handle.remove()
    with emulate(model, "bf16") as run:
        model(IDS)
    assert OpSite("model.layers.0", "add") in run.roundings
