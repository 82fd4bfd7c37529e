"""Layouts of query, key, value and output weights, by family.

Separate projections are known by their names and cut by their shapes. A fused projection cannot be
cut by its shape (blocks and interleaved heads look the same), so every class that has one is in
the table below; a class that is not there is refused, never guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from layerlab.observe.architecture.effective_weights import linear_map

QUERY = ("q_proj", "query", "query_proj", "project_q", "Wq", "q_lin")
KEY = ("k_proj", "key", "key_proj", "project_k", "Wk", "k_lin")
VALUE = ("v_proj", "value", "value_proj", "project_v", "Wv", "v_lin")
OUTPUT = ("o_proj", "out_proj", "dense", "c_proj", "attention_out", "out_lin", "Wo", "output")
FUSED = ("c_attn", "query_key_value", "qkv_proj", "Wqkv", "qkv", "W_pack")
WIDTHS = ("head_dim", "head_size", "attention_head_size", "size_per_head", "dim_head", "head_width")
LATENT = ("kv_a_proj_with_mqa", "kv_a_proj", "kv_b_proj", "q_a_proj")
QUERY_NORM = ("q_norm", "query_norm", "q_layernorm", "query_layernorm", "qk_norm")
KEY_NORM = ("k_norm", "key_norm", "k_layernorm", "key_layernorm", "qk_norm")
AFTER = ("gate", "gate_proj", "g_proj", "attn_sub_norm", "groupnorm", "v_norm")
"""Modules that change what a head gives, and leave query and key as they are."""
IDLE = ("rotary_emb", "rotary_fn", "rotary", "dt_proj", "indexer", "softmax")
"""Modules of an attention layer that touch none of its four projections."""


@dataclass(frozen=True, kw_only=True)
class Affine:
    """y = weight x + bias, whichever way the family stores it."""

    weight: Float[Tensor, "out width"]
    bias: Float[Tensor, " out"] | None

    def rows(self, head_width: int) -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias cut into heads of `head_width` consecutive outputs."""
        weight = self.weight.unflatten(0, (-1, head_width))
        return weight, None if self.bias is None else self.bias.unflatten(0, (-1, head_width))

    def take(self, index: Tensor) -> "Affine":
        """Return some of the outputs."""
        return Affine(
            weight=self.weight[index], bias=None if self.bias is None else self.bias[index]
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The four projections of one attention layer, or why one of them has no per-head weights."""

    query: Affine | None = None
    key: Affine | None = None
    value: Affine | None = None
    output: Affine | None = None
    head_width: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


def layout(block: nn.Module, attention: nn.Module, config: Any) -> Layout:
    """Return the projections of an attention module, each with heads of consecutive outputs."""
    children = dict(attention.named_children())
    latent = [name for name in LATENT if name in children]
    if latent:
        reason = (
            f"query and key are compressed with a norm between ({latent[0]}): no static weights"
        )
        return _none(reason)
    stranger = _stranger(attention, children)
    if stranger:
        return _none(f"{type(attention).__name__} has a part of unknown effect: {stranger}")
    fused = _pick(children, FUSED)
    width = _head_width(attention, config)
    if fused is not None:
        return _fused_layout(block, attention, config, fused, width)
    return _separate(block, attention, width)


def _none(reason: str) -> Layout:
    return Layout(refused=dict.fromkeys(("query", "key", "value", "output"), reason))


def _stranger(attention: nn.Module, children: Mapping[str, nn.Module]) -> str | None:
    """Return the first child with weights whose name is in no list above."""
    known = {*QUERY, *KEY, *VALUE, *OUTPUT, *FUSED, *QUERY_NORM, *KEY_NORM, *AFTER, *IDLE}
    for name, child in children.items():
        if name not in known and next(child.parameters(), None) is not None:
            return name
    return None


def _pick(children: Mapping[str, nn.Module], names: tuple[str, ...]) -> nn.Module | None:
    return next((children[name] for name in names if name in children), None)


def _head_width(attention: nn.Module, config: Any) -> int:
    for owner in (attention, config):
        for name in WIDTHS:
            value = getattr(owner, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return int(config.hidden_size) // int(config.num_attention_heads)


def affine(module: nn.Module | None) -> Affine | None:
    """Return the weight and bias of a linear module.

    None for anything else, quantized weights included.
    """
    module = getattr(module, "linear", module)
    found = None if module is None else linear_map(module)
    return None if found is None else Affine(weight=found[0], bias=found[1])


# Separate projections


def _separate(block: nn.Module, attention: nn.Module, width: int) -> Layout:
    children = dict(attention.named_children())
    parts = {
        part: affine(_pick(children, names))
        for part, names in (("query", QUERY), ("key", KEY), ("value", VALUE))
    }
    missing = f"{type(attention).__name__} has no projection of its own for it"
    refused = {part: missing for part, found in parts.items() if found is None}
    query, key, value = parts["query"], parts["key"], parts["value"]
    for part, found in (("query", query), ("key", key)):
        if found is not None and found.weight.shape[0] % width:
            return _none(f"{part} weights of {len(found.weight)} rows do not hold heads of {width}")
    output = affine(output_projection(block, attention))
    if query is not None and key is not None and value is not None and output is not None:
        heads = output.weight.shape[1] * len(key.weight) // (len(value.weight) * width)
        if len(query.weight) == 2 * heads * width:
            # Gated attention stores [query | gate] per head.
            query = query.take(
                torch.arange(len(query.weight)).view(heads, 2, width)[:, 0].flatten()
            )
            refused["output"] = "a gate stands between the heads and it"
        elif len(query.weight) != heads * width:
            refused["query"] = f"{len(query.weight)} rows of query weights for {heads} heads"
    return _finish(attention, Layout(
        query=query, key=key, value=value, output=output, head_width=width, refused=refused
    ))  # fmt: skip


def output_projection(block: nn.Module, attention: nn.Module) -> nn.Module | None:
    """Return the module that reads the heads side by side, None where it is not found.

    BERT keeps it beside the attention module, in `output.dense`.
    """
    own = _pick(dict(attention.named_children()), OUTPUT)
    if own is not None:
        return own
    for module in block.modules():
        if attention in module.children():
            return getattr(getattr(module, "output", None), "dense", None)
    return None


def _finish(attention: nn.Module, found: Layout) -> Layout:
    """Refuse the value or the output where another module stands behind it or does not fit."""
    refused = dict(found.refused)
    for name, child in attention.named_children():
        if name in AFTER and child is not None:
            part = "value" if name == "v_norm" else "output"
            refused[part] = f"{name} stands between the heads and it"
    query = found.query
    if query is not None and found.output is not None and "output" not in refused:
        values = 0 if found.value is None else len(found.value.weight)
        keys = 1 if found.key is None else len(found.key.weight)
        if found.output.weight.shape[1] * keys != values * len(query.weight):
            refused["output"] = "its inputs are not the values of the heads"
    if found.output is None:
        refused.setdefault("output", "no output projection was found")
    factor = getattr(attention, "v_scale", 1.0)  # a tensor is what a quantized cache is scaled by
    if not isinstance(factor, Tensor) and factor != 1.0:
        refused["value"] = "values are scaled after their projection"
    return Layout(
        query=None if "query" in refused else query,
        key=None if "key" in refused else found.key,
        value=None if "value" in refused else found.value,
        output=None if "output" in refused else found.output,
        head_width=found.head_width,
        refused=refused,
    )


# Fused projections: which rows are query, key and value


def _blocks(heads: int, kv_heads: int, width: int, attention: nn.Module) -> tuple[Tensor, ...]:
    """Return the rows of the layout [queries | keys | values], each head after head."""
    sizes = (heads * width, kv_heads * width, kv_heads * width)
    return torch.arange(sum(sizes)).split(sizes)


def _interleave(heads: int, kv_heads: int, width: int, attention: nn.Module) -> tuple[Tensor, ...]:
    """Return the rows of the layout that repeats [query | key | value] for each head."""
    rows = torch.arange(heads * 3 * width).view(heads, 3, width)
    return tuple(rows[:, part].flatten() for part in range(3))


def _group(heads: int, kv_heads: int, width: int, attention: nn.Module) -> tuple[Tensor, ...]:
    """Return the rows of the layout [its queries | key | value] for each key-value head."""
    group = heads // kv_heads
    rows = torch.arange(kv_heads * (group + 2) * width).view(kv_heads, group + 2, width)
    return rows[:, :-2].flatten(), rows[:, -2].flatten(), rows[:, -1].flatten()


def _quarters(heads: int, kv_heads: int, width: int, attention: nn.Module) -> tuple[Tensor, ...]:
    """Return the rows of CodeGen, made on four devices: per quarter [queries | values | keys]."""
    rows = torch.arange(3 * heads * width).view(4, 3, -1)
    return rows[:, 0].flatten(), rows[:, 2].flatten(), rows[:, 1].flatten()


def _bigcode(heads: int, kv_heads: int, width: int, attention: nn.Module) -> tuple[Tensor, ...]:
    form = _blocks if getattr(attention, "multi_query", False) else _interleave
    return form(heads, kv_heads, width, attention)


def _falcon(heads: int, kv_heads: int, width: int, attention: nn.Module) -> tuple[Tensor, ...]:
    """Return the rows of Falcon: grouped (40B, 180B), one shared key (7B), interleaved (RW)."""
    if getattr(attention, "new_decoder_architecture", False):
        return _group(heads, kv_heads, width, attention)
    form = _blocks if getattr(attention, "multi_query", False) else _interleave
    return form(heads, kv_heads, width, attention)


Cut = Callable[[int, int, int, nn.Module], tuple[Tensor, ...]]
LAYOUTS: Mapping[str, Cut] = {
    "GPT2Attention": _blocks,
    "openai.Attention": _blocks,
    "GPTBigCodeAttention": _bigcode,
    "GPTNeoXAttention": _interleave,
    "GPTNeoXJapaneseAttention": _interleave,
    "BloomAttention": _interleave,
    "PersimmonAttention": _interleave,
    "FalconAttention": _falcon,
    "FalconFlashAttention2": _falcon,
    "MptAttention": _blocks,
    "DbrxAttention": _blocks,
    "Phi3Attention": _blocks,
    "Phi4MultimodalAttention": _blocks,
    "CodeGenAttention": _quarters,
}
"""Which layout the fused projection of a class has."""


def _fused_layout(
    block: nn.Module, attention: nn.Module, config: Any, module: nn.Module, width: int
) -> Layout:
    kind = type(attention)
    family = kind.__module__.split(".")[-2] if "." in kind.__module__ else ""
    cut = LAYOUTS.get(kind.__name__, LAYOUTS.get(f"{family}.{kind.__name__}"))
    fused = affine(module)
    if cut is None or fused is None or not kind.__module__.startswith("transformers."):
        return _none(f"the layout of the fused query, key and value of {kind.__name__} is unknown")
    output = affine(output_projection(block, attention))
    heads = int(config.num_attention_heads)
    kv_heads = (len(fused.weight) // width - heads) // 2
    rows = cut(heads, kv_heads, width, attention)
    if sum(map(len, rows)) != len(fused.weight):
        return _none(
            f"{kind.__name__} has {len(fused.weight)} fused rows, not {sum(map(len, rows))}"
        )
    query, key, value = (fused.take(part) for part in rows)
    return _finish(attention, Layout(
        query=query, key=key, value=value, output=output, head_width=width
    ))  # fmt: skip
