"""What must hold for a variant under every setting of its options."""

from typing import Any

import torch
from torch import Tensor

from layerlab.blocks.spec import Choice
from layerlab.model.build import assemble, build
from layerlab.model.laws import LAWS, SIZES, TIGHT, operations, parameters
from layerlab.model.modeling import LabForCausalLM
from layerlab.variants.registry import variant
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
    """Check that gradients are the same to the bit, and that every layer really runs again."""
    x, calls = tokens(), []
    model.train()
    plain = gradients(model, x)
    assert plain.keys() == dict(model.named_parameters()).keys()
    for attention in {layer.attention for layer in model.model.layers}:  # some share it
        attention.register_forward_pre_hook(lambda *_: calls.append(1))
    # A reentrant one sees no tensor that travels inside of another thing.
    for reentrant in (False, True):
        calls.clear()
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        again = gradients(model, x)
        assert len(calls) == 2 * len(model.model.layers), "every layer runs again"
        assert [key for key in plain if not torch.equal(plain[key], again[key])] == []
    model.activation_checkpointing_disable()
    model.eval()


def stays_finite_in_bfloat16(name: str, **options: object) -> None:
    model = small(name, dtype=torch.bfloat16, **options).train()
    loss = model(tokens(), labels=tokens()).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(one.grad).all() for one in model.parameters())


def gradients(model: LabForCausalLM, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x, labels=x, use_cache=False).loss.backward()
    return {key: one.grad.clone() for key, one in model.named_parameters() if one.grad is not None}


def costs_as_counted(model: LabForCausalLM) -> None:
    """Check that parameters, and FLOPs forward and backward, equal their formulas."""
    assert parameters(model) == "" == operations(model.train())


def carried(model: LabForCausalLM, ids: Tensor) -> list[int]:
    """Numbers per token in the carry after each layer."""
    found: list[int] = []

    def count(layer: Any, given: Any, output: Any) -> None:
        found.append(sum(one.numel() for one in output[2:]) // ids.numel())

    handles = [layer.register_forward_hook(count) for layer in model.model.layers]
    model(ids)
    for handle in handles:
        handle.remove()
    return found


def with_residual(
    name: str, layers: int = 4, placement: str = "pre", **options: Any
) -> LabForCausalLM:
    """A model with a residual part whose norms keep float64, with noise on every parameter."""
    plain = build("llama", **{**SIZES, "layers": layers})
    spec = variant("llama").spec.with_block(
        residual=Choice(name, **options), norm=Choice("layer"), placement=placement
    )
    spec = spec.with_stack(final_norm=Choice("layer"))
    return shaken(assemble("llama", spec, plain.config.shape()).to(torch.float64)).eval()
