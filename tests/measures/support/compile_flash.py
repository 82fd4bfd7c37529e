"""Compiles the kernels for compute capability 9.0, which needs no GPU, and says what came of it.

`TRITON_INTERPRET=0 python -m tests.measures.support.compile_flash`
"""

from typing import Any

import triton

from layerlab.measures.support import flash_products
from tests.numerics.formats.compile_triton import TARGET, resources

FLOATS = ("sums", "vectors", "images", "out", "sinks")
ALIGNED = ("tokens", "keys", "width")
KIND = {
    **{"causal": True, "windowed": True, "capped": True, "sunk": True, "two": True},
    **{"entries_squared": False},
}
# Of queries, how many bytes a number has and how wide a head is.
KINDS = (("bf16", 2, 64), ("fp16", 2, 64), ("fp32", 4, 64), ("bf16", 2, 128), ("bf16", 2, 256))


def compile(kernel: Any, dtype: str, tile: int, width: int) -> Any:
    """Compile as a launch with two vectors and tensors aligned to sixteen bytes would."""
    signature, values, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in kernel.fn.__annotations__:
            signature[name] = "constexpr"
            keys = tile // 2 if kernel is flash_products._row_statistics else tile
            blocks = {"block_m": tile, "block_n": keys, "block_d": width}
            values[(place,)] = {**KIND, **blocks}[name]
            continue
        pointer = f"*{dtype}" if name in ("query", "key") else "*fp32"
        tensor = name in FLOATS or name in ("query", "key")
        whole = "fp32" if name in ("scaling", "softcap") else "i32"
        signature[name] = pointer if tensor else whole
        if tensor or name in ALIGNED:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(
        fn=kernel, signature=signature, constexprs=values, attrs=attributes
    )
    return triton.compile(source, TARGET, {"num_warps": 4})


def main() -> None:
    for dtype, size, width in KINDS:
        for name in ("_log_sums", "_row_statistics", "_forward", "_backward"):
            made = compile(getattr(flash_products, name), dtype, flash_products.TILES[size], width)
            matrix = "wgmma" if "wgmma.mma_async" in made.asm["ptx"] else "fma"
            print(dtype, width, name, matrix, resources(made))


if __name__ == "__main__":
    main()
