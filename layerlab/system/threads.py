"""How many threads torch works with: on purpose, because contended threads are slower than one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

# Below this the matrices of a block are too small to share: handing them over costs more.
SMALL_PARAMETERS = 20_000_000


@contextmanager
def threads(parameters: int) -> Iterator[int]:
    """One thread for a small model, one per physical core for a large one; then as before.

    OMP_NUM_THREADS, where it is set, is obeyed.

    Args:
        parameters: of the model.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        cores = psutil.cpu_count(logical=False) or before
        torch.set_num_threads(1 if parameters < SMALL_PARAMETERS else min(cores, before))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
