"""`build`: a variant by name, at a size, as a model."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import Spec
from layerlab.errors import UserError
from layerlab.model.config import LabConfig
from layerlab.model.design import design, seed_of
from layerlab.model.modeling import LabForCausalLM
from layerlab.model.parametrization import Base
from layerlab.system.locks import MODELS
from layerlab.variants.registry import find_needed

# The most shapes of batches, halved ones included, that a layer is compiled for.
SHAPES = 64


def build(
    name: str,
    *,
    width: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    vocab: int | None = None,
    context: int | None = None,
    seed: int = 0,
    kv_heads: int | None = None,
    head_width: int | None = None,
    inner: int | float | None = None,
    preset: str | None = None,
    device: str | None = None,
    **options: Any,
) -> LabForCausalLM:
    """Build a variant.

    Parameters that two variants share are bit-identical under one seed, whatever else they hold.

    Args:
        name: a variant, or a preset, which is a variant at a published shape.
        width: of the model. Sizes that are left out are the preset's, else width 256, 6 layers,
            4 heads, a vocabulary of 8192 and a context of 256.
        kv_heads: heads of keys and values; as many as `heads` if left out.
        head_width: the width over the heads if left out.
        inner: features of the feed-forward, or, as a float, a multiple of the width; the multiple
            that the variant names if left out.
        preset: whose sizes to take for another variant.
        device: "meta" builds without memory.
        options: of the variant's parts (`n=3`), of one slot where several have that option
            (`shortcut={"form": "full"}`, `**{"shortcut.form": "full"}`), another part for a slot
            (`norm="layer"`), of the block (`placement="post"`) or the stack (`head="tied"`).

    Raises:
        UserError: an unknown name or option, or sizes that do not fit.

    Example:
        >>> model = build("llama", width=48, layers=2, heads=4, vocab=64, context=32)
        >>> model.num_parameters()
        61680
        >>> large = build("llama-7b", device="meta")
        >>> large.num_parameters()
        6738415616
    """
    sizes = {
        "width": width,
        "layers": layers,
        "heads": heads,
        "vocab": vocab,
        "context": context,
        "inner": inner,
        "kv_heads": kv_heads,
        "head_width": head_width,
    }
    found = design(name, preset=preset, sizes=sizes, options=options)
    return assemble(found.variant.name, found.spec, found.shape, seed=seed, device=device)


def assemble(
    name: str,
    spec: Spec,
    sizes: Shape,
    *,
    seed: int = 0,
    device: str | None = None,
    base: Base | None = None,
) -> LabForCausalLM:
    """Return a model from a spec and sizes.

    Args:
        base: from which muP scales it; None: the standard parametrization.

    Raises:
        UserError: the spec names a part that is not there, or an option that it does not take, or
            there is no such device.
    """
    with MODELS, _place(device):
        return LabForCausalLM(configuration(name, spec, sizes, seed=seed, base=base)).eval()


def configuration(
    name: str, spec: Spec, sizes: Shape, *, seed: int = 0, base: Base | None = None
) -> LabConfig:
    """Return the configuration that holds a spec and sizes.

    Raises:
        UserError: the seed is no whole number, or the spec names a part that is not there.
    """
    tied = spec.stack.head == "tied"
    return LabConfig(
        variant=name,
        spec=spec.to_dict(),
        files=find_needed(spec),
        seed=seed_of(seed),
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_width,
        vocab_size=sizes.vocab,
        max_position_embeddings=sizes.context,
        tie_word_embeddings=tied,
        mup_base_width=None if base is None else base.width,
        mup_base_head_width=None if base is None else base.head_width,
        logit_factor=base.width / sizes.width if base is not None and tied else 1.0,
    )


def _place(device: str | None) -> torch.device:
    try:
        torch_device = torch.device(device or "cpu")
        if torch_device.type != "meta":
            torch.empty(0, device=torch_device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"there is no device {device!r} to build on; expected cpu, cuda, mps or meta: "
            'type device="cpu"'
        ) from error
    return torch_device


def compile_layers(layers: Collection[nn.Module], **settings: Any) -> None:
    """Compile layers one by one: as one graph each, in every shape of a batch.

    Args:
        settings: further ones of torch.compile.
    """
    # Some variants make a graph for each layer, and all models of a process count as one.
    dynamo, graphs = torch._dynamo.config, SHAPES * len(layers)
    dynamo.recompile_limit += graphs
    dynamo.accumulated_recompile_limit += graphs
    # Else it would train uncompiled beyond its limits, without a word.
    dynamo.fail_on_recompile_limit_hit = True
    # As uncompiled, what is kept exact on the way there is so on the way back.
    torch._functorch.config.backward_pass_autocast = "off"
    for layer in layers:
        layer.compile(dynamic=False, **settings)
