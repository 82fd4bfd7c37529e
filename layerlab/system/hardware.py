"""Describes the machine: name, versions, memory and its end, fastest matrix product."""

import gc
import hashlib
import json
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch
from filelock import FileLock

from layerlab.errors import UserError
from layerlab.system.files import write_file
from layerlab.validation import expand_home
from layerlab.version import VERSION

LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FRESH = 30 * 24 * 3600.0  # seconds for which a measured peak is believed
BUDGET = 0.3  # seconds that measuring one takes
LARGEST = 8192
COMPILED = "TORCHINDUCTOR_CACHE_DIR"  # where torch keeps the code that it compiles
SHARED_DEVICE = "LAYERLAB_SHARED_DEVICE"  # set for a run beside others on its device
LONGEST = 1e9  # seconds that anything takes
# How those say it that raise a plain RuntimeError: the CPU, Apple's and Huawei's devices, cuBLAS.
_SAYINGS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_ACCELERATORS = ("cuda", "npu", "xpu")
_MOST = 200  # characters of what an error says


def machine(device: str, threads: int) -> dict[str, Any]:
    """Return the facts of the machine for a manifest.

    Args:
        device: as a recipe names it.
        threads: of a run on a CPU.

    Example:
        >>> machine("cpu", 1)["threads"]
        1
    """
    return {"processor": processor(), "device": device_name(device), "threads": threads}


def versions() -> dict[str, str | None]:
    """Return the versions of Python, layerlab and the libraries that a run computes with.

    None where one is missing.
    """
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "layerlab": VERSION,
    }
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def processor() -> str:
    """Return the name of the processor, as Linux lists it, else as Python knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), "") or platform.processor() or platform.machine() or "unknown"


def device_name(device: str | torch.device) -> str:
    """Return the name of a device: that of the GPU, or the kind."""
    torch_device = torch.device(device)
    if torch_device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(torch_device)
    return torch_device.type


def peak_memory(device: str | torch.device) -> int:
    """Return bytes: the most that tensors took on a GPU, else the most that this process took."""
    torch_device = torch.device(device)
    if torch_device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated(torch_device)
    # On Linux, what getrusage says starts at the peak of the process that started this one.
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def reset_peak_memory() -> bool:
    """Count peaks of memory from here on, and return whether this system can."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # man 5 proc
    except OSError:
        return False
    return True


def free_memory(device: str | torch.device) -> int:
    """Return the bytes that are free on a device; the machine's, where it has none of its own.

    What torch keeps on a GPU and does not use is free.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return psutil.virtual_memory().available
    unused = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    return torch.cuda.mem_get_info(place)[0] + unused


def is_device_shared() -> bool:
    """Return whether other runs were given this process's device: its speed then says nothing."""
    return os.environ.get(SHARED_DEVICE) == "1"


def cache_folder() -> Path:
    """Return layerlab's cache folder: LAYERLAB_CACHE, or one in ~/.cache."""
    given = os.environ.get("LAYERLAB_CACHE")
    return expand_home(given) if given else Path.home() / ".cache" / "layerlab"


def keep_compiled_code() -> None:
    """Have torch keep what it compiles in layerlab's cache.

    Its own place is a folder for temporary files, of a name that any user of the machine can take
    before: whatever lies there would run. A place that the user has named stays. What a linker that
    was killed has left is removed: torch would load it, and fail, for ever.
    """
    # torch, too, writes its own place into the environment, once it has looked for it.
    if Path(os.environ.get(COMPILED, "torchinductor_")).name.startswith("torchinductor_"):
        os.environ[COMPILED] = str(cache_folder() / "inductor")
    _check_headers()
    for file in Path(os.environ[COMPILED]).glob("*/*.so"):
        lock = file.parents[1] / "locks" / f"{file.name.partition('.')[0]}.lock"
        with suppress(FileNotFoundError):  # another process was first
            if not _is_linked(file) and lock.exists():
                with FileLock(lock):  # as torch does, whose linker may be at work on it
                    if not _is_linked(file):
                        file.unlink()


def _check_headers() -> None:
    """Have torch compile headers anew where others may change those that it keeps."""
    from torch._inductor import config  # late: it takes seconds
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder = Path(default_cache_dir())  # which no setting moves
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        config.cpp_cache_precompile_headers = False


def _is_linked(file: Path) -> bool:
    """Return whether a linker has come to its end: it writes the first bytes last."""
    with file.open("rb") as content:
        return bool(content.read(4).strip(b"\0"))


def stopwatch(device: str | torch.device, threads: int) -> Callable[[], float]:
    """Return a clock in seconds that waits for the device.

    A single thread on a CPU is timed by its processor time, which others do not lengthen.
    """
    torch_device = torch.device(device)
    if torch_device.type == "cpu":
        return time.process_time if threads == 1 else time.perf_counter

    def clock() -> float:
        torch.accelerator.synchronize(torch_device)
        return time.perf_counter()

    return clock


