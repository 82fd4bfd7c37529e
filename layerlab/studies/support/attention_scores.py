"""Whether the scores of an attention are products of queries and keys alone."""

from typing import Any

from layerlab.errors import NotApplicable


def check_scores(attended: Any) -> None:
    """Check that scores are products of queries and keys, and nothing else.

    Raises:
        NotApplicable: they are not handed over, or something is added, as ALiBi does.
    """
    from layerlab.observe.tracing.attention_tiles import ALL, adds_nothing

    if attended.query is None or attended.key is None:
        raise NotApplicable("its attention hands over neither queries nor keys")
    if not adds_nothing(attended, ALL, attended.allowed_keys()):
        raise NotApplicable(
            "its attention adds a bias to scores, so that they are not those of queries and keys"
        )
