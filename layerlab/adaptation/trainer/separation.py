"""Tests whether a model keeps texts that share a row apart.

Models of transformers make their mask from positions that start again. One that does not would
let each text see those before it, and nothing would say so.
"""

from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.shapes import Features
from layerlab.system.torch_settings import evaluation_mode

# Of three texts; the first is as long as the second, so that they can change places.
LENGTHS = (5, 5, 7)


def check_separation(model: Any, texts: str, setting: str, rows: int) -> None:
    """Compare texts in one row and apart once, on a few tokens.

    The first of three texts is exchanged for another one: of the features of the rest no
    bit may change, in any precision. Against each of the rest alone, only rounding may differ,
    which is told from seeing by what a row without restarts gives.

    Args:
        texts: what shares a row, in words.
        setting: that asks for it.
        rows: of a pass; flash attention of transformers restarts in a pass of one row alone.

    Raises:
        UserError: they see each other, the model does not depend on what stands before, or what it
            gives is not finite.
    """
    kept, off, seen = _compare(model, min(rows, 2))
    if kept:
        return
    alone = "micro_batch_size to 1, " if rows > 1 and _compare(model, 1)[0] else ""
    raise UserError(
        f"{type(model).__name__} does not keep {texts} apart: logits differ by {off:.1e} from "
        f"those of each alone, and by {seen:.1e} where all is seen; set {alone}{setting} "
        "to false, or use attention that makes its mask from position_ids"
    )


@torch.no_grad()
def _compare(model: Any, rows: int) -> tuple[bool, float, float]:
    """Return whether texts are kept apart, how far logits are off, and by how much if all is seen.

    Args:
        rows: of a pass.

    Raises:
        UserError: logits are not finite.
    """
    tokens = _tokens(model)
    row = torch.cat(tokens)
    starts = torch.tensor([0, LENGTHS[0], sum(LENGTHS[:2])])
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    with evaluation_mode(model):
        packed = _logits(model, row, positions, rows)
        other = _logits(model, torch.cat([tokens[1], *tokens[1:]]), positions, rows)
        alone = torch.cat([_logits(model, one, torch.arange(len(one))) for one in tokens])
        joined = _logits(model, row, torch.arange(len(row)))
    if not bool(alone.isfinite().all()):
        raise UserError(
            f"{type(model).__name__} gives logits that are not finite, whatever it is to learn; "
            "give another model, or load it in float32"
        )
    rest = slice(int(starts[1]), None)
    seen = float((joined - alone)[rest].abs().max())
    off = float((packed - alone)[rest].abs().max())
    exact = torch.equal(packed[rest], other[rest])
    return exact and off <= min(seen / 2, _rounding(alone, seen)), off, seen


def _rounding(logits: Features, seen: float) -> float:
    """Return the difference that rounding may make.

    It is some units of the largest logit, or half of the digits of an effect.
    """
    unit = torch.finfo(logits.dtype).eps
    return max(32 * unit * float(logits.abs().max()), seen * unit**0.5)


def _tokens(model: Any) -> list[Tensor]:
    vocab = int(model.get_input_embeddings().weight.shape[0])
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocab, (length,), generator=generator) for length in LENGTHS]


def _logits(model: Any, tokens: Tensor, positions: Tensor, rows: int = 1) -> Features:
    """Return the logits of a row, in a pass of so many alike."""
    device = model.get_input_embeddings().weight.device
    ids, positions = (one.to(device).expand(rows, -1) for one in (tokens, positions))
    found: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    return found.cpu()
