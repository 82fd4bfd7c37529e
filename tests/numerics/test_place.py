"""Where operations are said to happen."""

import pytest
import torch

from layerlab import UserError
from layerlab.numerics.emulate import emulate
from layerlab.numerics.place import Place, matches, patterns
from tests.measures.family import built

IDS = torch.arange(3, 15)[None]


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_attention_has_scores_softmax_and_context(family: str, kind: str) -> None:
    model = built(family)
    model.set_attn_implementation(kind)
    with emulate(model, "bf16", "flat") as run:
        model(IDS)
    inside = {p.operation for p in run.roundings if p.module.endswith(("attn", "attention"))}
    assert {"scores", "softmax", "context"} <= inside


def test_a_module_without_parts_is_one_place_and_a_block_adds() -> None:
    model = built("llama")
    with emulate(model, "bf16") as run:
        model(IDS)
    found = {str(place) for place in run.roundings}
    assert {"model.layers.0:add", "model.layers.1.mlp.down_proj", "model.layers.0.mlp:mul"} <= found
    assert Place("model.layers.0", "add") in run.roundings
    assert run.roundings[Place("model.layers.0", "add")] == 2


def test_backward_passes_are_placed_by_their_forward() -> None:
    model = built("llama")
    with emulate(model, "bf16") as forward:
        model(IDS, labels=IDS)
    with emulate(model, "bf16", backward=True) as both:
        model(IDS, labels=IDS).loss.backward()
    down = Place("model.layers.1.mlp.down_proj")
    # One product forward; backward one for the input and one for the weight.
    assert forward.roundings[down] == 1
    assert both.roundings[down] >= 3
    astray = sum(count for place, count in both.roundings.items() if place.module == "backward")
    assert astray <= 0.1 * both.roundings.total()


def test_names_without_numbers() -> None:
    place = Place("model.layers.12.self_attn.heads.3", "scores")
    assert place.component == "model.layers.*.self_attn.heads.3:scores"
    assert place.layer == 12
    assert Place("lm_head").layer is None
    assert str(Place("", "mul")) == ":mul"


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("model.layers.1", True),
        ("model.layers.*", True),
        ("*.mlp", True),
        ("*.mlp:mul", True),
        ("*:mul", True),
        ("*.mlp:add", False),
        ("model.layers.0", False),
        ("mlp", False),
    ],
)
def test_patterns_name_a_place_or_what_is_around_it(pattern: str, chosen: bool) -> None:
    assert matches(Place("model.layers.1.mlp", "mul"), (pattern,)) is chosen


def test_patterns_are_looked_up() -> None:
    model = built("llama")
    assert patterns(None, model) is None
    assert patterns("*.mlp:mul", model) == ("*.mlp:mul",)
    assert patterns(["lm_head", "model"], model) == ("lm_head", "model")
    with pytest.raises(UserError, match="matches nothing in this model"):
        patterns(["lm_head", "*.attention"], model)
