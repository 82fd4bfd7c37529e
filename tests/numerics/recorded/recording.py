"""Records made by runs of the built-in model, and held against it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from layerlab import builtin
from layerlab.api.gap import run_model
from layerlab.numerics.profiles.profile import NumericsProfile, load_profile
from layerlab.numerics.recorded.explain import explain_record
from layerlab.numerics.recorded.record import TokenRecord
from layerlab.numerics.recorded.recorded_gap import RecordedGap

NAMES = ("torch-eager", "torch-sdpa", "autocast-bf16", "hf-generate", "vllm", "float32")
CANDIDATES = [load_profile(name) for name in NAMES]
LAYERS = 3
EAGER = load_profile("torch-eager")


def score(logits: Tensor, ids: Tensor) -> list[float]:
    return logits[:-1].float().log_softmax(-1).gather(-1, ids[1:, None])[:, 0].tolist()


def record(pieces: list[Tensor], read: Callable[[Tensor], Tensor]) -> list[TokenRecord]:
    with torch.no_grad():
        return [
            TokenRecord(token_ids=tuple(ids.tolist()), logprobs=(None, *score(read(ids), ids)))
            for ids in pieces
        ]


def load(attention: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        builtin.path("llama"), dtype=dtype, attn_implementation=attention
    ).eval()


def load_shallow(attention: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Its first layers alone, which tell roundings from mistakes as all of them do."""
    model = load(attention, dtype)
    model.model.layers = model.model.layers[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    return model


def find(
    model: nn.Module,
    records: list[TokenRecord],
    profiles: list[NumericsProfile],
    real: bool = False,
) -> RecordedGap:
    return explain_record(model, records, EAGER, profiles, call=run_model, real=real)
