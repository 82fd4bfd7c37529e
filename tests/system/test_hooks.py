"""Hooks that end with a block of code."""

import pytest
import torch

from layerlab.system.hooks import temporary_hooks


def test_hooks_are_there_inside_and_gone_behind_it_even_after_an_error():
    seen = []
    module = torch.nn.Linear(2, 2)
    hooks = [module.register_forward_hook(lambda *call: seen.append(call)) for _ in range(2)]
    with pytest.raises(ZeroDivisionError), temporary_hooks(hooks):
        module(torch.ones(2))
        raise ZeroDivisionError
    assert len(seen) == 2
    module(torch.ones(2))
    assert len(seen) == 2
