"""Published families as layerlab's reference blocks: their spec, their sizes, their weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import Choice, Spec
from layerlab.errors import UserError
from layerlab.variants.registry import variant

State = Mapping[str, Tensor]
# transformers' names of activations as ours. All round alike but gelu_pytorch_tanh, which computes
# the same function in another order: its logits are close, not equal.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "relu2": "relu2",
}
LLAMA = {
    ".self_attn.q_proj.": ".attention.query.",
    ".self_attn.k_proj.": ".attention.key.",
    ".self_attn.v_proj.": ".attention.value.",
    ".self_attn.o_proj.": ".attention.output.",
    ".self_attn.q_norm.": ".attention.query_norm.",
    ".self_attn.k_norm.": ".attention.key_norm.",
    ".mlp.gate_proj.": ".ffn.gate.",
    ".mlp.up_proj.": ".ffn.up.",
    ".mlp.down_proj.": ".ffn.down.",
    ".input_layernorm.": ".attention_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
}
GPT = {
    "transformer.h.": "model.layers.",
    "transformer.wte.": "model.embed_tokens.",
    "transformer.tokens_embed.": "model.embed_tokens.",
    "transformer.wpe.": "model.embed_positions.",
    "transformer.positions_embed.": "model.embed_positions.",
    "transformer.ln_f.": "model.norm.",
    ".attn.c_proj.": ".attention.output.",
    ".attn.c_attn.": ".attention.qkv.",
    ".mlp.c_fc.": ".ffn.up.",
    ".mlp.c_proj.": ".ffn.down.",
    ".ln_1.": ".attention_norm.",
    ".ln_2.": ".ffn_norm.",
}


@dataclass(frozen=True, kw_only=True)
class ConvertedModel:
    """A model read as one of ours.

    Attributes:
        variant: the reference variant that it is.
        settings: of the configuration, beside spec and sizes.
        state: its weights under our names; tensors are shared with the model where they can be.
    """

    variant: str
    spec: Spec
    shape: Shape
    settings: Mapping[str, Any]
    state: State


def read(model: PreTrainedModel) -> ConvertedModel:
    """Read a model of a known family as the reference variant, with equal logits.

    Raises:
        UserError: another family, or an option of the family that the reference does not have.
    """
    kind = model.config.model_type
    if kind not in FAMILIES:
        raise UserError(
            f"cannot rebuild a model of type {kind!r}; expected one of {', '.join(FAMILIES)}"
        )
    if "CausalLM" not in type(model).__name__ and "LMHead" not in type(model).__name__:
        raise UserError(
            f"{type(model).__name__} has no language-modelling head; load it with "
            "AutoModelForCausalLM.from_pretrained"
        )
    return FAMILIES[kind](model)


def _own(model: PreTrainedModel) -> ConvertedModel:
    config: Any = model.config
    own = ("rope_parameters", "mup_base_width", "mup_base_head_width", "logit_factor")
    return ConvertedModel(
        variant=config.variant,
        spec=config.parse_spec(),
        shape=config.shape(),
        settings=_share(config) | {name: getattr(config, name) for name in own},
        state=model.state_dict(),
    )


def _llama(model: PreTrainedModel) -> ConvertedModel:
    config: Any = model.config
    _refuse(config, sliding=getattr(config, "use_sliding_window", True))
    rope = dict(config.rope_parameters)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("only a part of each head is rotated in this model; expected all of it")
    if config.attention_dropout:
        raise UserError(
            f"attention_dropout is {config.attention_dropout}, of attention weights alone, and the "
            "reference block drops features at the same rate; expected 0: type "
            "model.config.attention_dropout = 0, or write 0 in config.json"
        )
    norm = Choice("rms", epsilon=config.rms_norm_eps)
    bias = "all" if getattr(config, "attention_bias", False) else "none"
    attention = Choice("softmax", bias="qkv" if config.model_type == "qwen2" else bias)
    if config.model_type == "qwen3":
        attention = Choice("qk-norm", bias=bias, epsilon=config.rms_norm_eps)
    ffn = Choice(
        "swiglu",
        activation=_activation(config.hidden_act),
        bias=getattr(config, "mlp_bias", False),
    )
    spec = variant("llama").spec.with_block(norm=norm, attention=attention, ffn=ffn)
    spec = spec.with_stack(final_norm=norm, head=_head(config))
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    shape = Shape(
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_width=width,
        inner=config.intermediate_size,
        vocab=config.vocab_size,
        context=config.max_position_embeddings,
    )
    settings = {**_share(config), "rope_parameters": rope}
    state = dict(_rename(model.state_dict(), LLAMA))
    name = "qk-norm" if config.model_type == "qwen3" else "llama"
    return ConvertedModel(variant=name, spec=spec, shape=shape, settings=settings, state=state)


def _gpt(model: PreTrainedModel) -> ConvertedModel:
    config: Any = model.config
    _refuse(config, sliding=False)
    name = "gpt2" if config.model_type == "gpt2" else "gpt1"
    drops = {config.embd_pdrop, config.resid_pdrop, config.attn_pdrop}
    if len(drops) > 1:
        raise UserError(
            f"embd_pdrop, resid_pdrop and attn_pdrop are {sorted(drops)}; expected one rate: "
            "set them equal in model.config"
        )
    activation = config.activation_function if name == "gpt2" else GPT1_ACTIVATIONS[config.afn]
    norm = Choice("layer", epsilon=config.layer_norm_epsilon)
    spec = variant(name).spec.with_block(
        norm=norm, ffn=Choice("mlp", activation=_activation(activation), bias=True)
    )
    spec = spec.with_stack(
        head=_head(config),
        dropout=float(drops.pop()),
        final_norm=norm if name == "gpt2" else spec.stack.final_norm,
    )
    shape = Shape(
        width=config.n_embd,
        layers=config.n_layer,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_width=config.n_embd // config.n_head,
        inner=getattr(config, "n_inner", None) or 4 * config.n_embd,
        vocab=config.vocab_size,
        context=config.n_positions,
    )
    state = dict(_straight(_rename(model.state_dict(), GPT)))
    return ConvertedModel(
        variant=name, spec=spec, shape=shape, settings=_share(config), state=state
    )


GPT1_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}
FAMILIES: Mapping[str, Callable[[PreTrainedModel], ConvertedModel]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "gpt2": _gpt,
    "openai-gpt": _gpt,
    "layerlab": _own,
}


def _share(config: Any) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")
    return {name: getattr(config, name, None) for name in names}


def _refuse(config: Any, *, sliding: bool) -> None:
    """Refuse options of a family under which the reference block would give other logits."""
    window = getattr(config, "sliding_window", None) if sliding else None
    layers = getattr(config, "layer_types", None) or ()
    strange = {
        "sliding_window": bool(window and window < config.max_position_embeddings),
        "layer_types": not getattr(config, "sliding_window", None)
        and "sliding_attention" in layers,
        "scale_attn_by_inverse_layer_idx": getattr(config, "scale_attn_by_inverse_layer_idx", 0),
        "add_cross_attention": getattr(config, "add_cross_attention", False),
        "scale_attn_weights=False": not getattr(config, "scale_attn_weights", True),
    }
    found = [name for name, present in strange.items() if present]
    if found:
        raise UserError(
            f"this {config.model_type} model uses {', '.join(found)}, which the reference block "
            "does not have; expected one with full causal attention"
        )


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise UserError(
            f"the activation {name!r} of this model is not one of ours; expected one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _head(config: Any) -> str:
    return "tied" if config.tie_word_embeddings else "untied"


def _rename(state: State, names: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in state.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        yield name, tensor


def _straight(state: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the variant's matrices of GPT's, stored input x output with q, k and v in one."""
    for name, tensor in state:
        embedding = name.startswith(("model.embed", "lm_head"))
        if not embedding and tensor.dim() == 2:
            tensor = tensor.t().contiguous()
        if name.endswith((".attention.qkv.weight", ".attention.qkv.bias")):
            for one, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                yield name.replace(".qkv.", f".{one}."), piece.contiguous()
        else:
            yield name, tensor
