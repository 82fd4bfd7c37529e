"""Where a model computes and in which precision, as a user types it; checked without torch."""

from layerlab.errors import UserError
from layerlab.validation import short_repr

DTYPES = ("float32", "float64", "bfloat16", "float16")
# Kinds of devices that torch may find here; whether it does, only torch can tell.
KINDS = {"auto", "cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "maia", "meta", "privateuseone"}


def check_device(name: str | None) -> str | None:
    """Return the name of a device; one that no machine has is refused.

    Raises:
        UserError: there is no such kind of device, or what follows its colon is no number.

    Example:
        >>> check_device("cuda:1")
        'cuda:1'
    """
    if name is not None:
        kind, colon, number = name.partition(":")
        if kind not in KINDS or (colon and not number.isdecimal()):
            raise missing_device(name)
    return name


def missing_device(name: str) -> UserError:
    """Return the error that this machine has no such device."""
    return UserError(
        f"device {short_repr(name)} is not here; expected cpu, cuda, cuda:N, mps or auto"
    )


def check_dtype(name: str | None) -> str | None:
    """Return the precision that weights are loaded in; one that there is not is refused.

    Raises:
        UserError: there is no such precision.
    """
    if name is not None and name not in DTYPES:
        raise UserError(
            f"dtype is {short_repr(name)}; expected {', '.join(DTYPES)}: type --dtype float32"
        )
    return name
