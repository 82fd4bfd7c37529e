"""Settings of a timing: device, precision, number of tokens and of runs."""

import os
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch

from layerlab.errors import UserError
from layerlab.latency.sizes import USUAL, check_sizes
from layerlab.loading.options import check_dtype
from layerlab.loading.weights.precision import DTYPES
from layerlab.validation import short_repr


@dataclass(frozen=True, kw_only=True)
class LatencyConfig:
    """The settings that all candidates share.

    Attributes:
        device: cpu, cuda, cuda:N or mps.
        kind: number format of weights and cache, as `measures.checkpoint.DTYPES` has them.
        threads: of a CPU; with one, processor time is measured, which others do not lengthen.
        batch: sequences side by side.
        context: tokens of the prompt.
        new: tokens that follow it: the first is the prompt's, each other takes a step.
        repetitions: of every candidate, in turns.
        seed: of the prompts.
    """

    device: str = "cpu"
    kind: str = "float32"
    threads: int = USUAL["threads"]
    batch: int = USUAL["batch"]
    context: int = USUAL["context"]
    new: int = USUAL["new"]
    repetitions: int = USUAL["repetitions"]
    seed: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """Return the number format."""
        return DTYPES[self.kind]

    @property
    def tokens(self) -> int:
        """Return the number of positions that a sequence takes."""
        return self.context + self.new

    @property
    def cached(self) -> int:
        """Return the tokens in the cache in the end; the last new one is not read any more."""
        return self.tokens - 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and texts."""
        return asdict(self)


def latency_config(
    *, device: str | None = None, dtype: str | None = None, threads: int | None = None, **sizes: int
) -> LatencyConfig:
    """Return a setting in which what was left out is filled in.

    Args:
        device: a GPU where there is one, if left out.
        dtype: bfloat16 on a GPU and float32 on a CPU, if left out.
        threads: as OMP_NUM_THREADS says, else one per physical core, if left out.
        sizes: the other fields of `LatencyConfig`.

    Raises:
        UserError: no such device or number format, or a size that cannot be.
    """
    chosen = _place(device)
    kind = dtype or ("float32" if chosen == "cpu" else "bfloat16")
    check_dtype(kind)
    count = (
        threads
        if threads is not None
        else threads_asked_for() or psutil.cpu_count(logical=False) or 1
    )
    check_sizes(**sizes, threads=count)
    return LatencyConfig(device=chosen, kind=kind, threads=count, **sizes)


def threads_asked_for() -> int | None:
    """Return the threads that OMP_NUM_THREADS asks for; None if unset or not a number."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(given) if given.isdecimal() and int(given) else None


def _place(device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError):
        raise UserError(
            f"there is no device {short_repr(device)} to time on; expected cpu, cuda, cuda:N or "
            "mps: type --device cpu"
        ) from None
    return device
