"""Which dtype the code sees, which one holds the values, and what is rounded to what."""

import pytest
import torch

from layerlab.numerics.emulation.arithmetic import exact, make_arithmetic
from layerlab.numerics.formats.formats import find

LOW = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.bfloat16,
    "t8": torch.bfloat16,
    "t16": torch.bfloat16,
    "tf32": torch.float32,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "mxfp8_e4m3": torch.bfloat16,
    "int8": torch.bfloat16,
}


@pytest.mark.parametrize("format", list(LOW))
def test_the_code_sees_the_dtype_that_such_a_model_has(format):
    assert make_arithmetic(format).low == LOW[format]


@pytest.mark.parametrize("format", ["bf16", "fp16", "fp8_e5m2", "fp4_e2m1"])
def test_narrow_formats_are_held_in_float32(format):
    """2 t + 2 digits hold what one operation gives well enough to round it once."""
    found = make_arithmetic(format)
    assert found.wide == torch.float32
    assert 2 * find(format).digits + 2 <= 24
    assert list(found.results) == [found.low]


@pytest.mark.parametrize("format", ["t16", "t24", "fp32", "fp64"])
def test_others_are_held_in_float64(format):
    assert make_arithmetic(format).wide == torch.float64


def test_as_run_leaves_single_precision_and_flat_does_not():
    assert torch.float32 not in make_arithmetic("bf16").results
    assert make_arithmetic("t16").results[torch.float32] == find("fp32")
    flat = make_arithmetic("bf16", "flat").results
    assert flat[torch.float32] == flat[torch.bfloat16] == find("bf16")


@pytest.mark.parametrize("format", ["int8", "int4", "mxfp4", "nvfp4"])
def test_formats_of_storage_round_factors(format):
    found = make_arithmetic(format)
    assert found.weights == found.activations == find(format)
    assert found.results[torch.bfloat16] == find("bf16")


@pytest.mark.parametrize("format", ["int4:group128", "mxfp4", "fp8_e4m3:channel"])
def test_of_weights_alone_what_meets_them_is_a_result(format):
    found, both = make_arithmetic(f"{format}:weights"), make_arithmetic(format)
    assert found.activations is None and both.activations == find(format)
    assert found.weights == find(f"{format}:weights") and found.results == both.results


def test_tf32_is_a_format_of_factors():
    found = make_arithmetic("tf32")
    assert found.activations == found.weights == find("tf32")
    assert find("tf32") not in found.results.values()
    assert make_arithmetic("tf32", "flat").results[torch.float32] == find("tf32")


def test_the_reference_rounds_nothing():
    found = exact(torch.bfloat16)
    assert found.wide == torch.float64
    assert not found.results
    assert found.weights is found.activations is found.cache is None
