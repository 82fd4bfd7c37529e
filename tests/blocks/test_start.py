"""First values are the same in every default precision and on every default device."""

import pickle

import pytest
import torch

from layerlab.blocks.start import Draw, constant, normal, ones, residual, zeros

SHAPE = torch.Size((3, 2))


def numbers() -> Draw:
    return Draw(generator=torch.Generator().manual_seed(0), std=0.5, residual_std=0.25)


@pytest.mark.parametrize("start", [normal, residual, ones, zeros, constant(0.1)])
def test_a_start_is_in_float32_on_the_cpu_whatever_surrounds_it(start) -> None:
    wanted = start(SHAPE, numbers())
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = start(SHAPE, numbers())
    finally:
        torch.set_default_dtype(torch.float32)
    assert (found.dtype, found.device.type) == (torch.float32, "cpu")
    assert torch.equal(found, wanted)


def test_a_constant_is_a_value_that_can_be_pickled() -> None:
    assert constant(0.1) == constant(0.1) == pickle.loads(pickle.dumps(constant(0.1)))
    assert constant(0.1) != constant(0.2)
