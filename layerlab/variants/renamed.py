"""Modules that a variant of one's own may import, under the names that layerlab 0.1 gave them."""

import ast

_NEW = {
    "domain": "validation",
    "blocks.flow": "blocks.context",
    "blocks.growth": "blocks.init",
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
# Names inside of modules, by the module's name of today.
_NAMES = {
    "blocks.activation": {"activated": "activate", "sloped": "apply_slope"},
    "blocks.dropout": {"mixed": "mix_bits"},
    "blocks.layer": {"made": "make_part"},
    "blocks.operations.causal_taps": {"tapped": "tap", "weighed": "weigh"},
    "blocks.operations.derivative": {"unwatched": "is_unwatched"},
    "validation": {"Domain": "Constraint", "shown": "short_repr"},
    "variants.feedforward.siaf": {
        "named": "name_activations",
        "scattered": "draw_scattered",
        "scattered_above": "draw_scattered_above",
    },
    "variants.models.pangu": {"augmented": "augment", "summed": "write_series"},
    "variants.residual.augmented": {"joined": "join"},
}


def update_imports(source: str) -> str:
    """Write the imports of a file under the names of today; every line stays where it is.

    Example:
        >>> update_imports("from layerlab.blocks.start import linear")
        'from layerlab.blocks.init import linear'
        >>> update_imports("from layerlab.domain import Domain")
        'from layerlab.validation import Constraint as Domain'
    """
    try:
        found = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.ImportFrom)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source  # Python says what is wrong with it, and where
    lines = source.splitlines(keepends=True)
    for one in found:
        package, _, module = (one.module or "").partition(".")
        if package != "layerlab" or one.level:
            continue
        names = _NAMES.get(_NEW.get(module, module), {})
        for alias in reversed(one.names):
            if new := names.get(alias.name):
                kept = "" if alias.asname else f" as {alias.name}"
                _replace(lines, alias.lineno, alias.name, new + kept, alias.col_offset)
        if module in _NEW:
            _replace(lines, one.lineno, f"layerlab.{module}", f"layerlab.{_NEW[module]}")
    return "".join(lines)


def _replace(lines: list[str], number: int, old: str, new: str, begin: int = 0) -> None:
    """Replace what stands on a line, the first time after so many bytes."""
    line = lines[number - 1].encode()
    head, rest = line[:begin].decode(), line[begin:].decode()
    lines[number - 1] = head + rest.replace(old, new, 1)
