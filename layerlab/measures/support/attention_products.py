"""Chooses how products with attention matrices are computed: stored, in tiles, or by kernels."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from layerlab.measures.support.products import Operator, RowBlocks
from layerlab.numerics.formats.choose_kernel import gpu_kernel
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import DENSE_TOKENS, Watch, stream, tile
from layerlab.observe.tracing.device_schedule import PROCESSOR, device_schedule
from layerlab.system.hardware import is_out_of_memory


def products(
    attended: AttentionRecord,
    dtype: torch.dtype = torch.float32,
    kept: int = DENSE_TOKENS,
    watches: Sequence[Watch] = (),
) -> Operator:
    """Return the attention matrices of a record: stored up to some tokens, computed anew above.

    Above, an accelerator with Triton computes tiles of scores that never leave its cache; what
    watches is then given what a kernel found of the rows.
    """
    fused = _fuse(attended, dtype, kept)
    if fused is None:
        return RowBlocks(tile(attended, dtype, kept, watches), attended.keys)
    _show(fused, watches)
    return fused


def watch_rows(
    attended: AttentionRecord,
    dtype: torch.dtype,
    kept: int = DENSE_TOKENS,
    watches: Sequence[Watch] = (),
) -> None:
    """Show every row to what watches, and keep none."""
    if not watches:
        return
    fused = _fuse(attended, dtype, kept)
    if fused is not None:
        _show(fused, watches)
        return
    for _ in stream(attended, dtype, watches):
        pass


def _show(fused: Any, watches: Sequence[Watch]) -> None:
    found = fused.statistics() if watches else None
    for watch in watches:
        watch.take(found)


def _fuse(attended: AttentionRecord, dtype: torch.dtype, kept: int) -> Any | None:
    """Return kernels that compute with these matrices; None where there are none, or none work."""
    if not _is_fused(attended, dtype, kept):
        return None
    # Late: triton is there only beside a GPU.
    from layerlab.measures.support.flash_products import FlashProducts

    try:
        fused = FlashProducts(attended)
        fused.try_kernels()
    except Exception as error:  # of a compiler for a GPU that it does not know
        if is_out_of_memory(error):
            raise
        message = (str(error).splitlines() or [""])[0]
        logging.getLogger("layerlab").warning(
            "attention is read without Triton, which is slower: %s: %s",
            type(error).__name__,
            message,
        )
        return None
    return fused


def _is_fused(attended: AttentionRecord, dtype: torch.dtype, kept: int) -> bool:
    """Return whether kernels can compute these matrices, and are wanted."""
    if (
        attended.tokens <= kept
        or device_schedule(attended.device) is PROCESSOR
        or dtype != torch.float32
        or attended.query is None
        or attended.bias is not None
        or gpu_kernel(attended.device).reason is not None
    ):
        return False
    # Late: triton is there only beside a GPU.
    from layerlab.measures.support.flash_products import TILES, WIDEST

    size = attended.query.element_size()
    return size in TILES and attended.query.shape[2] <= WIDEST[size]
