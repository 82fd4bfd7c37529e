"""A result goes where it is asked for at once: no second write is dispatched."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from layerlab.numerics.formats.round import round_to
from tests.support.refused import refuses


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
def test_blocks_and_whole_numbers_are_written_once(name):
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


@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3", "t11", "int8", "mxfp4"])
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_result_that_lies_over_its_argument_is_that_of_a_copy(name, mode, dtype):
    def draw() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    whole = torch.randn(2048, generator=draw()).to(dtype)
    for read, written in ((0, 1), (1, 0), (0, 64), (64, 0)):
        both = torch.cat([whole, whole])
        x, out = both[read:][:2048], both[written:][:2048]
        wanted = round_to(x.clone(), name, mode, draw())
        assert torch.equal(round_to(x, name, mode, draw(), out=out), wanted)


def test_a_result_in_which_elements_lie_in_one_place_is_refused():
    narrow = torch.ones(1, 3).expand(2, 3)
    for x in (torch.ones(2, 3), narrow):
        refuses("several elements of out lie in one place", round_to, x, "bf16", out=narrow)


def test_of_what_requires_a_gradient_a_result_is_written_where_none_is_made():
    x, out = torch.randn(5, requires_grad=True), torch.empty(5)
    with torch.no_grad():
        assert round_to(x, "bf16", out=out) is out
    assert torch.equal(out, x.detach().bfloat16().float())


@pytest.mark.parametrize("name", ["bf16", "int8", "fp8_e4m3:channel", "mxfp4"])
def test_a_result_of_nothing_is_what_was_given_for_it(name):
    x, out = torch.empty(0, 4), torch.empty(0, 4)
    assert round_to(x, name, out=out) is out and round_to(x, name, out=x) is x
