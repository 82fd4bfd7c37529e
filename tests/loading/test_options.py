"""Devices and precisions are checked as they are typed, before torch is imported."""

import pytest
import torch

from layerlab.loading.options import DTYPES, KINDS, check_device, check_dtype
from tests.support.refused import refuses


@pytest.mark.parametrize("name", ["cpu", "cpu:0", "cuda", "cuda:12", "mps", "xpu:1", "auto", None])
def test_what_torch_may_have_is_left_to_torch(name):
    assert check_device(name) == name


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "", "CPU", ":0"])
def test_no_machine_has_such_a_device(name):
    refuses("is not here; expected cpu, cuda, cuda:N, mps or auto", check_device, name)


def test_torch_knows_every_kind_and_every_precision():
    assert {torch.device(kind).type for kind in KINDS - {"auto"}} == KINDS - {"auto"}
    assert all(isinstance(getattr(torch, check_dtype(name) or ""), torch.dtype) for name in DTYPES)


def test_a_precision_that_there_is_not_is_refused():
    refuses("dtype is 'int9'; expected float32, float64", check_dtype, "int9")
