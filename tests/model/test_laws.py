"""Laws that hold for every variant there is, at a start that hides nothing."""

import pytest
import torch
from transformers import DynamicCache

from layerlab.variants.inventory import variants
from tests.model.small import SIZES, shaken, small, tokens

NAMES = list(variants())
TIGHT = 1e-11  # float64: thousands of operations of 1e-16 each


@pytest.mark.parametrize("name", NAMES)
def test_a_token_sees_nothing_that_comes_later(name: str) -> None:
    model = shaken(small(name))
    x = tokens()
    y = x.clone()
    y[:, 12:] = (y[:, 12:] + 1) % SIZES["vocab"]
    assert torch.equal(x[:, :12], y[:, :12])
    torch.testing.assert_close(model(x).logits[:, :12], model(y).logits[:, :12], rtol=0, atol=TIGHT)
    assert not torch.allclose(model(x).logits[:, 12:], model(y).logits[:, 12:])


@pytest.mark.parametrize("name", NAMES)
def test_token_by_token_with_a_cache_is_the_same_as_all_at_once(name: str) -> None:
    model = shaken(small(name))
    x = tokens()
    cache = DynamicCache(config=model.config)
    steps = [model(x[:, :7], past_key_values=cache, use_cache=True).logits]
    for at in range(7, x.shape[1]):
        step = model(x[:, at : at + 1], past_key_values=cache, use_cache=True)
        steps.append(step.logits)
    torch.testing.assert_close(torch.cat(steps, 1), model(x).logits, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_reaches_every_parameter(name: str) -> None:
    model = shaken(small(name)).train()
    x = tokens()
    model(x, labels=x).loss.backward()
    missed = [
        key
        for key, one in model.named_parameters()
        if one.grad is None or not one.grad.abs().sum() > 0
    ]
    assert missed == []
