"""Patterns of places, looked up and matched."""

import pytest

from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.emulation.selection import matches, patterns
from tests.measures.family import built
from tests.support.refused import refuses


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
def test_patterns_name_a_place_or_what_is_around_it(pattern, chosen):
    assert matches(OpSite("model.layers.1.mlp", "mul"), (pattern,)) is chosen


def test_patterns_are_looked_up():
    model = built("llama")
    assert patterns(None, model) is None
    assert patterns("*.mlp:mul", model) == ("*.mlp:mul",)
    assert patterns(["lm_head", "model"], model) == ("lm_head", "model")
    refuses("matches nothing in this model", patterns, ["lm_head", "*.attention"], model)
