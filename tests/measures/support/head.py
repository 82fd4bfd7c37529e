"""Real attention modules of tiny width, and what their scores are on a stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from layerlab.observe.architecture.head_weights import HeadWeights, project
from layerlab.observe.architecture.structure import anatomy, text_config
from tests.measures.family import YARN


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def causal_attention(scores: Tensor, window: int | None = None) -> Tensor:
    tokens = scores.shape[-1]
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if window is not None:
        allowed &= ~torch.ones(tokens, tokens, dtype=torch.bool).tril(-window)
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)


SMALL = {
    "vocab_size": 32,
    "hidden_size": 24,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN = {name: value for name, value in SMALL.items() if name != "head_dim"}
MODULES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 32, "n_embd": 24, "n_layer": 1, "n_head": 4, "n_positions": 64},
    "llama": {**SMALL, "attention_bias": True, "rope_parameters": YARN},
    "qwen2": {**SMALL, "rope_parameters": YARN},
    "olmo2": {**SMALL, "rope_parameters": YARN},
    "qwen3": {**SMALL, "rope_parameters": YARN},
    "gemma2": SMALL,
    "gemma3_text": {**SMALL, "layer_types": ["full_attention"]},
    "stablelm": {**PLAIN, "hidden_size": 32, "qk_layernorm": True},
    "cohere": {**PLAIN, "use_qk_norm": True},
}
SEEN: list[tuple[Tensor, Tensor, float]] = []


def _record(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, None]:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query[0] @ key[0].mT * options["scaling"]
    cap = options.get("softcap")
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    SEEN.append((scores, causal_attention(scores), options["scaling"]))
    return torch.zeros_like(query).transpose(1, 2), None


@contextmanager
def recording() -> Iterator[None]:
    """Attention that keeps its scores and gives zeros, under the name "scores_test"."""
    AttentionInterface.register("scores_test", _record)
    try:
        yield
    finally:
        AttentionInterface._global_mapping.pop("scores_test", None)
        SEEN.clear()


def built(family: str, seed: int) -> PreTrainedModel:
    config = AutoConfig.for_model(family, **MODULES[family])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval().double()
        with torch.no_grad():
            for parameter in model.parameters():
                scale = 0.5 if parameter.dim() == 1 else 0.3
                parameter.add_(scale * torch.randn_like(parameter))
    model.config._attn_implementation = "scores_test"
    return model


def weights_of(model: PreTrainedModel) -> HeadWeights:
    stack = anatomy(model)
    return project(stack.blocks[0], stack.attentions[0], config=text_config(model))


def adversaries(weights: HeadWeights, tokens: int, seed: int) -> Tensor:
    """Random streams, and streams along the directions that the first head reads most."""
    assert weights.query is not None and weights.key is not None
    width = weights.query.shape[-1]
    streams = random(tokens, width, seed=seed)
    gain = torch.ones(width) if weights.gain is None else weights.gain
    for row, part in enumerate((weights.query, weights.key)):
        direction = torch.linalg.svd(part[0].double() * gain)[2][0]
        streams[row], streams[row + 2] = direction, -direction
    streams[4] = torch.eye(width, dtype=torch.float64)[gain.abs().argmax()]
    return streams * torch.logspace(-2, 3, tokens, dtype=torch.float64)[:, None]


def scores_of(model: PreTrainedModel, stream: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and causal attention of the first block on a stream, through the real modules."""
    SEEN.clear()
    stack = anatomy(model)
    block = stack.blocks[0]
    options: dict[str, Any] = {}
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is not None:
        positions = torch.arange(len(stream))[None]
        kind = ("full_attention",) if hasattr(rotary, "full_attention_inv_freq") else ()
        options = {"position_embeddings": rotary(stream[None], positions, *kind)}
    with torch.no_grad():
        block(stream[None], attention_mask=None, **options)
    scores, attention, _ = SEEN[0]
    return scores, attention
