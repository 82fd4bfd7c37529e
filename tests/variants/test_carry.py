"""Options of what carries tensors from layer to layer; as declared, test_laws.py has them all."""

from typing import Any

import pytest
import torch

from layerlab.model.cost.cost import account
from tests.model.small import shaken, small, tokens
from tests.variants.option import carried, checkpoints, costs_as_counted, lawful

CASES: list[tuple[str, dict[str, Any]]] = [
    ("history-5", {"first_layer": "zero", "divide": True}),
    ("history-7", {"placement": "post"}),
    ("denseformer", {"dilation": 2}),
    ("denseformer", {"period": 2}),
    ("attention-residuals", {"values": "normed", "scale": "inverse-sqrt"}),
    ("attention-residuals-block", {"blocks": 2}),
    ("value-residual", {"form": "learned"}),
    ("value-residual", {"form": "shared"}),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), CASES)
def test_laws_hold(name, options):
    lawful(name, **options)
    checkpoints(shaken(small(name, **options)))


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
