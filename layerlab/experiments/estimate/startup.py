"""Measures what a run takes beside its updates: start of its process, and memory."""

import hashlib
import json
import platform
import subprocess
import sys
import time
from typing import Any

import torch

from layerlab.errors import UserError
from layerlab.system.files import write_file
from layerlab.system.hardware import cache_folder, free_memory, is_duration, machine, versions

ASSUMED = 6.0  # seconds, where nothing is measured
# A process starts in 12 times the seconds in which a run begins in it and ends: bench/runner.py.
BEGINNING = 12
TRAINER = "layerlab.training.trainer"
# What a worker imports; then it takes its device.
STARTED = """
import importlib, os, sys, time
import torch
importlib.import_module(sys.argv[2])
torch.empty(1, device=sys.argv[1])
print(time.process_time() + sum(os.times()[2:4]))
"""


def startup_seconds(device: str, module: str = TRAINER, *, measure: bool = True) -> float:
    """Return seconds until the process of a run can begin with its work.

    It is measured once for each machine and each set of versions. On a CPU it is processor time,
    as a step time is; else it is time as it passes, much of which a GPU takes to wake up.

    Args:
        module: that the process imports.
        measure: start one; else what was measured before, or 6 s.
    """
    key = [
        machine(device, 1),
        platform.node(),
        versions(),
        *([module] if module != TRAINER else []),
    ]
    name = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()
    file = cache_folder() / "start" / f"{name}.json"
    try:
        stored = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        stored = None
    if is_duration(stored):
        return float(stored)
    found = _measure(device, module) if measure else None
    if found is None:
        return ASSUMED
    try:
        write_file(file, json.dumps(found) + "\n")
    except UserError:
        pass  # a cache that cannot be written costs as much each time
    return found


def total_free_memory(device: str) -> int | None:
    """Return the free memory of all devices of a kind; None where they do not tell."""
    counts = {"cpu": 1, "cuda": torch.cuda.device_count()}
    count = counts.get(torch.device(device).type)
    return None if count is None else free_memory(device) * count


def _measure(device: str, module: str) -> float | None:
    """Measure the start of a process; None where none can be started."""
    begun = time.perf_counter()
    process: Any = subprocess.run(
        [sys.executable, "-P", "-c", STARTED, device, module],
        capture_output=True,
        text=True,
        check=False,
    )
    passed = time.perf_counter() - begun
    if process.returncode:
        return None
    return float(process.stdout.split()[-1]) if torch.device(device).type == "cpu" else passed
