"""Laws that a variant cannot keep by construction: the one place where that is said, with why."""

from layerlab.variants.inventory import variants

EXEMPT: dict[str, dict[str, str]] = {
    "projection": {
        "canon": "a convolution stands between its matrices and the scores, which the measure says",
    },
}
"""Reasons by law and variant."""


def bound(law: str) -> list[str]:
    """The variants that a law holds for: all that there are, less the exempt."""
    return [name for name in variants() if name not in EXEMPT.get(law, {})]
