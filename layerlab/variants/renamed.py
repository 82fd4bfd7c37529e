"""Modules that a variant of one's own may import, under the names that layerlab 0.1 gave them."""

import re

_NEW = {
    "domain": "validation",
    "blocks.flow": "blocks.context",
    "blocks.start": "blocks.init",
    "blocks.convolution": "blocks.operations.convolution",
    "blocks.derivative": "blocks.operations.derivative",
    "blocks.piece": "blocks.operations.chunking",
    "blocks.stream": "blocks.operations.stream",
    "blocks.tap": "blocks.operations.causal_taps",
    "blocks.weighing": "blocks.operations.stream_mixing",
    "variants.series": "variants.feedforward.series_sum",
    "variants.powers": "variants.feedforward.normed_powers",
}
_KINDS = {
    "attention": ("gated", "querykey", "value"),
    "feedforward": ("polynorm", "relu2", "siaf", "widenet"),
    "models": ("canon", "pangu", "reference"),
    "norm": ("dyt", "placement", "scaling"),
    "residual": ("augmented", "depth", "history", "hyper", "laurel", "mhc", "shortcut"),
}
_NEW |= {
    f"variants.{name}": f"variants.{kind}.{name}"
    for kind, names in _KINDS.items()
    for name in names
}
_IMPORT = re.compile(
    rf"(?m)^(\s*from\s+layerlab\.)({'|'.join(re.escape(one) for one in _NEW)})(?=\s+import\b)"
)


def update_imports(source: str) -> str:
    """Write the imports of a file under the names of today; every line stays where it is.

    Source: Own.

    Example:
        >>> update_imports("from layerlab.blocks.start import linear")
        'from layerlab.blocks.init import linear'
    """
    return _IMPORT.sub(lambda found: found[1] + _NEW[found[2]], source)
