"""Query, key, value and output weights of one attention layer, cut into heads.

Families store them apart, fused in blocks, or interleaved per head, transposed or not; everything
that reads weights gets them from here in one form. A layout that is not recognized is refused with
the reason, never guessed. `verify_weights` checks the result against what a forward pass showed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.effective_weights import effective_weights
from layerlab.observe.architecture.norms import Norm, front_norm, norm
from layerlab.observe.architecture.qkv_layouts import KEY_NORM, QUERY_NORM, Layout, layout
from layerlab.observe.architecture.structure import AttentionPart
from layerlab.shapes import HeadVector
from layerlab.system.offload import parameter


@dataclass(frozen=True, kw_only=True)
class HeadWeights:
    """Weights of one attention layer: q_h = query[h] z + query_bias[h], z the normed stream.

    Attributes:
        layer: the block that it lies in, the first is 0.
        query_bias: and the other biases: None where the family has none.
        output: the slice of the output projection that reads head h: sum_h output[h] (A_h v_h).
        gain: weight of the norm in front (Gemma's 1 + w is already added), or None: no such norm.
        shift: its bias, or None.
        norm: "layer", "rms" or None.
        rotary: factor m by which RoPE stretches q and k (YaRN, longrope), 1 for plain RoPE, None
            without RoPE.
        query_gain: gain of a norm on q (QK-norm), or None: of length head_width where each head is
            normed alone, head * head_width where all are normed together, one row per head where
            each head has its own gain. `query_shift`, `key_gain`, `key_shift` alike.
        query_norm: "layer", "rms" or None: the kind of QK-norm.
        clip: q, k and v are clamped to [-clip, clip], or None.
        window: the last keys a row may use, or None.
        context: the longest sequence the model was configured for.
        refused: what has no reading ("query", "value", ...) and why, in one line.
        matrices: every weight matrix of the block, by its name inside the block.
        attained: largest |q_i . k_j| / (|z_i| |z_j|) of each head where a trace was seen.
    """

    layer: int
    name: str
    scaling: float
    query: Float[Tensor, "head head_width width"] | None = None
    key: Float[Tensor, "kv_head head_width width"] | None = None
    value: Float[Tensor, "kv_head value_width width"] | None = None
    output: Float[Tensor, "head written value_width"] | None = None
    query_bias: Float[Tensor, "head head_width"] | None = None
    key_bias: Float[Tensor, "kv_head head_width"] | None = None
    value_bias: Float[Tensor, "kv_head value_width"] | None = None
    output_bias: Float[Tensor, " written"] | None = None
    gain: Float[Tensor, " width"] | None = None
    shift: Float[Tensor, " width"] | None = None
    norm: str | None = None
    rotary: float | None = None
    query_gain: Tensor | None = None
    key_gain: Tensor | None = None
    query_shift: Tensor | None = None
    key_shift: Tensor | None = None
    query_norm: str | None = None
    softcap: float | None = None
    clip: float | None = None
    window: int | None = None
    context: int | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    matrices: Mapping[str, Tensor] = field(default_factory=dict)
    attained: HeadVector | None = None


def project(
    block: nn.Module,
    part: AttentionPart,
    *,
    config: Any,
    front: nn.Module | None = None,
    rotary: nn.Module | None = None,
) -> HeadWeights:
    """Cut one attention module into heads, with the norm in front and the factors on its scores.

    Args:
        block: the block of the stack that holds the attention.
        part: the attention, whose module multiplies queries and keys.
        config: of the text model.
        front: the norm that attention's input comes from where the block has none in front of
            attention: GPT-1 reads the last norm of the block before.
        rotary: the model's rotary embedding; by default its factor is worked out from `config`.
    """
    attention = part.module
    found = layout(block, attention, config)
    refused = dict(found.refused)
    before = _front(block, attention, front, found)
    reason = _uneven(attention, config)
    if reason:
        refused["scores"] = reason
    norms = _query_norms(attention, found, refused)
    query, query_bias = _rows(found.query, found.head_width)
    key, key_bias = _rows(found.key, found.head_width)
    value, value_bias = _rows(found.value, _value_width(found))
    output, output_bias = _output(found)
    return HeadWeights(
        layer=part.block,
        name=part.name,
        scaling=_scaling(attention, found.head_width),
        query=query,
        key=key,
        value=value,
        output=output,
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=output_bias,
        gain=None if before is None else before.gain,
        shift=None if before is None else before.shift,
        norm=None if before is None else before.kind,
        rotary=_rotary(attention, config, part.block, rotary),
        softcap=_softcap(attention, config),
        clip=_clip(attention),
        window=_window(attention, config),
        context=_context(config),
        refused=refused,
        matrices=matrices(block),
        **norms,
    )


def matrices(block: nn.Module) -> dict[str, Tensor]:
    """Return every weight matrix of a block by its name.

    Stacked experts stay one array of three axes. There are none where one of them is not known.
    """
    found = {}
    for name, get in effective_weights(block).items():
        try:
            tensor = get()
        except NotApplicable:  # an adapter that is no plain LoRA
            return {}
        if tensor is None or tensor.device.type == "meta":
            continue
        if tensor.ndim in (2, 3) and tensor.is_floating_point():
            found[name] = tensor
    return found


def _rows(part: Any, width: int) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if part is None else part.rows(width)


def _value_width(found: Layout) -> int:
    if found.value is None or found.key is None:
        return found.head_width
    return len(found.value.weight) * found.head_width // len(found.key.weight)


def _output(found: Layout) -> tuple[Tensor | None, Tensor | None]:
    if found.output is None:
        return None, None
    weight = found.output.weight.unflatten(1, (-1, _value_width(found))).transpose(0, 1)
    return weight, found.output.bias


def _front(
    block: nn.Module, attention: nn.Module, front: nn.Module | None, found: Layout
) -> Norm | None:
    module = front_norm(block, attention)
    module = front if module is None else module
    if module is None or found.query is None:
        return None
    return norm(module, found.query.weight.shape[1])


def _query_norms(attention: nn.Module, found: Layout, refused: dict[str, str]) -> dict[str, Any]:
    """Return the gain and shift of the norms on q and k.

    A norm of unknown form leaves no bound on scores.
    """
    norms: dict[str, Any] = {}
    for part, names in (("query", QUERY_NORM), ("key", KEY_NORM)):
        modules = (getattr(attention, name, None) for name in names)
        module = next((m for m in modules if isinstance(m, nn.Module)), None)
        if module is None or getattr(found, part) is None:
            continue
        read = _head_norm(module, found.head_width)
        if read is None:
            refused["scores"] = refused[part] = f"the norm on the {part} is not one that is known"
            continue
        norms |= {f"{part}_gain": read.gain, f"{part}_shift": read.shift, "query_norm": read.kind}
    return norms


def _head_norm(module: nn.Module, width: int) -> Norm | None:
    """Return a norm on heads: one gain for all, one row per head, or over all heads at once."""
    parts = getattr(module, "norms", None)
    if isinstance(parts, nn.ModuleList):
        each = [read for part in parts if (read := norm(part, width)) is not None]
        if len(each) < len(parts):
            return None
        shifts = [torch.zeros(width) if read.shift is None else read.shift for read in each]
        shift = torch.stack(shifts) if any(read.shift is not None for read in each) else None
        return Norm(kind=each[0].kind, gain=torch.stack([x.gain for x in each]), shift=shift)
    weight = parameter(module, "weight")
    return norm(module, *((width,) if weight is None else tuple(weight.shape)))


# What scales the scores


def _scaling(attention: nn.Module, width: int) -> float:
    """Return the module's own factor on q . k; some families store the factor, some its inverse."""
    for name in ("scaling", "softmax_scale", "inv_norm_factor", "scale"):
        value = getattr(attention, name, None)
        # A configuration may write a whole number; the first GPT says only whether there is one.
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    for name in ("scale_attn", "norm_factor"):
        inverse: Any = getattr(attention, name, None)
        if isinstance(inverse, int | float | Tensor) and not isinstance(inverse, bool):
            return 1 / float(inverse)
    if (
        "GPTNeoSelfAttention" in type(attention).__name__
        or getattr(attention, "scale", None) is False
    ):
        return 1.0
    return 1 / math.sqrt(width) if width else 1.0  # no width: the cut was refused


def _softcap(attention: nn.Module, config: Any) -> float | None:
    value = getattr(attention, "attn_logit_softcapping", None)
    if value is None:
        value = getattr(config, "attn_logit_softcapping", None)
    return None if value is None else float(value)


def _clip(attention: nn.Module) -> float | None:
    value = getattr(attention, "clip_qkv", None)
    if value is None:
        value = getattr(getattr(attention, "config", None), "clip_qkv", None)
    return float(value) if value else None


def _window(attention: nn.Module, config: Any) -> int | None:
    if getattr(attention, "attention_type", None) == "local":
        return int(config.window_size)
    kinds = getattr(config, "layer_types", None)
    index = getattr(attention, "layer_idx", None)
    if kinds and index is not None and kinds[index] == "full_attention":
        return None
    if hasattr(attention, "sliding_window"):
        own = attention.sliding_window
        return own if isinstance(own, int) else None
    if kinds and index is not None and kinds[index] != "sliding_attention":
        return None
    value = getattr(config, "sliding_window", None)
    return value if isinstance(value, int) else None


def _context(config: Any) -> int | None:
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 1:
            return value
    return None


BIASED = ("BloomAttention", "MptAttention", "CpmAntAttention", "DogeAttention")
"""Classes that always add ALiBi, or another bias, to the scores."""

STRETCHED = "queries are stretched with their position"
SCALED = "a scale of each channel stands between the norm on the query and the scores"


def _uneven(attention: nn.Module, config: Any) -> str | None:
    """Return why the weights alone give no bound on the scores; None where they do."""
    own = getattr(config, "attn_config", None)
    if getattr(config, "alibi", False) or getattr(own, "alibi", False):
        return "a bias is added to every score"
    if type(attention).__name__ in BIASED:
        return "a bias is added to every score"
    roped = getattr(attention, "use_rope", True)
    if getattr(attention, "attn_temperature_tuning", False) and not roped:
        return STRETCHED
    if getattr(config, "attention_chunk_size", None):
        return "rows see chunks of the sequence"
    if getattr(attention, "indexer", None) is not None:
        return "each row chooses its keys"
    parameters = getattr(config, "rope_parameters", None) or {}
    if "llama_4_scaling_beta" in parameters:
        return STRETCHED
    return SCALED if hasattr(attention, "sqk") else None


def _rotary(
    attention: nn.Module, config: Any, layer: int, rotary: nn.Module | None
) -> float | None:
    """Return the factor on the cosines and sines of RoPE; None without RoPE."""
    parameters = getattr(config, "rope_parameters", None)
    own = any(hasattr(attention, name) for name in ("rotary_dim", "embed_positions", "rotary_emb"))
    if getattr(config, "alibi", False) or not (parameters or own):
        return None
    if getattr(attention, "use_rope", True) in (False, 0):
        return None
    kinds = getattr(config, "layer_types", None) or ()
    index = getattr(attention, "layer_idx", layer)
    kind = kinds[index] if index is not None and index < len(kinds) else None
    module: Any = rotary if rotary is not None else getattr(attention, "rotary_emb", None)
    for attribute in (f"{kind}_attention_scaling", "attention_scaling"):
        if isinstance(getattr(module, attribute, None), int | float):
            return float(getattr(module, attribute))
    return _configure(config, parameters or {}, kind)


def _configure(config: Any, parameters: Mapping[str, Any], kind: str | None) -> float:
    nested = kind is not None and isinstance(parameters.get(kind), Mapping)
    chosen = parameters[kind] if nested and kind is not None else parameters
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    start = ROPE_INIT_FUNCTIONS.get(chosen.get("rope_type", "default"))
    if start is None:
        return 1.0
    return float(start(config, None, **({"layer_type": kind} if nested else {}))[1])
