"""Checks of what a monitor is given."""

from collections.abc import Callable
from numbers import Integral
from typing import Literal, SupportsFloat

from torch import Tensor

from layerlab.errors import UserError
from layerlab.training.monitor.alerts import Alert

OnAlarm = Literal["warn", "raise"] | Callable[[Alert], None] | None


def read_number(name: str, value: Tensor | float | None) -> float | None:
    """Return a loss or a norm as a number, for which the host waits.

    Raises:
        UserError: it is not one number.
    """
    if value is None:
        return None
    if isinstance(value, Tensor) and value.numel() == 1:
        if not value.is_complex() and not value.is_meta:
            return float(value.detach())
        dtype = str(value.dtype).removeprefix("torch.")
        raise UserError(f"{name} is a {dtype} on {value.device}, not one real number in memory")
    if isinstance(value, Tensor) or not isinstance(value, SupportsFloat):
        kind = f"{type(value).__name__}{list(getattr(value, 'shape', []))}".removesuffix("[]")
        raise UserError(f"{name} is a {kind}, not one number; type monitor.step(output.loss, norm)")
    return float(value)


def check_settings(every: int, sequences: int, tokens: int, on_alarm: OnAlarm | str) -> None:
    """Check the settings of a monitor.

    Raises:
        UserError: one is not of its kind.
    """
    for name, value, least, usual in (
        ("every", every, 1, 100),
        ("sequences", sequences, 1, 1),
        ("tokens", tokens, 2, 256),
    ):
        # True is an int, too, and would read every update.
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise UserError(
                f"{name}={value!r} is no whole number of {least} or more; type {name}={usual}"
            )
    if on_alarm not in ("warn", "raise", None) and not callable(on_alarm):
        raise UserError(
            f"on_alarm={on_alarm!r} is not known; expected 'warn', 'raise', None or a function of "
            "the alarm: type on_alarm='warn'"
        )
