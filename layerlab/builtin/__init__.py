"""The small trained models that come with the package, and the text that they are inspected on.

Three causal language models of one shape, trained on the same batches by
`tools.builtin_models.train`, so that what differs between their readings is the architecture and
nothing else.
"""

from pathlib import Path

NAMES = ("pre-norm", "post-norm", "llama")
DEFAULT = "pre-norm"
# Of each, as its card says; the three are as large within 0.03 %.
PARAMETERS, TOKENS = 449_000, 7_372_800
SAMPLE = Path(__file__).with_name("sample.txt")

__all__ = ["DEFAULT", "NAMES", "PARAMETERS", "SAMPLE", "TOKENS", "path"]


def path(name: str) -> Path:
    """Give the folder of a built-in model, ready for `from_pretrained`.

    Args:
        name: one of `NAMES`.

    Returns:
        A folder with configuration, weights, tokenizer and card.

    Raises:
        UserError: no built-in model has this name.

    Example:
        >>> path("llama").name
        'llama'
    """
    # Imported late: the package's own import must not depend on this one, nor this one on torch.
    from layerlab.errors import UserError

    if name not in NAMES:
        raise UserError(
            f"no built-in model is called {name!r}; expected one of {', '.join(NAMES)}: "
            f"type for example {DEFAULT}"
        )
    return Path(__file__).parent / "models" / name
