"""What the names of formats stand for."""

import copy
import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import pytest
import torch

from layerlab.numerics.formats.formats import (
    BLOCKS,
    FLOATS,
    NAMES,
    Block,
    Format,
    Integer,
    Scaled,
    find,
    spans_tensor,
)
from tests.support.refused import refusal

STORED = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("name", STORED)
def test_formats_have_the_limits_of_their_storage(name):
    format, limits = FLOATS[name], ml_dtypes.finfo(STORED[name])
    assert format.lowest is not None and format.highest is not None
    assert format.largest == float(limits.max)
    assert 2.0**format.lowest == float(limits.smallest_normal)
    assert 2.0 ** (format.lowest - format.digits + 1) == float(limits.smallest_subnormal)
    assert format.unit == float(limits.eps) / 2
    assert format.highest == math.frexp(format.largest)[1] - 1


def test_every_name_is_found_and_named_so():
    for name in NAMES:
        assert find(name).name == name
        assert find(find(name)) is find(name) or isinstance(find(name), Integer)
    assert find("mxfp4") is BLOCKS["mxfp4"] and isinstance(find("nvfp4"), Block)
    assert find(torch.bfloat16) is find(" BF16 ") is FLOATS["bf16"]
    assert find("float8_e4m3fn") is FLOATS["fp8_e4m3"]


def test_any_digits_and_exponents():
    assert find("t11") == Format("t11", 11, None, None, math.inf)
    sixteen, fp16 = find("t11:-14:15"), FLOATS["fp16"]
    assert (sixteen.digits, sixteen.lowest, sixteen.highest, sixteen.largest) == (
        fp16.digits,
        fp16.lowest,
        fp16.highest,
        fp16.largest,
    )
    assert find("t3:-1074:1023:saturate").overflow == "saturate"
    assert find("fp8_e4m3:nan").name == "fp8_e4m3:nan"


def test_whole_numbers():
    assert find("int8") == Integer("int8", 8)
    assert find("int4:group32:asymmetric") == Integer(
        "int4:group32:asymmetric", 4, "group", 32, False
    )
    assert find("int8:channel:axis-2") == Integer("int8:channel:axis-2", 8, "channel", axis=-2)
    assert find("int8:tensor:symmetric").per == "tensor"
    full = find("int4:group128:full")
    assert full == Integer("int4:group128:full", 4, "group", 128, full=True)
    ends = {name: find(f"int4:{name}").ends for name in ("symmetric", "asymmetric", "full")}
    assert ends == {"symmetric": (-7, 7), "asymmetric": (0, 15), "full": (-8, 7)}


