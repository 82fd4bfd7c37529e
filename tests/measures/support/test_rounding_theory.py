"""A block is in the theory only where it is the sum that the theory speaks of."""

import pytest
import torch

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


def test_a_norm_behind_a_sublayer_is_no_part_of_the_theory():
    assert all(one.block is not None for one in blocks(build("llama", **SMALL)))
    found = blocks(build("peri-ln", **SMALL))
    # Each part is known by itself, and their sum is another one.
    assert all(one.attention is not None and one.feedforward is not None for one in found)
    assert all(one.block is None for one in found)
    assert all("normed before it joins the stream" in one.refused["block"] for one in found)


@pytest.mark.parametrize("multiplier", [1.0, 0.25])
def test_a_scaled_branch_is_no_part_of_the_theory(multiplier):
    model = family("granite")
    for layer in model.model.layers:
        layer.residual_multiplier = multiplier
    assert all((one.block is not None) == (multiplier == 1) for one in blocks(model))
