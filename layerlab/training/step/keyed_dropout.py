"""Dropout that is the same in every variant, whatever the micro-batch, and after a resume."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from layerlab.blocks.dropout import Dropout, key_of
from layerlab.errors import UserError

# Attention functions that are written out, or may be replaced by one that is.
OPEN = ("eager", "sdpa")


@contextmanager
def key_dropout(model: nn.Module, seed: int, update: int, first_row: int) -> Iterator[None]:
    """Draw dropout masks by seed, update, sequence and site alone until the block ends.

    Forward and backward pass both belong inside: a layer that is run again for its gradient has to
    drop what it dropped. Attention weights can be dropped by a mask of one's own only where they
    are written out, so a model with dropout computes its attention eagerly meanwhile. A model
    without dropout is left alone.

    Args:
        model: one of ours; other modules of dropout keep to the global generator.
        seed: of the run.
        update: number of the update.
        first_row: number, within the update's batch, of the first sequence of the micro-batch.

    Raises:
        UserError: attention is computed by a kernel that takes no mask of dropout.

    Example:
        >>> import layerlab
        >>> sizes = {"width": 16, "layers": 1, "heads": 2, "vocab": 32, "context": 8}
        >>> model = layerlab.build("llama", dropout=0.2, **sizes).train()
        >>> ids = torch.arange(8)[None]
        >>> with key_dropout(model, 0, 3, 0):
        ...     bool((model(ids).logits == model(ids).logits).all())
        True
    """
    sites = [one for one in model.modules() if isinstance(one, Dropout)]
    if not sites:
        yield
        return
    key = _key(model)
    key.copy_(torch.tensor(key_of(seed, update, first_row), dtype=torch.int32))
    with _write_out(model):
        try:
            for site in sites:
                site.key = key
            yield
        finally:
            for site in sites:
                site.key = None


def _key(model: nn.Module) -> torch.Tensor:
    """Return the one tensor of the key: another would compile a compiled layer anew."""
    device = next(model.parameters()).device
    kept: Any = vars(model).get("_dropout_key")
    if kept is None or kept.device != device:
        kept = vars(model)["_dropout_key"] = torch.zeros(3, dtype=torch.int32, device=device)
    return kept


@contextmanager
def _write_out(model: nn.Module) -> Iterator[None]:
    config: Any = model.config
    before = config._attn_implementation
    if before not in OPEN:
        raise UserError(
            f'train.attn_implementation is "{before}", which takes no masks of dropout from '
            'outside; write attn_implementation = "sdpa", or dropout = 0'
        )
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        config._attn_implementation = before
