"""The laws of every variant, for options that no named variant has."""

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from layerlab.model.account import account
from layerlab.model.modeling import LabForCausalLM
from tests.model.small import SIZES, shaken, small, tokens

TIGHT = 1e-11  # float64: thousands of operations of 1e-16 each


def counted(name: str, **changes: object) -> None:
    """Parameters and matrix products are as the formula says."""
    model = small(name, dtype=torch.float32, layers=1, **changes).train()
    model.set_attn_implementation("eager")
    said = account(model.config.parsed(), model.config.shape())
    held = list(model.parameters())
    assert said.parameters == sum(one.numel() for one in held)
    assert said.scalars == sum(one.numel() for one in held if one.dim() == 1)
    assert said.pointwise > 0
    x = tokens(2, SIZES["context"])
    with FlopCounterMode(display=False) as forward:
        logits = model(x).logits
    assert forward.get_total_flops() == said.forward * x.numel()
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() == said.backward * x.numel()


def lawful(name: str, **changes: object) -> None:
    """Causal, the same with a cache, and trainable in every parameter."""
    model = shaken(small(name, layers=2, **changes))
    causal(model)
    cached(model)
    trained(model)


def causal(model: LabForCausalLM) -> None:
    x = tokens()
    y = x.clone()
    y[:, 12:] = (y[:, 12:] + 1) % SIZES["vocab"]
    torch.testing.assert_close(model(x).logits[:, :12], model(y).logits[:, :12], rtol=0, atol=TIGHT)
    assert not torch.allclose(model(x).logits[:, 12:], model(y).logits[:, 12:])


def cached(model: LabForCausalLM) -> None:
    x = tokens()
    cache = DynamicCache(config=model.config)
    steps = [model(x[:, :7], past_key_values=cache, use_cache=True).logits]
    for at in range(7, x.shape[1]):
        steps.append(model(x[:, at : at + 1], past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(steps, 1), model(x).logits, rtol=0, atol=TIGHT)


def trained(model: LabForCausalLM) -> None:
    x = tokens()
    model.train()(x, labels=x).loss.backward()
    missed = [name for name, one in model.named_parameters() if not one.grad.abs().sum() > 0]
    assert missed == []
    model.eval()
