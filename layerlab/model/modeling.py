"""`LabForCausalLM`: any variant as a Hugging Face model."""

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from layerlab.blocks.attention import Attention
from layerlab.blocks.context import Flow
from layerlab.blocks.dropout import Dropout
from layerlab.blocks.layer import DecoderLayer, count_sublayers, make_part
from layerlab.blocks.part import Part
from layerlab.blocks.shape import Site
from layerlab.model.attention import attend
from layerlab.model.config import LabConfig
from layerlab.model.ecosystem.tensor_parallel_plan import tensor_plan
from layerlab.model.init_weights import draw
from layerlab.model.loss import causal_loss
from layerlab.model.parametrization import Scale, scales, score_factor
from layerlab.system.model_cache import CACHE, NAMES, cache_of
from layerlab.variants.registry import part, require

# What recomputation and compilation put between a module and its name.
WRAPPERS = re.compile(r"\.(_checkpoint_wrapped_module|_orig_mod)\b")


class LabDecoderLayer(GradientCheckpointingLayer, DecoderLayer):
    """A layer as transformers' gradient checkpointing wants it.

    Every tensor with a gradient enters by position and leaves on its own: reentrant checkpointing
    looks for them nowhere else. `names` says which of the carry they are; those of what leaves
    stand between the hidden features and it.
    """

    def forward(
        self,
        hidden_states: Tensor,
        *carry: Tensor,
        names: tuple[str, ...] = (),
        attention_mask: Any = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        ages: Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        implementation: str = "sdpa",
        **extra: Any,
    ) -> tuple[Any, ...]:
        cache = past_key_values if cache is None else cache
        # A paged one was written by attention itself before 5.24.
        if cache is not None and not isinstance(cache, Cache) and CACHE != "cache":
            cache, extra = None, {**extra, "cache": cache}
        flow = Flow(
            # Its place in a cache and nothing else: unread without one, so that compiled layers
            # are one graph for all and not one each.
            layer=0 if cache is None else self.number,
            carry=dict(zip(names, carry, strict=True)),
            mask=attention_mask,
            rotary=rotary,
            ages=ages,
            cache=cache,
            implementation=implementation,
            extra=extra,
        )
        hidden = self.run(hidden_states, flow)
        return hidden, tuple(flow.carry), *flow.carry.values()


class LabPreTrainedModel(PreTrainedModel):
    """The base class through which transformers knows all our models."""

    config: LabConfig
    config_class = LabConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LabDecoderLayer"]
    _skip_keys_device_placement = list(NAMES)
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": OutputRecorder(LabDecoderLayer, index=0),
        "attentions": OutputRecorder(Attention, index=1),
    }

    # While all modules are drawn: to list them again for each would grow with their square.
    _names: dict[nn.Module, str] | None = None
    # Of the base, once they were asked for: three models are built to know them.
    _scales: dict[str, Scale] | None = None

    def initialize_weights(self) -> None:
        """Draw the weights that were not loaded."""
        models = [one for one in self.modules() if isinstance(one, LabPreTrainedModel)]
        for one in models:
            one._names = one._canonical_names()
        try:
            super().initialize_weights()
        finally:
            for one in models:
                one._names = None

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LlamaRotaryEmbedding):
            super()._init_weights(module)
        base: Any = self.base_model
        scaled = base.spec.stack.initialisation == "depth-scaled"
        draw(module, self._name(module), self.config, depth_scaled=scaled, scales=self.scales())

    def scales(self) -> dict[str, Scale]:
        """Return the factors of muP by canonical names; none where all of them are 1."""
        base: Any = self.base_model
        if base._scales is None:
            base._scales = scales(self.config, LabForCausalLM)
        found: dict[str, Scale] = base._scales
        return found

    def _adjust_bias(self, output_embeddings: nn.Module, input_embeddings: Any) -> None:
        """Leave biases of tied parts as they are: transformers pads them to their weight's rows."""
        if isinstance(output_embeddings, nn.Linear):
            super()._adjust_bias(output_embeddings, input_embeddings)

    def _canonical_names(self) -> dict[nn.Module, str]:
        """Return the canonical names: those in the causal model, even of its base alone.

        A layer that was wrapped before its weights are drawn has the name that it had.
        """
        prefix = "" if hasattr(self, "lm_head") else f"{self.base_model_prefix}."
        names = {held: f"{prefix}{name}" for name, held in self.named_modules()}
        return {held: WRAPPERS.sub("", name) for held, name in names.items()}

    def _name(self, module: nn.Module) -> str:
        """Return the canonical name of a module.

        A layer that `resize_token_embeddings` has yet to put in has the name of the one there.
        """
        names = self._names or self._canonical_names()
        if module in names:
            return names[module]
        head = isinstance(module, nn.Linear)
        return names[self.get_output_embeddings() if head else self.get_input_embeddings()]


