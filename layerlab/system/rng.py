"""Saves and restores all random states of a process."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

# Those of torch's devices that keep one state per device.
_DEVICES = ("cuda", "npu", "xpu")


def random_state() -> dict[str, Any]:
    """Return the states of torch on every device in use, of numpy and of Python, in plain types.

    Example:
        >>> before = random_state()
        >>> first = torch.rand(())
        >>> restore_random(before)
        >>> bool(first == torch.rand(()))
        True
    """
    version, numbers, gauss = random.getstate()
    kind, keys, position, held, cached = np.random.get_state(legacy=True)
    return {
        **device_state(),
        "numpy": [
            str(kind),
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            position,
            held,
            cached,
        ],
        "python": [version, torch.tensor(numbers), gauss],
    }


def device_state() -> dict[str, Any]:
    """Return the states of torch alone, which is what a forward pass draws from."""
    found: dict[str, Any] = {"torch": torch.get_rng_state()}
    for name in _DEVICES:
        device = getattr(torch, name, None)
        # A device that nobody has used yet has no state to lose, and asking would start it.
        if device is not None and device.is_available() and device.is_initialized():
            found[name] = list(device.get_rng_state_all())
    if torch.backends.mps.is_available():
        found["mps"] = torch.mps.get_rng_state()
    return found


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Put all states back when the block ends, which sets its own seeds; also a decorator."""
    before = random_state()
    try:
        yield
    finally:
        restore_random(before)


@contextmanager
def keep_device_state() -> Iterator[None]:
    """Put the states of torch back when the block ends, whatever it drew."""
    before = device_state()
    try:
        yield
    finally:
        restore_random(before)


@contextmanager
def draw_with_seed(seed: int) -> Iterator[None]:
    """Draw random numbers from this seed until the block ends, and restore the state."""
    with keep_device_state():
        torch.manual_seed(seed)
        yield


def restore_random(state: dict[str, Any]) -> None:
    """Restore what `random_state` or `device_state` returned.

    States of devices that are not here are left out.
    """
    torch.set_rng_state(state["torch"])
    for name in _DEVICES:
        device = getattr(torch, name, None)
        if name in state and device is not None and device.is_available():
            for number, one in enumerate(state[name][: device.device_count()]):
                device.set_rng_state(one, number)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
    if "numpy" in state:
        kind, keys, position, held, cached = state["numpy"]
        np.random.set_state((kind, keys.numpy().astype(np.uint32), position, held, cached))
    if "python" in state:
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers.tolist()), gauss))
