"""Whole numbers of a few bits, as they lie one behind the other in words."""

from math import gcd

import torch
from torch import Tensor

BYTE = 8  # bits


def read_integers(words: Tensor, bits: int) -> Tensor:
    """Return the numbers in the rows of a tensor, the lowest bits first.

    Args:
        words: of any integer type, [..., bits x numbers / bits of a word].
        bits: of a number, at most 8.

    Returns:
        numbers of 8 bits, [..., numbers].

    Raises:
        ValueError: a row ends within a number, or there are no rows of whole numbers.

    Example:
        >>> read_integers(torch.tensor([[0x76543210]], dtype=torch.int32), 4).tolist()
        [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    if words.dim() < 2 or words.is_floating_point():
        raise ValueError(f"{words.dtype} of shape {tuple(words.shape)} are no rows of words")
    # A column of one has a stride of its own, also where it counts as contiguous.
    held = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if not 1 <= bits <= BYTE or held.shape[-1] % (bits // gcd(bits, BYTE)):
        raise ValueError(f"{held.shape[-1]} bytes are no row of numbers of {bits} bits")
    turns = held.unflatten(-1, (-1, bits // gcd(bits, BYTE))).to(torch.int16)
    numbers = torch.empty((*turns.shape[:-1], BYTE // gcd(bits, BYTE)), dtype=torch.uint8)
    for place in range(numbers.shape[-1]):
        byte, shift = divmod(place * bits, BYTE)
        number = turns[..., byte] >> shift
        if shift + bits > BYTE:
            number |= turns[..., byte + 1] << (BYTE - shift)
        numbers[..., place] = number & ((1 << bits) - 1)
    return numbers.flatten(-2)
