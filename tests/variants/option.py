"""What must hold for a variant under every setting of its options."""

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from layerlab.model.account import account
from layerlab.model.modeling import LabForCausalLM
from tests.model.small import SIZES, shaken, small, tokens

TIGHT = 1e-11
"""In float64: logits of size 10 after thousands of operations that round by 1e-16 each."""


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=TIGHT)


def holds(name: str, **options: object) -> LabForCausalLM:
    """The shaken model, after every law was checked on it."""
    costs_as_counted(name, **options)
    model = shaken(small(name, **options))
    is_causal(model)
    keeps_a_cache(model)
    ignores_padding(model)
    keeps_documents_apart(model)
    learns_everywhere_and_checkpoints(model)
    stays_finite_in_bfloat16(name, **options)
    return model


def costs_as_counted(name: str, **options: object) -> None:
    model = small(name, dtype=torch.float32, **options).train()
    model.set_attn_implementation("eager")
    said = account(model.config.parsed(), model.config.shape())
    assert said.parameters == sum(one.numel() for one in model.parameters())
    x = tokens(2, SIZES["context"])
    with FlopCounterMode(display=False) as counted:
        model(x)
    assert counted.get_total_flops() == said.forward * x.numel()


def is_causal(model: LabForCausalLM) -> None:
    x = tokens()
    y = x.clone()
    y[:, 12:] = (y[:, 12:] + 1) % SIZES["vocab"]
    one, other = model(x).logits, model(y).logits
    close(one[:, :12], other[:, :12])
    assert not torch.allclose(one[:, 12], other[:, 12])


def keeps_a_cache(model: LabForCausalLM) -> None:
    x = tokens()
    cache = DynamicCache(config=model.config)
    # A prompt shorter than a convolution, single tokens, and several at once.
    pieces = x.split([2, 1, 1, 5, 1, 14], dim=1)
    steps = [model(piece, past_key_values=cache, use_cache=True).logits for piece in pieces]
    close(torch.cat(steps, 1), model(x).logits)


def ignores_padding(model: LabForCausalLM) -> None:
    x = tokens(1, 9)
    padded = torch.cat((tokens(1, 5, seed=1), x), dim=1)
    mask = torch.ones_like(padded)
    mask[:, :5] = 0
    close(model(padded, attention_mask=mask).logits[:, 5:], model(x).logits)


def keeps_documents_apart(model: LabForCausalLM) -> None:
    first, second = tokens(1, 7), tokens(1, 11, seed=1)
    packed = torch.cat((first, second), dim=1)
    positions = torch.cat((torch.arange(7), torch.arange(11))).unsqueeze(0)
    found = model(packed, position_ids=positions, use_cache=False).logits
    close(found[:, :7], model(first).logits)
    close(found[:, 7:], model(second).logits)


def learns_everywhere_and_checkpoints(model: LabForCausalLM) -> None:
    x = tokens()
    model.train()
    plain = _gradients(model, x)
    assert [key for key, one in plain.items() if one is None or not one.abs().sum() > 0] == []
    model.activation_checkpointing_enable()
    kept = _gradients(model, x)
    model.activation_checkpointing_disable()
    model.eval()
    assert all(torch.equal(plain[key], kept[key]) for key in plain)


def stays_finite_in_bfloat16(name: str, **options: object) -> None:
    model = small(name, dtype=torch.bfloat16, **options).train()
    loss = model(tokens(), labels=tokens()).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(one.grad).all() for one in model.parameters())


def _gradients(model: LabForCausalLM, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x, labels=x, use_cache=False).loss.backward()
    return {key: one.grad.clone() for key, one in model.named_parameters() if one.grad is not None}
