"""A call that is compiled in place is heard from outside, and left as it was."""

from typing import Any

import pytest
import torch
from torch import nn

from layerlab.training.monitor.compiled_call import CompiledCall


class Ears:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, module: nn.Module, args: Any, options: Any) -> None:
        self.told.append(args)

    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        self.told.append(output)


@pytest.mark.full
def test_those_that_listen_to_one_module_leave_in_any_order():
    module, given = nn.Linear(2, 2), torch.ones(1, 2)
    module.compile(backend="eager")
    before = module._compiled_call_impl
    for order in ((0, 1), (1, 0)):
        ears = [Ears(), Ears()]
        calls = [CompiledCall(module, one.begin, one.end) for one in ears]
        module(given)
        calls[order[0]].remove()
        output = module(given)
        calls[order[1]].remove()
        assert [len(one.told) for one in ears] == ([2, 4] if order == (0, 1) else [4, 2])
        assert ears[order[1]].told[2][0] is given and ears[order[1]].told[3] is output
        assert module._compiled_call_impl is before


def test_a_call_that_fails_ends_without_an_output():
    module, ears = nn.Linear(2, 2), Ears()
    module.compile(backend="eager")
    call = CompiledCall(module, ears.begin, ears.end)
    with pytest.raises(Exception, match=r"shapes cannot be multiplied|same reduction dim"):
        module(torch.ones(1, 3))
    assert ears.told[-1] is None
    call.remove()
