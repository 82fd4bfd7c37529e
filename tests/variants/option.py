"""What must hold for a variant under every setting of its options."""

import torch
from torch import Tensor

from layerlab.model.build import build
from layerlab.model.laws import LAWS, SIZES, TIGHT
from layerlab.model.modeling import LabForCausalLM
from tests.model.small import shaken, small, tokens


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=TIGHT)


def holds(name: str, **options: object) -> LabForCausalLM:
    """The shaken model, after every law was checked on it."""
    lawful(name, **options)
    model = shaken(small(name, **options))
    ignores_padding(model)
    keeps_documents_apart(model)
    checkpoints(model)
    stays_finite_in_bfloat16(name, **options)
    return model


def lawful(name: str, **options: object) -> None:
    """The laws that the package itself tries."""
    sizes = {**SIZES, **options}
    said = {law: speaks(build(name, **sizes)) for law, speaks in LAWS.items()}
    assert {law: fault for law, fault in said.items() if fault} == {}


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


def checkpoints(model: LabForCausalLM) -> None:
    x = tokens()
    model.train()
    plain = _gradients(model, x)
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
