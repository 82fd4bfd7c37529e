"""Compiles the kernels for compute capability 9.0, which needs no GPU, and says what came of it.

`TRITON_INTERPRET=0 python -m tests.numerics.formats.compile_triton`
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from layerlab.numerics.formats.formats import BLOCKS, find
from layerlab.numerics.formats.grid import grid
from layerlab.numerics.formats.triton import blocks as triton_blocks
from layerlab.numerics.formats.triton import integers as triton_integers
from layerlab.numerics.formats.triton import kernel as triton_kernel
from layerlab.numerics.formats.triton import peaks as triton_peaks

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {torch.int32: "*i32", torch.int64: "*i64"}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
# What warps hand each other to find a largest number; elements are never exchanged.
SHARED = 512
SCALAR = [("bf16", "nearest"), ("fp8_e4m3", "nearest"), ("t11", "up"), ("bf16", "stochastic")]


def compile(kernel: Any, arguments: tuple[Any, ...]) -> Any:
    """Compile as a launch with these arguments would, tensors aligned to sixteen bytes."""
    constant = kernel.fn.__annotations__
    signature, values, attributes = {}, {}, {}
    for place, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=True)):
        tensor = isinstance(value, torch.Tensor)
        if name in constant or value is None or (not tensor and value == 1):
            signature[name], values[(place,)] = "constexpr", value
            continue
        signature[name] = POINTERS[value.dtype] if tensor else "i32"
        if tensor or value % 16 == 0:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(
        fn=kernel, signature=signature, constexprs=values, attrs=attributes
    )
    return triton.compile(source, TARGET, {"num_warps": 4, "enable_fp_fusion": False})


def resources(compiled: Any) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return " ".join(re.findall(r"(?:REG|STACK|LOCAL):\d+", said))


def report(name: str, compiled: Any) -> None:
    code, used = compiled.asm["ptx"], resources(compiled)
    loads = set(re.findall(r"ld\.global\.(v4\.b32|v2\.b64)", code))
    shared = compiled.metadata.shared
    good = loads and "STACK:0" in used and "LOCAL:0" in used and shared <= SHARED
    # Flushed to zero, or fused, a product would have other bits.
    good = good and not re.search(r"\.ftz|fma", code)
    print(name, *loads, used, f"SHARED:{shared}", "ok" if good else "not ok")


def main() -> None:
    made: list[Any] = []

    def keep(kernel: Any, x: Any, programs: int, *rest: Any) -> None:
        made.append((kernel, (x, *rest)))

    for module in (triton_kernel, triton_blocks, triton_integers, triton_peaks):
        module.launch = keep
    x = torch.empty(256, 4096)
    for name, mode in SCALAR:
        for y in (x, x.double()) if name != "t11" else (x,):
            numbers = grid(find(name), mode, y.dtype)
            one = triton_kernel.TritonLaunch(numbers, mode, y.dtype)
            one(y, y, one.draw(y, None))
            report(f"{name} {mode} {y.dtype}", compile(*made.pop()))
    for name, mode in [
        *((name, "nearest") for name in ("mxfp4", "mxfp8_e4m3", "nvfp4")),
        ("mxfp4", "stochastic"),
    ]:
        triton_blocks.round_blocks(x, BLOCKS[name], mode)
        report(f"{name} {mode}", compile(*made.pop()))
    for name in ("int8", "int8:channel", "int4:group128:asymmetric", "int8:channel:axis-2"):
        triton_integers.round_integers(x, find(name), "nearest")
        report(name, compile(*made.pop()))
    triton_blocks.round_blocks(x, BLOCKS["nvfp4"], "nearest")
    report("ends of a tensor", compile(*made[-2]))


if __name__ == "__main__":
    main()
