"""Passages of a text, cut where a draw says, and what a model does with them.

A model is the built-in one of that name, unless the user has given one, with a text of its own.
"""

from collections.abc import Callable
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerlab import builtin
from layerlab.errors import NotApplicable
from layerlab.records.layer_names import layer_name
from layerlab.studies.engine.sampling import GivenModels, Sampler
from layerlab.studies.engine.scale import PASSAGES as PASSAGES
from layerlab.studies.support.once import compute_once

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.observe.tracing.records import Layer
    from layerlab.observe.tracing.trace import Trace

# Tokens of the built-in text, as the built-in models read it.
WHOLE = 7526
# A model is traced and changed by one at a time, and batches are computed side by side.
ALONE = RLock()
NONE: GivenModels = MappingProxyType({})


def overlap(length: int, given: GivenModels = NONE) -> str:
    """Describe what the intervals apply to, where passages of so many tokens are drawn."""
    if given:
        text = next(iter(given.values())).source
        fewest = min(len(one.tokens) for one in given.values())
        return (
            f"Passages are cut at random places of {text}, {fewest:,} tokens of it at least. "
            "Intervals are right for this text and these models; of other text they tell no more "
            f"than {fewest // length} passages of {length} tokens would, as many as do not overlap."
        )
    return (
        f"Passages are cut at random places of one text ({WHOLE:,} tokens of the built-in models). "
        "Intervals are right for this text and these models; of other text they tell no more than "
        f"{WHOLE // length} passages of {length} tokens would, as many as do not overlap."
    )


def get_model(name: str, given: GivenModels = NONE) -> "LoadedModel":
    """Return the model of this name, loaded once: the given one, else the built-in one."""
    return given[name].subject if name in given else _load_built_in(name)


@compute_once
def _load_built_in(name: str) -> "LoadedModel":
    # Late: the list of studies needs no transformers.
    from layerlab.loading.model import load_model

    return load_model(name)


def tokens_of(name: str, given: GivenModels = NONE) -> Tensor:
    """Return the text as a model reads it: the given text, else the built-in one."""
    return given[name].tokens if name in given else _built_in_tokens(name)


@compute_once
def _built_in_tokens(name: str) -> Tensor:
    tokenizer: Any = _load_built_in(name).tokenizer
    found = tokenizer(builtin.SAMPLE.read_text("utf-8"), verbose=False)["input_ids"]
    return torch.tensor(found)


def excerpts(draw: Sampler, name: str, length: int, each: int = 1) -> Tensor:
    """Return token ids for a model: `each` passages per draw, one below the other."""
    tokens = tokens_of(name, draw.given)
    starts = torch.randint(len(tokens) - length, (draw.count * each,), generator=draw.generator)
    return torch.stack([tokens[start : start + length] for start in starts.tolist()])


def for_each_layer(subject: "LoadedModel", ids: Tensor, read: Callable[["Layer"], None]) -> None:
    """Hand every layer of every passage to `read`, passage by passage.

    Raises:
        NotApplicable: the blocks are not called with features, pass none on, or are called more
            than once in one forward; or what one of them gives is not finite.
    """

    def give(layer: "Layer") -> None:
        if not layer.stream.numel():
            raise NotApplicable("its blocks do not pass on one vector for each token")
        read(layer)

    _trace(subject, ids, give)


def for_each_attention(
    subject: "LoadedModel", ids: Tensor, read: Callable[["Layer"], None]
) -> None:
    """Hand every layer with attention of every passage to `read`, passage by passage.

    Raises:
        NotApplicable: as `for_each_layer`, though a stream is not needed; or an attention of the
            model is not heard, which would be left out of what is said of all.
    """

    def give(layer: "Layer") -> None:
        if layer.attention is not None:
            read(layer)

    if silent := _trace(subject, ids, give).silent:
        raise NotApplicable(f"some of its attention is not seen: {next(iter(silent.values()))}")


def _trace(subject: "LoadedModel", ids: Tensor, read: Callable[["Layer"], None]) -> "Trace":
    from layerlab.observe.tracing.trace import trace

    assert not isinstance(subject.stack, str), subject.stack
    with ALONE:
        found = trace(subject.model, subject.stack, list(ids.to(subject.device)), read)
    # A block of which not all is finite was handed to nobody.
    for layer, fault in found.faults.items():
        raise NotApplicable(f"on a passage its {layer_name(layer)} has {fault}")
    return found
