"""A result goes where it is asked for at once: no second write is dispatched."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from layerlab.numerics.formats.round import round_to


class Operations(TorchDispatchMode):
    """Lists the names of the operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def count(self, name: str) -> int:
        return sum(one.startswith(name) for one in self.names)


@pytest.mark.parametrize("name", ("mxfp4", "nvfp4", "int8", "int8:channel"))
def test_blocks_and_whole_numbers_are_written_once(name: str) -> None:
    x = torch.randn(8, 64)
    wanted, out = round_to(x, name), torch.empty(8, 64)
    with Operations() as plain:
        round_to(x, name)
    with Operations() as direct:
        assert round_to(x, name, out=out) is out
    assert torch.equal(out, wanted)
    assert len(direct.names) <= len(plain.names)
    assert direct.count("copy_") == name.endswith("fp4")  # from float64, once
    # Another view of the same numbers is not written over while it is read.
    both = torch.cat([x.flatten(), torch.zeros(64)])
    assert torch.equal(round_to(both[:512].view(8, 64), name, out=both[64:].view(8, 64)), wanted)
    turned = torch.empty(64, 8).T
    assert torch.equal(round_to(x, name, out=turned), wanted)
