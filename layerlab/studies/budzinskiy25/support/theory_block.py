"""A block of a built-in model as the theory of rounding knows it, with what it reads of a text."""

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.measures.support.rounding_theory import Theory
    from layerlab.observe.tracing.records import Layer


def theory_of(layer: "Layer", subject: "LoadedModel") -> "Theory":
    """Return a traced block in the theory's terms, checked against what the model computed."""
    # Late: the list of studies needs no transformers.
    from layerlab.measures.support.rounding_theory import theory
    from layerlab.observe.architecture.head_weights import project

    assert not isinstance(subject.stack, str) and layer.block is not None
    assert layer.attention is not None
    part = subject.stack.attention(layer.attention.name)
    weights = project(
        layer.block, part.module, name=part.name, layer=part.block, config=subject.config
    )
    found = theory(replace(layer, weights=weights), subject.model)
    assert found is not None, "a block is more than the embedding"
    return found
