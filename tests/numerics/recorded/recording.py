"""Records made by runs of the built-in model, and held against it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from layerlab import builtin
from layerlab.api.gap import run_model
from layerlab.numerics.profiles.profile import NumericsProfile, load_profile
from layerlab.numerics.profiles.token_differences import compare_tokens
from layerlab.numerics.recorded.explain import explain_record
from layerlab.numerics.recorded.record import TokenRecord
from layerlab.numerics.recorded.recorded_gap import ProfileFit, RecordedGap
from layerlab.numerics.recorded.rounding_limits import LEAST

NAMES = ("torch-eager", "torch-sdpa", "autocast-bf16", "hf-generate", "vllm", "float32")
CANDIDATES = [load_profile(name) for name in NAMES]
LAYERS = 3
EAGER = load_profile("torch-eager")


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "record.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def score(logits: Tensor, ids: Tensor) -> list[float]:
    return logits[:-1].float().log_softmax(-1).gather(-1, ids[1:, None])[:, 0].tolist()


def record(pieces: list[Tensor], read: Callable[[Tensor], Tensor]) -> list[TokenRecord]:
    with torch.no_grad():
        return [
            TokenRecord(token_ids=tuple(ids.tolist()), logprobs=(None, *score(read(ids), ids)))
            for ids in pieces
        ]


def record_model(pieces: list[Tensor], engine: Any) -> list[TokenRecord]:
    """What an engine records that computes as this model does."""
    return record(pieces, lambda ids: engine(input_ids=ids[None]).logits[0])


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


def draw_model() -> Any:
    """A model of drawn weights, whose rotations matter."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=300,
        num_attention_heads=2,
        initializer_range=0.2,
        attn_implementation="eager",
        **sizes,  # type: ignore[arg-type]
    )
    return LlamaForCausalLM(config).eval()


def find(
    model: nn.Module,
    records: list[TokenRecord],
    profiles: list[NumericsProfile],
    real: bool = False,
) -> RecordedGap:
    return explain_record(model, records, EAGER, profiles, call=run_model, real=real)


def tell(share: float = 0.9, tokens: int = LEAST, made: float = 1.0, **given: Any) -> RecordedGap:
    """Return a finding of such numbers, for what they lead to."""
    zeros = torch.zeros(tokens, dtype=torch.float64)
    numbers = {"rms": 1.0, "bias": 0.0, "floor": 0.01, "most_rms": 1.0, "most_bias": 0.1}
    return RecordedGap(
        a=EAGER,
        difference=compare_tokens(zeros, zeros),
        candidates=(ProfileFit(name="vllm", emulated=share, rms=made),),
        **{"is_beyond": False, **numbers, **given},
    )
