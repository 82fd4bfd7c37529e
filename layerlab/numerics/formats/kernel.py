"""The fused kernel of a CPU: `rounding.cpp`, compiled on first use where a compiler is there.

It is a plain shared library behind ctypes, so that a C++ compiler is all it takes. It is built in a
temporary folder and moved to the cache in one step: nobody sees half of it and nobody waits for
anybody. Its name there holds the hash of its bytes: what was damaged since is built anew. What
stands in the way is kept as a reason, and pure torch does the work.
"""

import ctypes
import hashlib
import math
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.numerics.formats.formats import Format
from layerlab.numerics.formats.grid import MODES, Grid, Mode, grid
from layerlab.numerics.formats.round_reference import noise

SOURCE = Path(__file__).with_name("rounding.cpp")
BASIC = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fwrapv", "-fopenmp-simd")
# Tried in this order: not every compiler knows how to use all threads, or its own processor.
FLAGS = (
    ("-march=native", "-mprefer-vector-width=512", "-fopenmp"),
    ("-march=native", "-fopenmp"),
    ("-fopenmp",),
    (),
)
PATIENCE_S = 120
OFF = "turned off by LAYERLAB_KERNEL=0"
# Fewer elements than this are not worth a second thread.
GRAIN = 1 << 16
ENTRIES = {torch.float32: "layerlab_round_32", torch.float64: "layerlab_round_64"}
# To three digits, ties to even; overflow is not looked at.
KNOWN_FORMAT = Format("t3", 3, None, None, math.inf)
KNOWN = {9.0: 8.0, 11.0: 12.0, -13.0: -12.0, 15.0: 16.0, 16.5: 16.0, -0.0: -0.0, 2.0: 2.0}


class _Grid(ctypes.Structure):
    _fields_ = [(field.name, ctypes.c_int64) for field in fields(Grid)]


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel, or why there is none.

    Attributes:
        path: where it lies; None where there is none, or where it could not be kept.
        reason: why there is none; None where there is one.
        library: what was loaded.
    """

    path: Path | None
    reason: str | None
    library: Any = None


_lock = Lock()
_found: list[Kernel] = []


def kernel() -> Kernel:
    """Return the kernel of this process, compiled or found in the cache at the first call.

    `LAYERLAB_KERNEL=0` turns it off.
    """
    if os.environ.get("LAYERLAB_KERNEL") == "0":
        return Kernel(None, OFF)
    with _lock:
        if not _found:
            _found.append(_obtain())
        return _found[0]


class Launch:
    """The kernel for one format, mode and carrier, ready to be called."""

    def __init__(self, library: Any, grid: Grid, mode: Mode, dtype: torch.dtype) -> None:
        self._call = getattr(library, ENTRIES[dtype])
        self._grid = _Grid(*map(int, astuple(grid)))
        self._address = ctypes.addressof(self._grid)
        self._mode = MODES.index(mode)
        self._draws = mode == "stochastic"

    def draw(self, x: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """Return what stochastic rounding draws with, a word each; None in the other modes."""
        return noise(x, generator) if self._draws else None

    def __call__(self, x: Tensor, out: Tensor, noise: Tensor | None = None) -> None:
        """Round contiguous x into contiguous out, which may be x."""
        length = x.numel()
        self._call(
            x.data_ptr(),
            None if noise is None else noise.data_ptr(),
            out.data_ptr(),
            length,
            self._address,
            self._mode,
            1 if length < GRAIN else torch.get_num_threads(),
        )


def flags() -> frozenset[str]:
    """Return the features of the processor, as the Linux kernel lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return frozenset()
    named = [line for line in lines if line.startswith(("flags", "Features"))]
    return frozenset(named[0].split(":", 1)[1].split()) if named else frozenset()


def compiler() -> str | None:
    """Return the C++ compiler that would be used."""
    wanted = os.environ.get("CXX")
    names = [wanted] if wanted else ["g++", "clang++", "c++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def _obtain() -> Kernel:
    try:
        folder = _cache()
        return _keep(folder) or _build(folder)
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Kernel(None, lines[-1])


def _keep(folder: Path) -> Kernel | None:
    """Return the kernel of an earlier process; None where it is damaged, does not load or fails."""
    for path in sorted(folder.glob("rounding-*.so")):
        if not _ours(path):
            continue
        # Before it is loaded: a library that was cut off may take the whole process down.
        if path.name != _name(path):
            with suppress(OSError):
                path.unlink()
            continue
        with suppress(OSError, RuntimeError, AttributeError):
            return Kernel(path, None, _load(path))
    return None


def _name(path: Path) -> str:
    """Return the name of a library in the cache."""
    return f"rounding-{hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()}.so"


def _build(cache: Path) -> Kernel:
    """Compile in a temporary folder, then move the result to where it is kept, if possible."""
    with _workshop(cache) as folder:
        fresh = folder / "rounding.so"
        _compile(fresh)
        library = _load(fresh)
        if folder.parent != cache:
            return Kernel(None, None, library)
        kept = fresh.replace(cache / _name(fresh))
    return Kernel(kept, None, library)


@contextmanager
def _workshop(parent: Path) -> Iterator[Path]:
    """Make a new folder in this one, so that moving is one step.

    It is elsewhere if this one cannot be written.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = tempfile.mkdtemp(dir=parent, prefix="draft-")
    except OSError:
        folder = tempfile.mkdtemp(prefix="layerlab-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compile(target: Path) -> None:
    program = compiler()
    if program is None:
        raise RuntimeError("no C++ compiler (g++, clang++) was found")
    for options in FLAGS:
        done = subprocess.run(
            [program, *BASIC, *options, str(SOURCE), "-o", str(target)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode == 0:
            return
    lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
    raise RuntimeError(f"{program} could not compile the kernel: {lines[0]}")


def _load(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    for entry in ENTRIES.values():
        call = getattr(library, entry)
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        call.argtypes = [pointer, pointer, pointer, ctypes.c_int64, pointer, integer, integer]
        call.restype = None
    _try(library)
    return library


def _try(library: Any) -> None:
    """Round a few numbers without torch, whose operations may be under emulation just now."""
    for dtype, entry in ENTRIES.items():
        size = torch.finfo(dtype).bits // 8
        given, wanted = (np.array(list(one), f"f{size}") for one in (KNOWN, KNOWN.values()))
        found = np.zeros_like(given)
        numbers = _Grid(*map(int, astuple(grid(KNOWN_FORMAT, "nearest", dtype))))
        address, mode = ctypes.addressof(numbers), MODES.index("nearest")
        getattr(library, entry)(
            given.ctypes.data, None, found.ctypes.data, len(given), address, mode, 1
        )
        if found.tobytes() != wanted.tobytes():
            raise RuntimeError("the compiled kernel rounds wrongly")


def _cache() -> Path:
    """Return the cache folder for this source on this kind of processor.

    It does not depend on the compiler, which may be gone.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    home = Path(cache) if cache else Path.home() / ".cache"
    parts = [SOURCE.read_text("utf-8"), platform.system(), platform.machine(), BASIC, FLAGS]
    text = repr([*parts, sorted(flags())])
    return home / "layerlab" / "kernel" / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _ours(path: Path) -> bool:
    """Return whether the file exists and nobody else put it there: loading it runs it."""
    try:
        owner = path.stat().st_uid
    except OSError:
        return False
    return not hasattr(os, "getuid") or owner == os.getuid()
