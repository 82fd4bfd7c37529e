"""The built-in architectures before any training: three of one shape, from the same numbers."""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import GPT2Config, LlamaConfig, OpenAIGPTConfig

from layerlab.system.locks import MODELS


@dataclass(frozen=True, kw_only=True)
class BuiltinShape:
    """Everything that decides an untrained model.

    Attributes:
        deviation: standard deviation of every initial matrix; biases start at 0, norms at 1.
    """

    seed: int = 1
    width: int = 64
    layers: int = 8
    heads: int = 4
    vocab: int = 512
    context: int = 256
    deviation: float = 0.02


def inner_of_llama(shape: BuiltinShape) -> int:
    """Choose the inner width that brings the llama arm nearest to pre-norm's parameters."""
    width, layers = shape.width, shape.layers
    # Llama has neither positions nor biases nor LayerNorm shifts: its inner width makes up for it.
    pre_norm = shape.context * width + layers * (12 * width**2 + 13 * width) + 2 * width
    rest = layers * (4 * width**2 + 2 * width) + width
    return round((pre_norm - rest) / (layers * 3 * width))


def build(name: str, shape: BuiltinShape) -> Any:
    """Build the untrained model of one arm."""
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.context,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
    }
    dry: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config: Any
    if name == "pre-norm":
        config = GPT2Config(**sizes, **dry, activation_function="gelu_new")
    elif name == "post-norm":
        config = OpenAIGPTConfig(**sizes, **dry, afn="gelu")  # which that code maps to gelu_new
    else:
        config = LlamaConfig(**sizes, intermediate_size=inner_of_llama(shape), rms_norm_eps=1e-5)
    with MODELS:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    initialise(model, shape)
    return model


ROLES = {
    r"wte|tokens_embed|embed_tokens": ("token",),
    r"wpe|positions_embed": ("position",),
    r"c_attn": ("query", "key", "value"),
    r"attn\.c_proj|o_proj": ("output",),
    r"c_fc|up_proj": ("up",),
    r"mlp\.c_proj|down_proj": ("down",),
    r"q_proj": ("query",),
    r"k_proj": ("key",),
    r"v_proj": ("value",),
    r"gate_proj": ("gate",),
}


def initialise(model: nn.Module, shape: BuiltinShape) -> None:
    """Draw every matrix from a stream named by its role and layer, whatever the family calls it."""
    linear = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        roles = next(roles for pattern, roles in ROLES.items() if re.search(pattern, name))
        layer = "".join(re.findall(r"\.(\d+)\.", name))
        # nn.Linear keeps (out, in), GPT's Conv1D keeps (in, out): the draws are (in, out).
        size = parameter.shape[::-1] if name in linear else parameter.shape
        part = (size[0], size[1] // len(roles))
        drawn = torch.cat([draw(f"{shape.seed}/{layer}/{role}", part) for role in roles], dim=1)
        with torch.no_grad():
            parameter.copy_(shape.deviation * (drawn.T if name in linear else drawn))


def draw(key: str, shape: tuple[int, int]) -> Tensor:
    """Draw standard normal numbers from a stream that only the key decides."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest())
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
