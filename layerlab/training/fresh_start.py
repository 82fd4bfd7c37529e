"""A process that has carried out a run, made as good as a new one for the next."""

import ctypes
import gc
import sys

import psutil
import torch
from accelerate.state import AcceleratorState

from layerlab.system.hardware import release_memory, reset_peak_memory

# What a run imports is imported before it: it is not what one left behind.
from layerlab.training import trainer  # noqa: F401

# Bytes that a run may leave behind before its process is given up.
LEFT = 512 * 2**20
LEFT_ON_GPU = 16 * 2**20


class FreshStart:
    """State of a new process: its seed, and nothing in memory but what was imported."""

    def __init__(self) -> None:
        self._seed = torch.initial_seed()
        # What was imported stays: to look through it for what a run left takes longer than all else
        # between two runs.
        gc.freeze()
        # What is given back later would hide as much that a run left.
        _give_back()
        self._memory = _resident()

    def restore(self) -> bool:
        """Bring it back, and return whether the next run finds what it would in a new process."""
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        AcceleratorState._reset_state(reset_partial_state=True)
        torch.manual_seed(self._seed)
        release_memory()
        _give_back()
        left = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
        kept = _resident() - self._memory
        return reset_peak_memory() and kept <= LEFT and left <= LEFT_ON_GPU


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _give_back() -> None:
    """Return freed memory to the system, so that the next run's peak is its own."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
