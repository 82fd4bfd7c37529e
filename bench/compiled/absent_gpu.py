"""An H100 that is not there: PyTorch compiles for it, and runs nothing.

It takes a build of PyTorch for CUDA 13, with the triton that comes with it, and gcc.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

LIBRARY = "libcuda.so.1"
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=80 << 30,
    L2_cache_size=50 << 20,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
)


def pretend() -> None:
    """Make torch take a machine without a GPU for one with an H100.

    Python is started again, with its driver.
    """
    started = LIBRARY in os.environ.get("LD_PRELOAD", "")
    if torch.cuda.is_available() and not started:
        return
    if torch.version.cuda is None:
        sys.exit(f"torch {torch.__version__} is built without CUDA; expected a build for CUDA 13")
    if not started:
        _start_again()
    atexit.register(shutil.rmtree, os.environ["LD_LIBRARY_PATH"])
    _answer()
    _leave_out_runs()


def _start_again() -> None:
    import triton

    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    folder = Path(tempfile.mkdtemp())
    driver = folder / LIBRARY
    source = Path(__file__).with_name("driver.c")
    command = ["gcc", "-shared", "-fPIC", "-w", f"-I{headers}", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run([*command, "-o", str(driver), str(source)], check=True)
    found = {"LD_PRELOAD": str(driver), "LD_LIBRARY_PATH": str(folder)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **found})


def _answer() -> None:
    """Answer what torch asks of a device, in Python."""
    from torch._dynamo.device_interface import CudaInterface

    class Nothing:
        def __init__(self, *given: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *given: Any) -> None: ...

    stream = SimpleNamespace(stream_id=0, device_index=0, device_type=1, cuda_stream=0)
    answers = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": PROPERTIES,
        "get_device_capability": (9, 0),
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "mem_get_info": (80 << 30, 80 << 30),
        "current_stream": stream,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        **dict.fromkeys(("synchronize", "set_device", "set_rng_state", "_lazy_init")),
    }
    for name, answer in answers.items():
        function = _always(answer)
        setattr(torch.cuda, name, function)
        for owner in (CudaInterface, CudaInterface.Worker):
            for known in (name, name.removeprefix("_")):
                if hasattr(owner, known):
                    setattr(owner, known, staticmethod(function))
    torch.cuda.device = CudaInterface.device = Nothing  # type: ignore[misc,assignment]
    CudaInterface.get_raw_stream = staticmethod(_always(0))  # type: ignore[method-assign]
    torch._C._cuda_hasPrimaryContext = _always(False)
    torch.accelerator.is_available = _always(False)


def _always(answer: Any) -> Any:
    return lambda *given, **options: answer


def _leave_out_runs() -> None:
    """Leave out what a compiler tries on the device itself."""
    import torch._inductor.config as config
    from torch._inductor.fx_passes import fuse_attention, joint_graph

    config.shape_padding = False
    fuse_attention._get_sfdp_patterns = lambda *given: iter(())
    folder = joint_graph.UniformValueConstantFolder
    deduce = folder._deduce_value

    def on_processor(self: Any, node: Any) -> Any:
        kept = node.kwargs
        node.kwargs = {**kept, "device": torch.device("cpu")} if "device" in kept else kept
        try:
            return deduce(self, node)
        finally:
            node.kwargs = kept

    folder._deduce_value = on_processor