class LabModel(LabPreTrainedModel):
    """The stack, from tokens to the features after the final norm."""

    def __init__(self, config: LabConfig) -> None:
        super().__init__(config)
        require(config.files or {}, config.name_or_path or "")
        spec, shape = config.parse_spec(), config.shape()
        stack = spec.stack
        site = Site(
            shape=shape,
            sublayers=count_sublayers(spec.block, shape, part),
            attend=attend,
            score_factor=score_factor(config),
        )
        self.spec = spec
        self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        if stack.position == "learned":
            self.embed_positions = nn.Embedding(shape.context, shape.width)
        self.embedding_norm = make_part(part, "norm", stack.embedding_norm, shape.width, site)
        if stack.dropout:
            self.embedding_dropout = Dropout(stack.dropout, "embedding")
        self.residual = make_part(part, "residual", spec.block.residual, shape.width, site)
        layers = [
            LabDecoderLayer(spec.block, replace(site, layer=layer), part, stack.dropout)
            for layer in range(shape.layers)
        ]
        self.layers = nn.ModuleList(layers)
        self._tied_weights_keys = {
            f"layers.{layer.number}.{name}": f"layers.0.{name}"
            for layer in (layers[1:] if stack.sharing == "blocks" else ())
            for name in layer.borrow(layers[0])
        }
        self.norm = make_part(part, "norm", stack.final_norm, shape.width, site)
        rotary = stack.position == "rotary"
        self.rotary_emb = LlamaRotaryEmbedding(config) if rotary else None  # type: ignore[arg-type]
        self.convolutions = max(layer.convolutions for layer in layers)
        if self.convolutions:  # the cache then keeps past features beside keys and values
            config.layer_types = ["hybrid"] * shape.layers
            config.number_of_conv_states = self.convolutions
        self.gradient_checkpointing = False
        vars(config)["base_model_tp_plan"] = tensor_plan(spec)
        for module in self.modules():  # attention functions, and who listens to them, ask for it
            if isinstance(module, Part) and module.slot == "attention":
                vars(module)["config"] = config
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        cache = past_key_values if cache is None else cache
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        # Where tokens are merely counted, none stands beside padding or another document's.
        counted = position_ids is None and not _is_padded(attention_mask)
        if position_ids is None:
            position_ids = self._positions(inputs_embeds, attention_mask, cache)
        if isinstance(attention_mask, dict):  # made beforehand for a static cache, by kind of layer
            attention_mask = attention_mask["full_attention"]
        mask = create_causal_mask(self.config, inputs_embeds, attention_mask, cache, position_ids)
        flow = Flow()
        hidden = self._embed(inputs_embeds, position_ids, flow)
        names, carry = tuple(flow.carry), list(flow.carry.values())
        rotary = self.rotary_emb(hidden, position_ids) if self.rotary_emb is not None else None
        for layer in self.layers:
            hidden, names, *carry = layer(
                hidden,
                *carry,
                names=names,
                attention_mask=mask,
                rotary=rotary,
                ages=position_ids if self.convolutions and not counted else None,
                implementation=self.config._attn_implementation,
                position_ids=position_ids,
                **{CACHE: cache},
                **kwargs,
            )
        flow = Flow(carry=dict(zip(names, carry, strict=True)))
        hidden = self.residual.forward("close", hidden, flow)
        kept: dict[str, Any] = {CACHE: cache}
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), **kept)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Return the tied weights: what layers share is tied, with a tied head or not."""
        if all_submodels:
            tied: dict[str, str] = super().get_expanded_tied_weights_keys(all_submodels=True)
            return tied
        return dict(self._tied_weights_keys)

    def _embed(self, embeddings: Tensor, positions: Tensor, flow: Flow) -> Tensor:
        stack = self.spec.stack
        if stack.position == "learned":
            embeddings = embeddings + self.embed_positions(positions)
        hidden = self.embedding_norm(embeddings)
        if stack.dropout:
            hidden = self.embedding_dropout(hidden)
        opened: Tensor = self.residual.forward("open", hidden, flow)
        return opened

    def _positions(self, embeddings: Tensor, mask: Any, cache: Cache | None) -> Tensor:
        """Return the positions, from the first token of each sequence that is not padding."""
        tokens = embeddings.shape[1]
        if _is_padded(mask):
            return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens:]
        seen = cache.get_seq_length() if cache is not None else 0
        return (torch.arange(tokens, device=embeddings.device) + seen).unsqueeze(0)


def _is_padded(mask: Any) -> bool:
    """Return whether a mask is one that says which tokens are padding."""
    return isinstance(mask, Tensor) and mask.dim() == 2


class LabForCausalLM(LabPreTrainedModel, GenerationMixin):
    """A stack with a language-modelling head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}
    _loss_function = staticmethod(causal_loss)

    def __init__(self, config: LabConfig) -> None:
        super().__init__(config)
        self.model = LabModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.logit_factor = config.logit_factor
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            **kwargs,
        )
        kept = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        logits = self.lm_head(kept if self.logit_factor == 1 else kept * self.logit_factor)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: cache_of(outputs)},
        )
