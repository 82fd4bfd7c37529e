"""Dropout whose masks a run may choose by name, so that two models drop alike.

Without a key it is PyTorch's dropout, with its global generator. With one, the mask of a sequence
is a pure function of the key, of the sequence's number and of the name of the site: the same in
every variant that has the site, however a batch is cut, and when a layer is run a second time for
its gradient. The random bits come from whole-number arithmetic on tensors alone, so they are the
same on every device, and a compiler sees nothing but elementwise operations.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.shapes import TokenIds

# Sixteen bits for each element: two of them come out of one number of 32.
LEVELS = 1 << 16


class Dropout(nn.Module):
    """Each entry is 0 with chance `rate`, else divided by the chance that it stays.

    Attributes:
        site: its name, the same in every variant.
        key: two words and the number of the first sequence, as `key_of` makes them; None for the
            global generator.
    """

    key: Tensor | None

    def __init__(self, rate: float, site: str) -> None:
        super().__init__()
        self.rate = rate
        self.site = site
        self.words = words(site)
        # No buffer: several processes would be given the first one's.
        vars(self)["key"] = None

    def forward(self, x: Tensor) -> Tensor:
        """Drop features at random and scale the others; the first axis of x counts sequences."""
        if self.key is None or not self.training or not self.rate:
            return torch.dropout(x, self.rate, self.training)
        limit = round(self.rate * LEVELS)
        dropped = bits(streams(self.key, self.words, x), x.shape) < limit - LEVELS // 2
        return (x * (LEVELS / (LEVELS - limit))).masked_fill(dropped, 0.0)

    def extra_repr(self) -> str:
        """Return the rate and the site for the module's `repr`."""
        return f"{self.rate:g}, {self.site}"


def words(text: str) -> tuple[int, int]:
    """Return two whole numbers of 32 bits, with a sign, that stand for a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    first, second = (int.from_bytes(digest[at : at + 4], signed=True) for at in (0, 4))
    return first, second


def key_of(seed: int, update: int, first: int) -> list[int]:
    """Return what `Dropout.key` holds for sequences from `first` on, in one update of one seed."""
    return [*words(f"dropout/{seed}/{update}"), first]


def streams(key: Tensor, site: tuple[int, int], x: Tensor) -> tuple[TokenIds, TokenIds]:
    """Return two words for each sequence of x."""
    rows = torch.arange(x.shape[0], dtype=torch.int32, device=x.device) + key[2]
    first = mix_bits(mix_bits(rows + (key[0] ^ site[0])) + site[1])
    return first, mix_bits(first ^ key[1])


def bits(stream: tuple[TokenIds, TokenIds], shape: torch.Size) -> TokenIds:
    """Return sixteen random bits for each element, as numbers from -32768 to 32767.

    The place of an element within its sequence is mixed with one word, then with the other: with
    one alone, two sequences would have stretches of bits in common.
    """
    count = shape[1:].numel()
    places = torch.arange((count + 1) // 2, dtype=torch.int32, device=stream[0].device)
    found = mix_bits(mix_bits(places + stream[0][:, None]) ^ stream[1][:, None])
    return found.view(torch.int16)[:, :count].reshape(shape)


def mix_bits(x: Any) -> Any:
    """Map 32-bit numbers one to one, so that each bit of the result depends on all bits of x.

    Two rounds of xor-shift and multiplication; whole numbers wrap around.
    """
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -0x7B935975  # 0x846ca68b as a number with a sign
    return x ^ ((x >> 16) & 0xFFFF)
