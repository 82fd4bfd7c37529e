"""Checks of the sizes of a timing: tokens, sequences, runs and twins; without torch."""

from layerlab.errors import UserError
from layerlab.validation import Constraint, short_repr

USUAL = {"batch": 1, "context": 128, "new": 32, "repetitions": 10, "threads": 1}
LEAST = {"batch": 1, "context": 1, "new": 2, "repetitions": 1, "threads": 1}
MOST = 2**20  # of any of them
SHAPE = "7b"
# What is to be equal between PanGu-pi and Llama.
ACCOUNTINGS = {
    "equal-total": "equal total parameters, the source's vocabularies",
    "fewer-layers": "fewer layers, one vocabulary",
    "equal-parameters": "equal parameters and layers, one vocabulary",
}
HEAD = 128
SHAPES: dict[str, dict[str, int]] = {
    "1b": {"width": 2048, "layers": 12},
    "7b": {"width": 4096, "layers": 29},
}


def check_sizes(**sizes: int | None) -> None:
    """Refuse sizes that cannot be, given by their names in `USUAL`; others pass, and so does None.

    Raises:
        UserError: one is too small or too large.
    """
    for name, size in sizes.items():
        if name not in LEAST or size is None:
            continue
        if size not in Constraint(kind=int, least=LEAST[name], most=MOST):
            raise UserError(
                f"{name} is {short_repr(size)}; expected a whole number from {LEAST[name]} to "
                f"{MOST:,}: type --{name} {max(LEAST[name], USUAL[name])}"
            )


def check_pair(accounting: str, shape: str, width: int | None) -> int:
    """Return the width of two twins under an accounting.

    Raises:
        UserError: no such accounting, shape or width.
    """
    if accounting not in ACCOUNTINGS:
        raise UserError(
            f"no accounting is called {short_repr(accounting)}; expected {', '.join(ACCOUNTINGS)}: "
            "type --accounting fewer-layers"
        )
    if shape not in SHAPES:
        raise UserError(
            f"no shape is called {short_repr(shape)}; expected 1b or 7b: type --shape 7b"
        )
    wide = SHAPES[shape]["width"] if width is None else width
    if wide not in Constraint(kind=int, least=HEAD) or wide % HEAD:
        raise UserError(
            f"width is {short_repr(wide)}; expected a multiple of {HEAD}, which a head takes: "
            "type --width 1024"
        )
    return wide
