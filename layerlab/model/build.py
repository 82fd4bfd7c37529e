"""`build`: a variant by name, at a size, as a model."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from layerlab import UserError
from layerlab.blocks.part import SLOTS
from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import BlockSpec, Choice, Spec, StackSpec
from layerlab.model.config import LabConfig
from layerlab.model.modeling import LabForCausalLM
from layerlab.model.size import shape
from layerlab.variants.inventory import part, variant


def build(
    name: str,
    *,
    width: int = 256,
    layers: int = 6,
    heads: int = 4,
    vocab: int = 8192,
    context: int = 256,
    seed: int = 0,
    kv_heads: int | None = None,
    head_width: int | None = None,
    inner: int | None = None,
    device: str | None = None,
    **options: Any,
) -> LabForCausalLM:
    """Build a variant.

    Parameters that two variants share are bit-identical under one seed, whatever else they hold.

    Args:
        inner: features of the feed-forward; a multiple of the width that the variant names if left
            out.
        device: "meta" builds without memory.
        options: of the variant's parts (`n=3`), of one slot where several have that option
            (`shortcut={"form": "full"}`), of the block (`placement="post"`) or the stack
            (`head="tied"`).

    Raises:
        UserError: an unknown name or option, or sizes that do not fit.

    Example:
        >>> model = build("llama", width=48, layers=2, heads=4, vocab=64, context=32)
        >>> model.num_parameters()
        61680
    """
    chosen = variant(name)
    sizes = shape(
        width=width,
        layers=layers,
        heads=heads,
        vocab=vocab,
        context=context,
        inner=inner or chosen.inner,
        kv_heads=kv_heads,
        head_width=head_width,
    )
    return assemble(name, with_options(chosen.spec, options), sizes, seed=seed, device=device)


def assemble(
    name: str, spec: Spec, sizes: Shape, *, seed: int = 0, device: str | None = None
) -> LabForCausalLM:
    """A model from a spec and sizes.

    Raises:
        UserError: the spec names a part that is not there, or an option that it does not take.
    """
    with torch.device(device or "cpu"):
        return LabForCausalLM(configuration(name, spec, sizes, seed=seed)).eval()


def configuration(name: str, spec: Spec, sizes: Shape, *, seed: int = 0) -> LabConfig:
    """The configuration that holds a spec and sizes."""
    return LabConfig(
        variant=name,
        spec=spec.to_json(),
        seed=seed,
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_width,
        vocab_size=sizes.vocab,
        max_position_embeddings=sizes.context,
        tie_word_embeddings=spec.stack.head == "tied",
    )


def with_options(spec: Spec, options: Mapping[str, Any]) -> Spec:
    """A spec with what a user set.

    Raises:
        UserError: an option that nothing in the spec has, or that several slots have.
    """
    for name, value in options.items():
        spec = _set(spec, name, value)
    return spec


def _set(spec: Spec, name: str, value: Any) -> Spec:
    slot, _, inner = name.partition(".")
    if slot in SLOTS and (inner or isinstance(value, Mapping)):
        return _fill(spec, slot, {inner: value} if inner else value)
    homes = [slot for slot in SLOTS if name in _options(spec, slot)]
    if len(homes) > 1:
        raise UserError(
            f"{name} is an option of {' and '.join(homes)}; "
            f"type {homes[0]}.{name}=... (in Python: {homes[0]}={{{name!r}: ...}})"
        )
    if homes:
        return _fill(spec, homes[0], {name: value})
    for place, kind in (("block", BlockSpec), ("stack", StackSpec)):
        if name in {one.name for one in fields(kind)} - set(SLOTS):
            changed = replace(getattr(spec, place), **{name: _chosen(name, value)})
            return Spec.from_json(replace(spec, **{place: changed}).to_json())
    known = sorted({one for slot in SLOTS for one in _options(spec, slot)})
    known += [
        one.name for kind in (BlockSpec, StackSpec) for one in fields(kind) if one.name not in SLOTS
    ]
    raise UserError(f"no option is called {name!r} here; known: {', '.join(known)}")


def _chosen(name: str, value: Any) -> Any:
    return Choice(value) if name.endswith("_norm") and isinstance(value, str) else value


def _options(spec: Spec, slot: Any) -> Mapping[str, Any]:
    return part(slot, getattr(spec.block, slot).name).options


def _fill(spec: Spec, slot: Any, options: Mapping[str, Any]) -> Spec:
    choice = getattr(spec.block, slot).with_options(**options)
    part(slot, choice.name).given(choice.given())
    return spec.with_block(**{slot: choice})
