"""A matrix token x channel as a picture: channels in bins, values in bytes, as many as fit."""

import base64
import zlib
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.shapes import Hidden

# Tokens x bins of a picture, over its layers: about 350 kB of text where nothing repeats.
CELLS = 262_144
FEWEST_BINS = 8
LEVELS = 255

Binned = Float[Tensor, "token bin"]


def bin_channels(gradient: Hidden, bins: int) -> Binned:
    """Average the saliency of neighbouring channels, in bins whose sizes differ by 1 at most.

    Unit: that of the saliency.

    Example:
        >>> bin_channels(torch.tensor([[1.0, -3.0, 2.0, 0.0]]), 2).tolist()
        [[2.0, 1.0]]
    """
    width = gradient.shape[1]
    bin_index = torch.arange(width, device=gradient.device) * bins // width
    sums = gradient.new_zeros(len(gradient), bins).index_add_(1, bin_index, gradient.abs())
    return sums / torch.bincount(bin_index, minlength=bins)


def room(layers: Sequence[int], tokens: int, bins: int) -> tuple[list[int], int]:
    """Return which layers, at how many bins, fit into a picture.

    All of them, or some, evenly spaced.

    Example:
        >>> room([0, 1, 2], 10, 64), room(range(41), 1000, 64)[0][:2]
        (([0, 1, 2], 64), [0, 1])
    """
    fitting = CELLS // (len(layers) * tokens)
    if fitting >= min(FEWEST_BINS, bins):
        return list(layers), min(bins, fitting)
    bins = min(FEWEST_BINS, bins)
    count = min(len(layers), max(2, CELLS // (tokens * bins)))
    last = len(layers) - 1
    return [layers[round(number * last / (count - 1))] for number in range(count)], bins


def pack_bytes(image: Tensor, peak: float) -> str:
    """Pack square roots as shares of the largest value's: bytes by row, deflated, in base64.

    Example:
        >>> zlib.decompress(base64.b64decode(pack_bytes(torch.tensor([[4.0, 1.0]]), 4.0))).hex()
        'ff80'
    """
    shares = (image / peak).clamp(0, 1).sqrt() if peak > 0 else torch.zeros_like(image)
    table = (shares.nan_to_num() * LEVELS).round().to(torch.uint8)
    return base64.b64encode(zlib.compress(table.numpy().tobytes(), 9)).decode("ascii")
