"""A block of a built-in model as the theory of rounding knows it, with what it reads of a text."""

from dataclasses import replace
from typing import TYPE_CHECKING

from layerlab.errors import NotApplicable

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.measures.support.rounding_theory import Theory
    from layerlab.observe.architecture.head_weights import HeadWeights
    from layerlab.observe.architecture.structure import AttentionPart
    from layerlab.observe.tracing.records import Layer


def weights_of(part: "AttentionPart", subject: "LoadedModel") -> "HeadWeights":
    """Return the weights of an attention layer, cut into heads."""
    # Late: the list of studies needs no transformers.
    from layerlab.observe.architecture.head_weights import project

    assert not isinstance(subject.stack, str), subject.stack
    return project(subject.stack.blocks[part.block], part, config=subject.config)


def theory_of(layer: "Layer", subject: "LoadedModel") -> "Theory":
    """Return a traced block in the theory's terms, checked against what the model computed.

    Raises:
        NotApplicable: the block has no attention.
    """
    from layerlab.measures.support.rounding_theory import theory

    assert not isinstance(subject.stack, str)
    if layer.attention is None:
        raise NotApplicable(f"layer {layer.layer} has no attention")
    weights = weights_of(subject.stack.attention(layer.attention.name), subject)
    found = theory(replace(layer, weights=weights), subject.model)
    assert found is not None, "a block is more than the embedding"
    return found