def test_short_formats_with_a_scale_and_formats_of_weights_alone():
    eight = find("float8_e4m3fn:group128")
    assert isinstance(eight, Scaled) and eight.element.largest == 448
    assert (eight.per, eight.group, find("fp4_e2m1:channel").per) == ("group", 128, "channel")
    assert [spans_tensor(find(f"fp8_e5m2:{per}")) for per in ("tensor", "channel")] == [True, False]
    for name in ("mxfp4", "nvfp4", "int4:group128:asymmetric", "fp8_e4m3:tensor"):
        whole, part = find(name), find(f"{name}:weights")
        assert part == replace(whole, name=f"{name}:weights", weights_only=True) != whole
        assert not spans_tensor(part)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bf16:channel", "no number format is called 'bf16:channel'; did you mean 'bf16'?"),
        ("fp8_e4m3:group0", "no number format is called 'fp8_e4m3:group0'"),
        ("fp8_e3m4:channel", "no number format is called 'fp8_e3m4:channel'"),
        ("bf16:weights", "bf16 has no scale, so it is the format of results as well; expected one"),
        ("bf61", "no number format is called 'bf61'; did you mean 'bf16'? known: fp64"),
        ("fp8_e4m3:wrap", "no number format is called 'fp8_e4m3:wrap'"),
        ("mxfp4:nan", "no number format is called 'mxfp4:nan'; did you mean 'mxfp4'?"),
        ("", "no number format is called ''; known"),
        (None, "no number format is called None"),
        (torch.int64, "'int64' has 64 bits; expected 2 to 16"),
        ("fp8_e4m3:inf", "fp8_e4m3 has no infinity to overflow to; type fp8_e4m3, which saturates"),
        ("t0", "'t0' has 0 digits; expected 1 to 53, with the hidden one: type for example t11"),
        ("t54", "digits; expected 1 to 53, with the hidden one"),
        ("t8:4:-4", "'t8:4:-4' has impossible exponents; expected the lowest, then the highest"),
        ("t8:-2000:4", "has impossible exponents; expected the lowest"),
        ("int1", "'int1' has 1 bits; expected 2 to 16: type int8 or int4"),
        ("int8:rows", "whole numbers have no option 'rows'; expected tensor, channel, group32"),
        ("int8:group0", "whole numbers have no option 'group0'"),
        ("mxfp8", "did you mean 'mxfp8_e4m3' or 'mxfp8_e5m2'? known"),
        ("MXFP6", "did you mean 'mxfp6_e2m3' or 'mxfp6_e3m2'? known"),
        ("fp4", "did you mean 'fp4_e2m1'? known"),
        (
            "int8:group32:group64",
            "'int8:group32:group64' has both group32 and group64; expected one scale: "
            "type int8:group64",
        ),
        ("int8:channel:group4", "has both channel and group4; expected one scale"),
        ("int8:asymmetric:full", "has both asymmetric and full; expected one symmetry"),
        ("int8:asymmetric:symmetric", "has both asymmetric and symmetric; expected one symmetry"),
    ],
)
def test_a_name_that_cannot_be_is_one_clear_line(name, text):
    assert text in refusal(find, name)


EIGHT = FLOATS["fp8_e4m3"]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: Format("x", -3, 5, -5, -1.0), "'x' has -3 digits; expected 1 to 53"),
        (lambda: Format("x", 3, 5, -5, 1.0), "'x' has impossible exponents; expected the lowest"),
        (lambda: Format("x", 3, None, 2000, 1.0), "impossible exponents; expected the lowest"),
        (lambda: Format("x", 3, -5, 5, -1.0), "'x' has the largest number -1.0; expected one"),
        (lambda: Format("x", 3, -5, 5, 33.0), "of its digits with its highest exponent"),
        (lambda: Format("x", 3, -5, 5, 64.0), "of its digits with its highest exponent"),
        (lambda: Format("x", 3, None, None, 64.0), "or math.inf without one: type for example"),
        (lambda: Integer("x", 0), "'x' has 0 bits; expected 2 to 16: type int8 or int4"),
        (lambda: Integer("x", 8, "group"), "has scales per 'group' with group=None; expected"),
        (lambda: Integer("x", 8, "group", 0), "and a size for groups alone: type for example"),
        (lambda: Integer("x", 8, "channel", 4), "has scales per 'channel' with group=4"),
        (lambda: Block("x", EIGHT, 0, "power of two"), "'x' has blocks of 0; expected a whole"),
        (
            lambda: Block("x", Format("t4", 4, None, None, math.inf), 32, "power of two"),
            "expected a Format with a highest exponent: type for example find('fp8_e4m3')",
        ),
    ],
)
def test_a_format_that_cannot_be_is_refused_where_it_is_made(made, text):
    assert text in refusal(made)


def test_a_format_of_the_wrong_words_or_types_is_refused_where_it_is_made():
    """As without the checks of types that tests run under."""

    def refused(found: Any, field: str, value: Any, text: str) -> None:
        broken = copy.copy(found)
        object.__setattr__(broken, field, value)
        assert text in refusal(type(broken).__post_init__, broken)

    refused(EIGHT, "overflow", "wrap", "overflows to 'wrap'; expected inf, saturate, nan")
    refused(EIGHT, "digits", "4", "has '4' digits; expected 1 to 53")
    refused(EIGHT, "largest", None, "has the largest number None; expected one of its digits")
    refused(find("int8"), "axis", 0.5, "looks along axis 0.5; expected a whole number")
    refused(find("int8"), "per", "row", "has scales per 'row' with group=None")
    refused(find("mxfp4"), "scale", "ten", "has a scale of 'ten'; expected 'power of two' or")
