"""A block is in the theory only where it is the sum that the theory speaks of."""

import pytest
import torch

from layerlab.errors import NotApplicable
from layerlab.model.build import build
from layerlab.studies.support.passages import for_each_layer
from layerlab.studies.support.theory_block import theory_of
from tests.families.examination import subject
from tests.families.recipe import build as family

SMALL = {"width": 32, "layers": 2, "heads": 4, "vocab": 64, "context": 64, "seed": 0}


def blocks(model):
    found, whole = [], subject(model.eval())

    def read(layer):
        if layer.block is not None:
            found.append(theory_of(layer, whole))

    for_each_layer(whole, torch.arange(3, 27)[None], read)
    return found


def adds_up(model):
    """Tell of each block whether its parts are known, and whether they make one of the theory."""
    found = blocks(model)
    assert all(one.attention is not None and one.feedforward is not None for one in found)
    return [_is_block(one) for one in found]


def _is_block(found):
    try:
        return found.block() is not None
    except NotApplicable as error:
        assert "no sum of the stream" in str(error)
        return False


def test_a_norm_behind_a_sublayer_is_no_part_of_the_theory():
    assert all(adds_up(build("llama", **SMALL)))
    assert not any(adds_up(build("peri-ln", **SMALL)))


@pytest.mark.parametrize("multiplier", [1.0, 0.25])
def test_a_scaled_branch_is_no_part_of_the_theory(multiplier):
    model = family("granite")
    for layer in model.model.layers:
        layer.residual_multiplier = multiplier
    assert adds_up(model) == [multiplier == 1] * len(model.model.layers)


def test_a_part_that_gives_nothing_is_no_unknown_one():
    model = build("llama", **SMALL)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ffn" in name and "norm" not in name:
                parameter.zero_()
    told = {one.refused["feedforward"] for one in blocks(model)}
    assert told == {"all that its feedforward gives is 0, which has no relative error"}
