"""Checks of options of a model and of its text, without torch: they cost no time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.parse import one_line
from layerlab.validation import short_repr

DTYPES = ("float32", "float64", "bfloat16", "float16")
# Kinds of devices that torch may find here; whether it does, only torch can tell.
KINDS = {"auto", "cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "maia", "meta", "privateuseone"}
BUSY = ("busy", "unavailable")  # CUDA, of a GPU that another process has for itself
LEAST = {"samples": 1, "context": 2}
USUAL = {"samples": 4, "context": 512}
# As many samples as a measure of all tokens together needs.
AUTO = "auto"


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


def refuse_device(name: str, error: BaseException) -> UserError:
    """Return the error of a device that holds no number: it is full, busy, or not here."""
    from layerlab.system.hardware import is_out_of_memory  # late: it needs torch

    if not is_out_of_memory(error) and not all(word in str(error) for word in BUSY):
        if name.partition(":")[0] not in KINDS:
            return missing_device(name)
        return UserError(
            f"there is no device {short_repr(name)} here that PyTorch can use; type --device cpu"
        )
    return UserError(
        f"device {short_repr(name)} is full or busy ({one_line(error)}); end what else runs there, "
        "or name another: type --device cuda:1, --device cpu or --device auto"
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


def check_lengths(**given: Any) -> None:
    """Refuse impossible lengths, given by their names in `LEAST`; None is the usual one.

    Raises:
        UserError: one is no whole number, or too small.
    """
    for name, value in given.items():
        least = LEAST[name]
        if name == "samples" and value == AUTO:
            continue
        if value is not None and (not isinstance(value, int) or value < least):
            raise UserError(
                f"{name} is {value!r}; expected a whole number, at least {least}: "
                f"type {name}={USUAL[name]}"
            )


def parse_samples(text: str) -> int | str:
    """Return how many samples are asked for: a number, or `AUTO`.

    Raises:
        UserError: it is neither.
    """
    if text == AUTO:
        return text
    if not text.lstrip("-").isdecimal() or int(text) < LEAST["samples"]:
        given = text if text.lstrip("-").isdecimal() else repr(text)
        raise UserError(
            f"samples is {given}; expected a whole number, at least {LEAST['samples']}, or auto: "
            "type --samples auto"
        )
    return int(text)


def is_random(model: Any) -> bool:
    """Return whether a name stands for a variant or a preset with random weights.

    Example:
        >>> is_random("gpt2-large:"), is_random("gpt2:layers=3"), is_random("gpt2")
        (True, True, False)
    """
    return isinstance(model, str) and ":" in model and not Path(model).exists()


def check_unread(given: Mapping[str, Any]) -> None:
    """Refuse options beside `--weights` that mean nothing there.

    Args:
        given: options that speak of a text, or of how a model is loaded, with what the user gave.

    Raises:
        UserError: one of them was given.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise UserError(
                f"--weights reads no text and runs no model, so that {name} means nothing beside "
                f"it; leave {name} out, or --weights (in Python weights=True)"
            )
