"""Where tests write."""

import os
import shutil
import tempfile
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30


def place() -> str:
    """A folder in memory where that can hold files, which also run, else the usual one.

    What tests and their browsers write goes with them and needs no disk, and they waited for one a
    twelfth of their time.
    """
    roomy = (
        os.access(MEMORY, os.W_OK)
        and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        and min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available) > ROOM
    )
    if not roomy:
        return tempfile.gettempdir()
    folder = MEMORY / f"layerlab-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    tempfile.tempdir = None  # asked for before, it was remembered
    return str(folder)
