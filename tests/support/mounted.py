"""A small disk of its own, or a limit on files: what finds no room there is real."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(place: Path, size: str) -> Iterator[None]:
    """A file system of `size` (as mount writes it) at an empty folder; skips where none can be."""
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def grown(place: Path, size: str) -> None:
    """Make room: the same file system, larger."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)


@contextmanager
def room(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond so many bytes: the system itself refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
