"""Describes what a run begins with, so that a resumed one is known to begin with the same."""

from typing import Any

from transformers import PreTrainedTokenizerFast

from layerlab.loading.weights.hash import hash_settings, hash_tensors, hash_tokenizer

# PEFT draws these anew each time; an adapter that has learned differs in what began at zero too.
DRAWN = ("lora_A", "lora_embedding_B")


def describe_beginning(model: Any, tokenizer: PreTrainedTokenizerFast) -> dict[str, str | None]:
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
        "configuration of the model": hash_settings(model.config),
        "tokenizer": hash_tokenizer(tokenizer),
    }
