"""Memory that a model takes: weights, cache, and the peak of a pass."""

import ctypes
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.latency.candidates import Candidate
from layerlab.latency.config import LatencyConfig
from layerlab.loading.weights.precision import MEMORY_SHARE
from layerlab.model.cost.cost import account
from layerlab.system.hardware import free_memory

STATES = ("keys", "values", "conv_states", "recurrent_states")


def weight_bytes(model: Any) -> int:
    """Return the bytes of all parameters; what is tied counts once.

    weights = sum over parameters of numbers * bytes of a number
    """
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def cache_bytes(cache: Any) -> int:
    """Return the bytes of all that a cache holds."""
    return sum(one.numel() * one.element_size() for one in _hold(cache))


def cache_numbers(one: Candidate, batch: int, tokens: int) -> int:
    """Return how many numbers the cache of a variant comes to hold.

    batch * (2 * layers * kv_heads * head_width * tokens + features kept by convolutions)
    """
    if one.design is None:
        return 0
    shape = one.design.shape
    each = 2 * shape.layers * shape.kv_heads * shape.head_width * tokens
    return batch * (each + account(one.design.spec, shape).cached)


def check_room(candidates: Sequence[Candidate], setting: LatencyConfig) -> None:
    """Refuse, before anything is built, variants that do not fit into memory together.

    Raises:
        UserError: says what is needed and what there is.
    """
    weights, caches = [], []
    for one in candidates:
        cost = one.account()
        weights.append(cost.parameters if cost else 0)
        caches.append(cache_numbers(one, setting.batch, setting.cached))
    size = setting.dtype.itemsize
    # On a CPU weights move between repetitions, and meanwhile the largest has two places.
    needed = size * (sum(weights) + max(caches))
    room = MEMORY_SHARE * free_memory(setting.device)
    if needed > room:
        raise UserError(
            f"{' and '.join(one.name for one in candidates)} take {needed / 1e9:.1f} GB in "
            f"{setting.kind} (weights {size * sum(weights) / 1e9:.1f}, cache "
            f"{size * max(caches) / 1e9:.1f}), and {room / 1e9:.1f} GB may be used here; type a "
            "smaller --width, or --dtype bfloat16"
        )


def growth(run: Callable[[], object], device: str) -> int | None:
    """Return the bytes by which a run raises the peak above what was held; None where unknown."""
    torch_device = torch.device(device)
    gc.collect()
    if torch_device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(torch_device)
        before = torch.cuda.memory_allocated(torch_device)
        run()
        return torch.cuda.max_memory_allocated(torch_device) - before
    if torch_device.type != "cpu":
        run()
        return None
    _trim()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        run()
        return max(0, _status("VmHWM") - before)
    except (OSError, KeyError):
        return None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    found = {line.split(":")[0]: line.split() for line in lines}
    return int(found[field][1]) * 1024


def _trim() -> None:
    """Give back freed memory that the allocator keeps, since a peak would hide in it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass


def _hold(cache: Any) -> Iterator[Tensor]:
    for layer in cache.layers:
        for name in STATES:
            found = getattr(layer, name, None)
            each = found.values() if isinstance(found, dict) else [found]
            yield from (one for one in each if isinstance(one, Tensor))
    # MiniMax has the states of its linear attention beside its layers.
    yield from (one for one in getattr(cache, "linear_cache", ()) if isinstance(one, Tensor))
