"""Scalings of rotations that one engine applies and another does not."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FREQUENCIES, SIZE = "inv_freq", "attention_scaling"
# As released models ask for them, each beyond the places that a model was trained on.
SCALINGS: Mapping[str, Mapping[str, Any]] = {
    "scaled as llama3 by 8": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "scaled as yarn by 4": {"rope_type": "yarn", "factor": 4.0},
}


def scale_rotations(model: nn.Module) -> Iterator[str]:
    """Scale the rotations of a model otherwise, in turn; it is as before in the end.

    Yields:
        What is done otherwise; nothing for a model whose layers rotate each in a way of its own.
    """
    config: Any = getattr(model, "config", None)
    own = getattr(config, "rope_parameters", None)
    modules = [one for one in model.modules() if isinstance(getattr(one, SIZE, None), float)]
    if not modules or not isinstance(own, Mapping) or "rope_type" not in own:
        return
    for name, given in SCALINGS.items():
        if given["rope_type"] == own["rope_type"]:
            continue
        scaled = copy.deepcopy(config)
        if getattr(scaled, "head_dim", 0) is None:  # as Mixtral has it where all heads share alike
            scaled.head_dim = scaled.hidden_size // scaled.num_attention_heads
        scaled.rope_parameters = {
            **{key: own[key] for key in ("rope_theta", "partial_rotary_factor") if key in own},
            **given,
            "original_max_position_embeddings": scaled.max_position_embeddings,
        }
        frequencies, size = ROPE_INIT_FUNCTIONS[given["rope_type"]](scaled, None)
        with _rotating(modules, frequencies, size):
            yield f"rotations {name}"
    if own["rope_type"] != "default" and isinstance(own.get("rope_theta"), int | float):
        places = modules[0].get_buffer(FREQUENCIES)
        steps = torch.arange(len(places), dtype=torch.float64) / len(places)
        with _rotating(modules, own["rope_theta"] ** -steps, 1.0):
            yield f"rotations without the scaling ({own['rope_type']}) of the configuration"


@contextmanager
def _rotating(modules: Sequence[nn.Module], frequencies: Tensor, size: float) -> Iterator[None]:
    """Rotate by other frequencies, and with sines and cosines of another size."""
    kept = [(one, one.get_buffer(FREQUENCIES).clone(), getattr(one, SIZE)) for one in modules]
    try:
        for one in modules:
            one.get_buffer(FREQUENCIES).copy_(frequencies)
            setattr(one, SIZE, size)
        yield
    finally:
        for one, before, was in kept:
            one.get_buffer(FREQUENCIES).copy_(before)
            setattr(one, SIZE, was)
