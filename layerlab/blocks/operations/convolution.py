"""A causal convolution over tokens, channel by channel, that respects documents and padding."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost
from layerlab.blocks.init import Start, starts
from layerlab.blocks.operations.causal_taps import tap, weigh
from layerlab.errors import UserError
from layerlab.shapes import Stream


class CausalConvolution(nn.Module):
    """y_t = sum over j of w_j x_(t-j), j from 0 below `kernel`, for each channel on its own.

    Earlier tokens of another document, and padding, count as zero. While generating, the last
    kernel - 1 tokens are kept in the cache, dynamic or static.

    Attributes:
        state: its number in its layer, which sets it.
        added: whether what it reads is added to what it gives.
    """

    added = False

    def __init__(self, channels: int, kernel: int, start: Start) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, kernel))
        self.kernel = kernel
        self.state = 0
        starts(self, weight=start)

    def forward(self, x: Stream, flow: Flow) -> Stream:
        if flow.cache is None or self.kernel == 1:
            return tap(x, self.weight, flow.ages, added=self.added, place=self.state)
        return weigh(self._past(x, flow), self.weight, flow.ages, added=self.added)

    def _past(self, x: Tensor, flow: Flow) -> Tensor:
        """Return the tokens of x with kernel - 1 tokens before them."""
        full = self._keep(x, flow)
        wanted = x.shape[1] + self.kernel - 1
        if full.shape[1] < wanted:
            full = functional.pad(full, (0, 0, wanted - full.shape[1], 0))
        return full[:, full.shape[1] - wanted :]

    def _keep(self, x: Tensor, flow: Flow) -> Tensor:
        """Return what the cache kept of earlier tokens, then x, and update the cache."""
        cache: Any = flow.cache
        layers = getattr(cache, "layers", ())
        if flow.layer >= len(layers) or not hasattr(layers[flow.layer], "update_conv_state"):
            raise UserError(
                f"this {type(cache).__name__} keeps no earlier features, which a model with "
                "convolutions needs; type cache=DynamicCache(config=model.config)"
            )
        kept: Tensor = cache.update_conv_state(
            x.transpose(1, 2), flow.layer, self.state, conv_kernel_size=self.kernel - 1
        )
        return kept.transpose(1, 2)


def convolution_cost(channels: int, kernel: int) -> Cost:
    """Return the cost of a causal convolution.

    Its products are not matrix products, and count as pointwise work.

    A cache keeps the kernel - 1 tokens that stand before the next.

    Unit: as `Cost`.
    """
    return Cost(
        weights=channels * kernel,
        pointwise=2 * channels * kernel,
        cached=channels * (kernel - 1),
    )
