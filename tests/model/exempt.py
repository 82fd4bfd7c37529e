"""Laws that a variant cannot keep by construction: the one place where that is said, with why."""

from layerlab.variants.registry import variants

EXEMPT: dict[str, dict[str, str]] = {
    "memory": {
        "attention-residuals": "it attends to every earlier sublayer, so it keeps what each wrote",
        "denseformer": "it mixes what every earlier block gave, so it keeps them all",
    },
    "projection": {
        "canon": "a convolution stands between its matrices and the scores, which the measure says",
    },
}
"""Reasons by law and variant."""


def bound(law: str) -> list[str]:
    """The variants that a law holds for: all that there are, less the exempt."""
    return [name for name in variants() if name not in EXEMPT.get(law, {})]
