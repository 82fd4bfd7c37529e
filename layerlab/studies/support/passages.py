"""Passages of the built-in text, cut where a draw says, and what a model does with them."""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerlab import builtin
from layerlab.studies.engine.once import once
from layerlab.studies.engine.sampling import Sampler

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.observe.tracing.records import Layer

# Tokens of the built-in text, as the built-in models read it.
WHOLE = 7526
# What a draw is where this text goes through the built-in models: more draws are not more models.
PASSAGES = "passages of one text, one trained model of each kind"
# A trace listens to one model, and batches are computed side by side.
_ALONE = Lock()


def overlap(length: int) -> str:
    """Describe what the intervals apply to, where passages of so many tokens are drawn."""
    return (
        f"Passages are cut at random places of one text ({WHOLE:,} tokens of the built-in models). "
        "Intervals are right for this text and these models; of other text they tell no more than "
        f"{WHOLE // length} passages of {length} tokens would, as many as do not overlap."
    )


@once
def patient(name: str) -> "LoadedModel":
    """Return a built-in model, loaded once."""
    # Late: the list of studies needs no transformers.
    from layerlab.loading.model import subject

    return subject(name)


@once
def tokens_of(name: str) -> Tensor:
    """Return the built-in text as a built-in model reads it."""
    tokenizer: Any = patient(name).tokenizer
    found = tokenizer(builtin.SAMPLE.read_text("utf-8"), verbose=False)["input_ids"]
    return torch.tensor(found)


def excerpts(draw: Sampler, name: str, length: int, each: int = 1) -> Tensor:
    """Return token ids for a built-in model: `each` passages per draw, one below the other."""
    whole = tokens_of(name)
    starts = torch.randint(len(whole) - length, (draw.count * each,), generator=draw.generator)
    return torch.stack([whole[start : start + length] for start in starts.tolist()])


def for_each_layer(subject: "LoadedModel", ids: Tensor, read: Callable[["Layer"], None]) -> None:
    """Hand every layer of every passage to `read`, passage by passage.

    Raises:
        NotApplicable: the blocks are not called with features, or more than once in one forward.
    """
    from layerlab.observe.tracing.trace import trace

    assert not isinstance(subject.stack, str), subject.stack
    with _ALONE:
        trace(subject.model, subject.stack, list(ids), read)
