"""What carries tensors from layer to layer, in blocks of one sublayer."""

import pytest
import torch

from layerlab.model.cost.cost import account
from tests.model.small import small, tokens
from tests.variants.option import carried, costs_as_counted


@pytest.mark.parametrize(
    "name", ["history-5", "laurel-pa", "attention-residuals", "attention-residuals-block"]
)
def test_a_layer_without_a_feed_forward_is_one_sublayer(name):
    model = small(name, ffn="none", dtype=torch.float32)
    costs_as_counted(model)
    said = account(model.config.parse_spec(), model.config.shape())
    assert max(carried(model, tokens())) == said.carry


def test_blocks_are_of_the_sublayers_that_are_there():
    layers = small("attention-residuals-block", layers=3, blocks=2, ffn="none").model.layers
    assert [layer.attention_residual.opens for layer in layers] == [True, False, True]
