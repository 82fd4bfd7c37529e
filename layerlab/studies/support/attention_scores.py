"""Checks that an attention is one of queries and keys with rows that sum to 1."""

from typing import Any

from layerlab.errors import NotApplicable


def check_scores(attended: Any) -> None:
    """Check that scores are products of queries and keys, and nothing else.

    Raises:
        NotApplicable: they are not handed over, or something is added, as ALiBi does.
    """
    from layerlab.observe.tracing.attention.tiles import ALL, adds_nothing

    if attended.query is None or attended.key is None:
        raise NotApplicable("its attention hands over neither queries nor keys")
    if not adds_nothing(attended, ALL, attended.allowed_keys()):
        raise NotApplicable(
            "its attention adds a bias to scores, so that they are not those of queries and keys"
        )


def check_rows(attended: Any) -> None:
    """Check that the rows of the attention matrix sum to 1.

    Where they do not its norm may be below 1, and its values may differ more behind it than lambda
    allows: what tokens share is no longer left alone.

    Raises:
        NotApplicable: sinks take a part of them.
    """
    from layerlab.measures.support.sublayers.sublayer_bounds import SINKS

    if not attended.sums_to_one:
        raise NotApplicable(SINKS)
