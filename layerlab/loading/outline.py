"""What is known of a stored tensor before its numbers are read."""

from typing import NamedTuple


class Outline(NamedTuple):
    """A stored tensor without its numbers.

    Attributes:
        kind: as safetensors writes it, such as "BF16" or "I8".
    """

    kind: str
    shape: tuple[int, ...]
