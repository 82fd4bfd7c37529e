"""A causal convolution over tokens, channel by channel, that respects documents and padding."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerlab.blocks.flow import Flow
from layerlab.blocks.start import Start, starts


class CausalConvolution(nn.Module):
    """y_t = sum over j of w_j x_(t-j), j from 0 below `kernel`, for each channel on its own.

    Earlier tokens of another document, and padding, count as zero. While generating, the last
    kernel - 1 tokens are kept in the cache.

    Attributes:
        state: its number in its layer, which sets it.
    """

    def __init__(self, channels: int, kernel: int, start: Start) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, kernel))
        self.kernel = kernel
        self.state = 0
        starts(self, weight=start)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        tokens, reach = x.shape[1], self.kernel - 1
        past = self._past(x, flow)
        y = x * self.weight[:, 0]
        for back in range(1, self.kernel):
            earlier = past[:, reach - back : reach - back + tokens]
            if flow.ages is not None:
                earlier = earlier * (flow.ages >= back).unsqueeze(-1).to(x.dtype)
            y = y + earlier * self.weight[:, back]
        return y

    def _past(self, x: Tensor, flow: Flow) -> Tensor:
        """The tokens of x with kernel - 1 tokens before them."""
        reach = self.kernel - 1
        full = x
        if flow.cache is not None and reach:
            full = flow.cache.update_conv_state(
                x.transpose(1, 2), flow.layer, self.state, conv_kernel_size=reach
            ).transpose(1, 2)
        wanted = x.shape[1] + reach
        if full.shape[1] < wanted:
            full = functional.pad(full, (0, 0, wanted - full.shape[1], 0))
        return full[:, full.shape[1] - wanted :]
