"""What holds of every variant that carries tensors from layer to layer, options included."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from layerlab.model.cost.cost import account
from layerlab.model.modeling import LabForCausalLM
from tests.model.small import SIZES, TIGHT, shaken, small, tokens

CASES: list[tuple[str, dict[str, Any]]] = [
    *((f"history-{method}", {}) for method in range(1, 8)),
    ("history-5", {"first_layer": "zero", "divide": True}),
    ("history-7", {"placement": "post"}),
    ("denseformer", {"dilation": 2}),
    ("denseformer", {"period": 2}),
    ("attention-residuals", {"values": "normed", "scale": "inverse-sqrt"}),
    ("attention-residuals-block", {"blocks": 2}),
    ("value-residual", {}),
    ("value-residual", {"form": "learned"}),
    ("value-residual", {"form": "shared"}),
]


def gradients(model: LabForCausalLM, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize(("name", "options"), CASES)
def test_checkpointing_gives_equal_gradients(name: str, options: dict[str, Any]) -> None:
    model = shaken(small(name, **options)).train()
    ids = tokens()
    plain = gradients(model, ids)
    runs: list[int] = []
    for layer in model.model.layers:
        layer.attention.register_forward_pre_hook(lambda *_: runs.append(1))
    for reentrant in (False, True):
        runs.clear()
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        again = gradients(model, ids)
        assert len(runs) == 2 * SIZES["layers"], "every layer runs again in the backward pass"
        assert plain.keys() == again.keys() == dict(model.named_parameters()).keys()
        for key, one in plain.items():
            torch.testing.assert_close(again[key], one, rtol=0, atol=TIGHT)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_token_by_token_with_a_cache_is_the_same(name: str, options: dict[str, Any]) -> None:
    model = shaken(small(name, **options))
    ids = tokens(2, 8)
    cache = DynamicCache(config=model.config)
    steps = [
        model(ids[:, at : at + 1], past_key_values=cache, use_cache=True).logits for at in range(8)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), model(ids).logits, rtol=0, atol=TIGHT)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_account_is_exact_with_options(name: str, options: dict[str, Any]) -> None:
    model = small(name, dtype=torch.float32, **options).train()
    model.set_attn_implementation("eager")
    said = account(model.config.parsed(), model.config.shape())
    assert said.parameters == sum(one.numel() for one in model.parameters())
    ids = tokens(2, SIZES["context"])
    with FlopCounterMode(display=False) as forward:
        logits = model(ids).logits
    assert forward.get_total_flops() == said.forward * ids.numel()
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() == said.backward * ids.numel()
