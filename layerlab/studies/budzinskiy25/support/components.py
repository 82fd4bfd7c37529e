"""The components that the places of a model are counted in."""

from collections.abc import Iterable

STREAM = "residual stream"
EMBEDDING = "embedding + position"
ROTARY = "rotary positions"
SCORES = "scores and softmax"
WEIGHTED = "weighted sum"
PROJECTED = "queries, keys, values"
ATTENDED = "attention output"
NORMS = "norms"
FEEDFORWARD = "feed-forward"
LOGITS = "logits"
STORED = "weights"
COMPONENTS = (
    STORED,
    STREAM,
    EMBEDDING,
    ROTARY,
    SCORES,
    WEIGHTED,
    PROJECTED,
    ATTENDED,
    NORMS,
    FEEDFORWARD,
    LOGITS,
)
# What no component is known of.
OTHER = "other places"


def describe_missing(model: str, names: Iterable[str]) -> str:
    """Describe the components of which a model rounds nothing that was found."""
    return (
        f"Of {model} no rounded result was found that belongs to {', '.join(names)}: it has none, "
        f"keeps it in float32, or it is among the {OTHER}."
    )