@contextmanager
def with_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads until the block ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def matmul_peak(device: str | torch.device, precision: str, threads: int) -> float:
    """Return the FLOPs per second of the fastest square matrix product measured here.

    It is measured once in 30 days for each machine, device, precision and number of threads.

    Unit: FLOPs per second.

    Raises:
        UserError: no such precision is measured.
    """
    if precision not in DTYPES:
        raise UserError(
            f"no peak is measured in {precision!r}; expected {', '.join(DTYPES)}: "
            'type precision="fp32"'
        )
    key = _key(device, precision, threads)
    name = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()
    file = cache_folder() / "peak" / f"{name}.json"
    stored = _read_fresh(file)
    if stored is not None:
        return stored
    with with_threads(threads), torch.no_grad():
        found = _fastest(torch.device(device), DTYPES[precision], stopwatch(device, threads))
    release_memory()  # which is that of the runs, where they have the same device
    try:
        write_file(file, json.dumps({"flops": found, "when": time.time(), "of": key}) + "\n")
    except UserError:
        pass  # a cache that cannot be written costs a third of a second each time
    return found


def _key(device: str | torch.device, precision: str, threads: int) -> dict[str, Any]:
    """Return the key of a measured peak: all that it depends on."""
    return {
        **machine(str(device), threads),
        "node": platform.node(),
        "precision": precision,
        "float32": torch.get_float32_matmul_precision(),
        "torch": torch.__version__,
    }


def _read_fresh(file: Path) -> float | None:
    """Return a measured peak that is still fresh."""
    try:
        found = json.loads(file.read_text("utf-8"))
        value, age = float(found["flops"]), time.time() - float(found["when"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if 0 <= age < FRESH and 0 < value < math.inf else None


def is_duration(value: Any) -> bool:
    """Return whether a value that was kept is a number of seconds.

    Example:
        >>> is_duration(0.5), is_duration(True), is_duration(float("nan"))
        (True, False, False)
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < LONGEST


def _fastest(device: torch.device, dtype: torch.dtype, clock: Callable[[], float]) -> float:
    """Return the best of larger and larger products, until the time is used up."""
    size, best, begun = 256, 0.0, clock()
    left = _square(size, device, dtype)
    while True:
        start = clock()
        torch.mm(left, left)
        taken = max(clock() - start, 1e-9)
        best = max(best, 2 * size**3 / taken)
        if clock() - begun > BUDGET:
            return best
        # The next is eight times the work, and should still be tried several times.
        if size < LARGEST and 8 * taken < BUDGET / 5:
            size *= 2
            left = _square(size, device, dtype)


def _square(size: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Multiply a matrix by itself; the random state is not touched."""
    own = torch.Generator(device).manual_seed(0)
    made = torch.randn(size, size, dtype=dtype, device=device, generator=own)
    torch.mm(made, made)
    return made


def here(device: str) -> bool:
    """Return whether this machine has such a device.

    Example:
        >>> here("cpu")
        True
    """
    try:
        named = torch.device(device)
        if named.type == "cuda":  # a tensor would start the device, in memory that is kept
            return torch.cuda.is_available() and (named.index or 0) < torch.cuda.device_count()
        torch.empty(0, device=named)
    except (RuntimeError, AssertionError):
        return False
    return True


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, of the machine or of a device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(one in str(error) for one in _SAYINGS)


def is_process_lost(error: BaseException) -> bool:
    """Return whether another process of a run did not answer, as NCCL and gloo say it."""
    return isinstance(error, torch.distributed.DistError) or "/gloo/transport/" in str(error)


def is_cut_off(error: BaseException) -> bool:
    """Return whether what an update waits for, a process or a compiler, has ended too soon."""
    from torch._dynamo.exc import BackendCompilerFailed  # late: it takes seconds

    return is_process_lost(error) or isinstance(error, BackendCompilerFailed)


class CatchOutOfMemory:
    """Catches an out-of-memory error, and no other.

    Args:
        bears: even that one only where this is true.

    Attributes:
        found: whether there was one.
    """

    def __init__(self, *, bears: bool = True) -> None:
        self.bears, self.found = bears, False

    def __enter__(self) -> "CatchOutOfMemory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        self.found = self.bears and error is not None and is_out_of_memory(error)
        return self.found


def release_memory() -> None:
    """Free the memory that earlier computation left behind."""
    gc.collect()
    if torch.cuda.is_initialized():
        # What cuBLAS works in, up to 64 MiB, counts as memory of tensors and is kept.
        torch._C._cuda_clearCublasWorkspaces()
    for name in _ACCELERATORS:
        device = getattr(torch, name, None)
        if device is not None and device.is_available() and device.is_initialized():
            device.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


@contextmanager
def explain_memory(advice: str) -> Iterator[None]:
    """Turn running out of memory into one line that says what to do.

    Args:
        advice: what the user may type or write so that less is needed.

    Raises:
        UserError: memory ran out; of several processes it names the one.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = " ".join(str(error).split())[:_MOST]
        raise UserError(
            f"out of memory{_process()} ({message or type(error).__name__}); {advice}"
        ) from error


def _process() -> str:
    """Say which process this is, if there are several."""
    joined = torch.distributed
    if not joined.is_available() or not joined.is_initialized() or joined.get_world_size() == 1:
        return ""
    return f" in process {joined.get_rank()} of {joined.get_world_size()}"
