"""Compiles the kernels for compute capability 9.0, which needs no GPU, and says what came of it.

`TRITON_INTERPRET=0 python -m tests.blocks.operations.compile_sinkhorn`
"""

from typing import Any

import triton

from layerlab.blocks.operations import sinkhorn_kernels
from tests.numerics.formats.compile_triton import TARGET, resources

WHOLE = ("count", "matrices", "iterations")
EXCHANGES = ("bar.sync", "shfl.sync")


def compile(kernel: Any, side: int) -> Any:
    """Compile as a launch with tensors aligned to sixteen bytes would."""
    sides = {"side": side, "block": sinkhorn_kernels.BLOCK}
    signature, values, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in sides:
            signature[name], values[(place,)] = "constexpr", sides[name]
        elif name in WHOLE or name == "guard":
            signature[name] = "fp32" if name == "guard" else "i32"
        else:
            signature[name], attributes[(place,)] = "*fp32", [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(
        fn=kernel, signature=signature, constexprs=values, attrs=attributes
    )
    return triton.compile(source, TARGET, {"num_warps": sinkhorn_kernels.WARPS})


def main() -> None:
    for name in ("_balance", "_balance_gradient"):
        for side in (2, 4):
            made = compile(getattr(sinkhorn_kernels, name), side)
            exchanged = sum(made.asm["ptx"].count(one) for one in EXCHANGES)
            shared = made.metadata.shared
            print(name, side, resources(made), f"shared:{shared} exchanged:{exchanged}")


if __name__ == "__main__":
    main()
