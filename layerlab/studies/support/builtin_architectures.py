"""What is compared: three architectures of one shape, which start from the same numbers."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import GPT2Config, LlamaConfig, OpenAIGPTConfig

from layerlab.system.locks import MODELS


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the outcome of a run, apart from the text and the library versions.

    Attributes:
        deviation: standard deviation of every initial matrix; biases start at 0, norms at 1.
        cooldown: steps at the end over which the rate falls to the last rate in a straight line.
        validation: the last part of the text, held out.
        interval: steps between two lines of the log, each with a checkpoint.
    """

    seed: int = 1
    width: int = 64
    layers: int = 8
    heads: int = 4
    vocab: int = 512
    context: int = 256
    deviation: float = 0.02
    batch: int = 8
    steps: int = 3600
    cooldown: int = 300
    warmup: int = 300
    rate: float = 2e-3
    last_rate: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.95)
    decay: float = 0.1
    clip: float = 1.0
    validation: float = 0.1
    interval: int = 300


@dataclass
class TrainedArm:
    """One model on its way: its optimizer, what it has seen and what that cost.

    Attributes:
        seen: a hash chained over all batches; equal in two arms only if they saw the same.
        losses: training loss of every step, nats per token.
        history: step and validation loss in nats per token.
    """

    name: str
    model: Any
    optimizer: torch.optim.AdamW
    seen: str = ""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    history: list[tuple[int, float]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to continue."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **{key: getattr(self, key) for key in ("seen", "seconds", "losses", "history")},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        state = dict(state)
        self.model.load_state_dict(state.pop("model"))
        self.optimizer.load_state_dict(state.pop("optimizer"))
        for key, value in state.items():
            setattr(self, key, value)


def inner_of_llama(recipe: Recipe) -> int:
    """Choose the inner width that brings the llama arm nearest to pre-norm's parameters."""
    width, layers = recipe.width, recipe.layers
    # Llama has neither positions nor biases nor LayerNorm shifts: its inner width makes up for it.
    pre_norm = recipe.context * width + layers * (12 * width**2 + 13 * width) + 2 * width
    rest = layers * (4 * width**2 + 2 * width) + width
    return round((pre_norm - rest) / (layers * 3 * width))


def build(name: str, recipe: Recipe) -> Any:
    """Build the untrained model of one arm."""
    shape: dict[str, Any] = {
        "vocab_size": recipe.vocab,
        "hidden_size": recipe.width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "max_position_embeddings": recipe.context,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
    }
    dry: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config: Any
    if name == "pre-norm":
        config = GPT2Config(**shape, **dry, activation_function="gelu_new")
    elif name == "post-norm":
        config = OpenAIGPTConfig(**shape, **dry, afn="gelu")  # which that code maps to gelu_new
    else:
        config = LlamaConfig(**shape, intermediate_size=inner_of_llama(recipe), rms_norm_eps=1e-5)
    with MODELS:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    initialise(model, recipe)
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


def initialise(model: nn.Module, recipe: Recipe) -> None:
    """Draw every matrix from a stream named by its role and layer, whatever the family calls it."""
    linear = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        roles = next(roles for pattern, roles in ROLES.items() if re.search(pattern, name))
        layer = "".join(re.findall(r"\.(\d+)\.", name))
        # nn.Linear keeps (out, in), GPT's Conv1D keeps (in, out): the draws are (in, out).
        shape = parameter.shape[::-1] if name in linear else parameter.shape
        part = (shape[0], shape[1] // len(roles))
        drawn = torch.cat([draw(f"{recipe.seed}/{layer}/{role}", part) for role in roles], dim=1)
        with torch.no_grad():
            parameter.copy_(recipe.deviation * (drawn.T if name in linear else drawn))


def draw(key: str, shape: tuple[int, int]) -> Tensor:
    """Draw standard normal numbers from a stream that only the key decides."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest())
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def optimizer_of(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Make AdamW; biases and norms are not decayed."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": recipe.decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=recipe.betas, fused=True)
