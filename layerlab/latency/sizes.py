"""How many tokens, sequences and runs are timed; checked without torch, so that it is quick."""

from layerlab.errors import UserError
from layerlab.validation import short_repr

USUAL = {"batch": 1, "context": 128, "new": 32, "repetitions": 10, "threads": 1}
LEAST = {"batch": 1, "context": 1, "new": 2, "repetitions": 1, "threads": 1}
MOST = 2**20  # of any of them


def check_sizes(**sizes: int | None) -> None:
    """Refuse sizes that cannot be, given by their names in `USUAL`; others pass, and so does None.

    Raises:
        UserError: one is too small or too large.
    """
    for name, size in sizes.items():
        if name in LEAST and size is not None and not LEAST[name] <= size <= MOST:
            raise UserError(
                f"{name} is {short_repr(size)}; expected a whole number from {LEAST[name]} to "
                f"{MOST:,}: type --{name} {max(LEAST[name], USUAL[name])}"
            )
