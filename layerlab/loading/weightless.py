"""Builds the model of a configuration without weights, and checks it against stored ones.

On the meta device nothing takes room, so that what no machine could hold is refused in a moment.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from layerlab.errors import UserError
from layerlab.loading.dry_run import Footprint, check_call
from layerlab.records.parse import one_line
from layerlab.system.trust import build_configured
from layerlab.validation import short_repr

# Sizes that every model has, under the names by which transformers answers for all families.
COUNTS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "vocab_size",
)
LEAST, MOST, COUNTED = 5e-324, sys.float_info.max, 10**6
# What numbers a model can compute with, by the name of their field: in words, from, up to. Of time
# steps a limit may be infinite.
RANGES = (
    (re.compile(r"_limit$"), "a number", -inf, inf),
    (re.compile(r"[._](eps|epsilon)$"), "a number from 0 to 1", 0.0, 1.0),
    (re.compile(r"drop(out)?(_prob|_p|_rate)?$"), "a share from 0 to 1", 0.0, 1.0),
    (re.compile(r"rope_theta$"), "a number above 0", LEAST, MOST),
    (re.compile(r"(max_position_embeddings|n_positions|max_seq_len)$"), "a number from 1", 1, MOST),
    (re.compile(r"\.rope_.*\.factor$"), "a number from 1", 1.0, MOST),
    # Of many families the configuration itself has a list with an entry for each.
    (
        re.compile(r"(layers?|blocks|cycles|iters|states|chunks_(before|after))$"),
        f"a number up to {COUNTED:,}",
        -MOST,
        COUNTED,
    ),
    (re.compile(""), "a finite number", -MOST, MOST),
)
# Weights may be shared by layers; no more of these are built before the weights were counted.
LAYERS = 1000
# How many times the stored elements a model may have: a tied head is stored once.
SHARED = 4
# How many elements one that is stored may hold, of a quantised model: eight of four bits.
PACKED = 8


class Outline(NamedTuple):
    """A stored tensor without its numbers.

    Attributes:
        kind: as safetensors writes it, such as "BF16" or "I8".
    """

    kind: str
    shape: tuple[int, ...]


def empty(config: Any, place: str, stored: Mapping[str, Outline] | None = None) -> PreTrainedModel:
    """Return the model of a configuration, on the meta device.

    Args:
        place: that the configuration came from, for the message.
        stored: the weights beside it by name, where they are known.

    Raises:
        UserError: it describes no model, or one that the weights cannot be those of.
    """
    what = f"the model of config.json in {place!r}"
    try:
        check_counts(config, place)
        _check_layers(config, place, stored or {})
        with Footprint(what, len(stored or {})), torch.device("meta"):
            model: PreTrainedModel = build_configured(AutoModelForCausalLM, config).eval()
    except UserError:
        raise
    except Exception as error:  # whatever a family does with what stands there
        raise UserError(
            f"config.json in {place!r} describes no model: {one_line(error)}"
        ) from error
    asked = sum(parameter.numel() for parameter in model.parameters())
    check_call(model, what)
    if stored:
        held = sum(prod(one.shape) for one in stored.values())
        packed = PACKED if hasattr(config, "quantization_config") else 1
        if asked > SHARED * packed * held:
            raise UserError(
                f"config.json in {place!r} describes {asked:,} parameters, and the weights beside "
                f"it hold {held:,}; put the config.json there that they were saved with"
            )
    return model


def check_number(path: Sequence[str], value: float, place: str) -> None:
    """Refuse a number of a configuration that no model computes with: its outputs would be NaN.

    Raises:
        UserError: names it.
    """
    name = ".".join(path)
    expected, least, most = next(one[1:] for one in RANGES if one[0].search(name))
    if not least <= value <= most:
        raise UserError(f"{path[-1]} is {short_repr(value)} in {place!r}; expected {expected}")


def check_counts(config: Any, place: str) -> None:
    """Refuse a configuration with impossible sizes.

    Raises:
        UserError: names the first.
    """
    inner = config.get_text_config(decoder=True)
    for name in COUNTS:
        try:
            value = getattr(inner, name, None)
        except Exception:  # of a size that differs by layer; each family has its own kind
            continue
        if isinstance(value, int) and value < 1:
            own = inner.attribute_map.get(name, name)
            raise UserError(f"{own} is {value} in config.json in {place!r}; expected at least 1")
    for part in (config, inner):
        if part.dtype is not None and not isinstance(part.dtype, torch.dtype):
            raise UserError(
                f"dtype is {short_repr(part.dtype)} in config.json in {place!r}; expected a dtype "
                "of torch: write for example float32"
            )


def _check_layers(config: Any, place: str, stored: Mapping[str, Outline]) -> None:
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    numbers = {int(one) for name in stored for one in re.findall(r"\.(\d+)\.", name)}
    held = max(numbers, default=0) + 1
    if isinstance(layers, int) and layers > max(LAYERS, held):
        holds = f"the weights beside it hold {held:,}" if stored else f"{LAYERS:,} is the most"
        raise UserError(
            f"config.json in {place!r} says {layers:,} layers, and {holds}; put the config.json "
            "there that they were saved with"
        )
