"""What carries tensors from layer to layer: as much as its account says, at any depth."""

from typing import Any

import pytest
import torch

from layerlab.model.cost.cost import account
from tests.model.small import SIZES, small, tokens
from tests.variants.option import carried, costs_as_counted

WIDTH = SIZES["width"]
# How many numbers every layer hands on for a token.
STEADY: list[tuple[str, dict[str, Any], int]] = [
    *(("history-1", {"method": method}, min(method, 1) * WIDTH) for method in range(7)),
    ("history-1", {"method": 7}, 2 * WIDTH),
    ("hyper-connections", {}, 4 * WIDTH),
    ("laurel-pa", {"previous": 2}, 2 * WIDTH),
    ("value-residual", {"form": "learned", "kv_heads": 2}, WIDTH // 2),
    ("value-residual", {"form": "shared", "kv_heads": 2}, WIDTH // 2),
]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("denseformer", {}),
    ("denseformer", {"dilation": 2}),
    ("denseformer", {"dilation": 2, "period": 2}),
    ("denseformer", {"period": 5}),
    ("attention-residuals", {}),
    ("attention-residuals-block", {"blocks": 2}),
    ("attention-residuals-block", {"blocks": 3}),
    ("laurel-pa", {"layers": 1, "previous": 5}),
]


@pytest.mark.parametrize(("name", "options", "numbers"), STEADY, ids=str)
def test_what_is_carried_does_not_grow_with_depth(name, options, numbers):
    for layers in (2, 6):
        model = small(name, layers=layers, **options)
        said = account(model.config.parse_spec(), model.config.shape())
        assert carried(model, tokens()) == [numbers] * layers and said.carry == numbers
        assert said.parameters == model.num_parameters()


@pytest.mark.full
def test_blocks_bound_what_is_carried():
    for layers in (12, 24):
        model = small("attention-residuals-block", layers=layers)
        assert max(carried(model, tokens(1, 4))) == 8 * (WIDTH + 1)


@pytest.mark.parametrize(("name", "options"), OTHERS, ids=str)
def test_no_more_is_carried_than_the_account_says(name, options):
    model = small(name, **{"layers": 5, **options})
    said = account(model.config.parse_spec(), model.config.shape())
    assert max(carried(model, tokens())) == said.carry
    assert said.parameters == model.num_parameters()


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
