"""Describes what a run begins with, so that a resumed one is known to begin with the same."""

import json
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerFast

from layerlab.loading.weights_hash import hash_tensors
from layerlab.records.parse import digest_of

# Entries of a configuration that say where a model came from, or what its tensors say already.
NEUTRAL = ("_name_or_path", "architectures", "dtype", "transformers_version", "torch_dtype")
# PEFT draws these anew each time; an adapter that has learned something differs in lora_B too.
DRAWN = ("lora_A", "lora_embedding_A")


def describe_beginning(model: Any, words: PreTrainedTokenizerFast) -> dict[str, str | None]:
    """Return a hash of a model's weights, of its configuration and of the tokenizer.

    That of the weights is None where some of them are not in memory.
    """
    drawn = DRAWN if hasattr(model, "peft_config") else ()
    return {
        "model": hash_tensors(
            (name, tensor)
            for name, tensor in model.state_dict().items()
            if not any(part in drawn for part in name.split("."))
        ),
        "configuration of the model": digest_of(_settings(model.config)),
        "tokenizer": digest_of(_rules(words)),
    }


def _settings(config: Any) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(config.to_json_string())
    return {name: value for name, value in found.items() if name not in NEUTRAL}


def _rules(words: PreTrainedTokenizerFast) -> Mapping[str, Any]:
    """Return the rules of a tokenizer without those that each call sets."""
    rules = json.loads(words.backend_tokenizer.to_str())
    return {
        **{name: value for name, value in rules.items() if name not in ("padding", "truncation")},
        "special": {name: str(value) for name, value in words.special_tokens_map.items()},
        "template": words.chat_template,
    }
