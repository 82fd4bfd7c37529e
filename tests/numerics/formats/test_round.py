"""Rounding against other libraries, against the standard's own words, and against its laws."""

import inspect
import math
import re

import gfloat
import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat import RoundMode, formats
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab import UserError
from layerlab.numerics.formats.formats import FLOATS, Format, find
from layerlab.numerics.formats.grid import MODES
from layerlab.numerics.formats.round import round_to, rounder
from tests.numerics import exact
from tests.support.oldest import needs_views
from tests.support.refused import refusal

WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}
CARRIERS = {"float32": torch.float32, "float64": torch.float64}
DETERMINISTIC = ("nearest", "away", "zero", "up", "down")
SMALL = ("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1", "t1:-3:3", "t3:-2:2:saturate")
# Where the library overflows otherwise than our default, the same policy is asked for.
PEERS = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8_e4m3:nan": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}
SECOND = {
    "bf16": formats.format_info_bfloat16,
    "fp16": formats.format_info_binary16,
    "fp8_e4m3": formats.format_info_ocp_e4m3,
    "fp8_e4m3:nan": formats.format_info_ocp_e4m3,
    "fp8_e5m2": formats.format_info_ocp_e5m2,
    "fp6_e2m3": formats.format_info_ocp_e2m3,
    "fp6_e3m2": formats.format_info_ocp_e3m2,
    "fp4_e2m1": formats.format_info_ocp_e2m1,
}
GFLOAT = {
    "nearest": RoundMode.TiesToEven,
    "away": RoundMode.TiesToAway,
    "zero": RoundMode.TowardZero,
    "up": RoundMode.TowardPositive,
    "down": RoundMode.TowardNegative,
}
ODD = ("t1", "t5", "t11", "t24", "t53", "t30:-140:10", "t4:-130:0", "t3:-1074:1023", "t2:200:300")
POLICIES = ("fp8_e4m3:nan", "bf16:saturate", "t11:saturate", "fp8_e5m2:nan")


def differ(ours: Tensor, theirs: Tensor) -> int:
    """Elements that are not the same number, or not the same zero."""
    same = (ours == theirs) & (ours.signbit() == theirs.signbit())
    return int((~(same | (ours.isnan() & theirs.isnan()))).sum())


def patterns(count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Numbers with random bits, and all special ones."""
    draw = np.random.default_rng(seed)
    size = torch.finfo(dtype).bits
    bits = draw.integers(-(2 ** (size - 1)), 2 ** (size - 1), count, dtype=np.int64)
    limits = torch.finfo(dtype)
    special = [0.0, math.inf, math.nan, limits.max, limits.tiny, limits.smallest_normal / 2]
    return torch.cat(
        [
            torch.from_numpy(bits).to(WORDS[dtype]).view(dtype),
            torch.tensor([*special, *(-one for one in special)], dtype=dtype),
        ]
    )


def halves(dtype: torch.dtype) -> Tensor:
    """Every number of sixteen bits."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


def cast(x: Tensor, dtype: object) -> Tensor:
    """Into a format of NumPy and back."""
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(x.numpy().astype(dtype).astype(x.numpy().dtype))


def known(x: Tensor, name: str) -> Tensor:
    """What a library that stores numbers can be asked: the smallest formats have no NaN."""
    if name.startswith(("fp6", "fp4")):
        return x[x.isfinite()]
    return x


def between(format: Format, dtype: torch.dtype) -> Tensor:
    """Every number of a small format, every halfway point, quarters, and neighbours of them all."""
    values = exact.values(format)
    gap = values[-1] - values[-2]
    ends = [values[-1] + step * gap for step in (0, 0.5, 1, 1.5, 2, 100)]
    points = torch.tensor([*values, *ends], dtype=torch.float64)
    middles = [points[:-1] + share * points.diff() for share in (0.25, 0.5, 0.75)]
    inside = torch.cat([points, *middles]).to(dtype)
    far = torch.full_like(inside, torch.inf)
    near = torch.cat([inside, torch.nextafter(inside, far), torch.nextafter(inside, -far)])
    return torch.cat([near, -near])


@pytest.mark.parametrize("held", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", PEERS)
def test_every_number_of_sixteen_bits_rounds_as_in_ml_dtypes(name, held):
    x = known(halves(held), name)
    theirs = cast(x.float(), PEERS[name])
    assert differ(round_to(x, name).float(), theirs.to(held).float()) == 0
    assert differ(round_to(x.float(), name), theirs) == 0
    assert differ(round_to(x.double(), name), theirs.double()) == 0


def awkward(count: int) -> Tensor:
    """Halfway points of many formats, neighbours, powers of two, subnormals, what overflows."""
    bits = patterns(count, torch.float32).view(torch.int32)
    ties = torch.cat([bits >> drop << drop | 1 << (drop - 1) for drop in (13, 16, 20, 21, 22)])
    near = torch.cat([ties, ties + 1, ties - 1])
    small = torch.from_numpy(np.random.default_rng(1).normal(size=4 * count))
    ranged = small.float() * torch.exp2(torch.arange(4 * count).remainder(60) - 40.0)
    return torch.cat([bits.view(torch.float32), near.view(torch.float32), ranged])


@pytest.mark.few(3)
@pytest.mark.parametrize("name", PEERS)
def test_millions_of_awkward_numbers_round_as_in_ml_dtypes(name):
    x = known(awkward(125_000), name)
    assert len(x) > 2_400_000 or name.startswith(("fp6", "fp4"))
    assert differ(round_to(x, name), cast(x, PEERS[name])) == 0


@pytest.mark.parametrize("mode", GFLOAT)
@pytest.mark.parametrize("name", SECOND)
def test_numbers_round_as_in_gfloat(name, mode):
    format = find(name)
    x = patterns(2_000, torch.float32)
    if format.digits < 8:
        x = torch.cat([x, between(format, torch.float32)])
    x = x[x.isfinite()].double()
    saturates = format.overflow == "saturate"
    theirs = gfloat.round_ndarray(SECOND[name], x.numpy(), GFLOAT[mode], saturates)
    assert differ(round_to(x, format, mode), torch.from_numpy(theirs)) == 0


def check(x: Tensor, name: str, carrier: str) -> None:
    """Every mode; together, as the exact neighbours of a number are the same in all of them."""
    format, numbers = find(name), x.tolist()
    for mode in DETERMINISTIC:
        wanted = [exact.rounded(value, format, mode, carrier) for value in numbers]
        assert differ(round_to(x, format, mode), torch.tensor(wanted, dtype=x.dtype)) == 0, mode


@pytest.mark.few(5)
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", SMALL)
def test_every_halfway_point_of_small_formats(name, carrier):
    # In float64 the points are the same and only their neighbours are nearer: every fifth will do.
    step = 1 if carrier == "float32" else 5
    check(between(find(name), CARRIERS[carrier])[::step], name, carrier)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", [*FLOATS, *ODD, *POLICIES])
def test_any_digits_and_exponents_round_as_the_standard_words_it(name, carrier):
    x = patterns(60, CARRIERS[carrier], seed=len(name))
    tiny = torch.linspace(-3, 3, 19, dtype=x.dtype) * torch.finfo(x.dtype).tiny
    check(torch.cat([x, tiny]), name, carrier)


def test_the_exact_words_can_fail():
    x = between(find("fp4_e2m1"), torch.float64)
    wanted = [exact.rounded(value, find("fp4_e2m1"), "away", "float64") for value in x.tolist()]
    assert differ(round_to(x, "fp4_e2m1"), torch.tensor(wanted, dtype=x.dtype)) > 0


def test_digits_without_limit_never_overflow_or_lose_digits_within_the_carrier():
    scale = torch.exp2(torch.arange(-1000.0, 1001.0, 50, dtype=torch.float64))[:, None]
    x = 1 + torch.rand(41, 100, dtype=torch.float64)
    assert torch.equal(round_to(x * scale, "t11"), round_to(x, "t11") * scale)
    subnormal = torch.tensor([2.0**-140 * 1.25], dtype=torch.float32)
    assert torch.equal(round_to(subnormal, "t2", "up"), torch.tensor([2.0**-140 * 1.5]))


finite = st.floats(width=32, allow_nan=False)
names = st.sampled_from([*FLOATS, *ODD, *POLICIES])


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, min_size=2, max_size=16), names, st.sampled_from(DETERMINISTIC))
def test_rounding_keeps_order_and_rounds_once(numbers, name, mode):
    x = torch.tensor(sorted(numbers))
    once = round_to(x, name, mode)
    ordered = once[~once.isnan()]
    assert bool((ordered.diff() >= 0)[ordered[1:] != ordered[:-1]].all())
    assert differ(round_to(once, name, mode), once) == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(finite, min_size=1, max_size=16), names, st.sampled_from(DETERMINISTIC))
def test_signs_mirror(numbers, name, mode):
    x = torch.tensor(numbers)
    mirrored = {"up": "down", "down": "up"}.get(mode, mode)
    assert differ(round_to(-x, name, mirrored), -round_to(x, name, mode)) == 0


@pytest.mark.parametrize("dtype", CARRIERS.values())
@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3", "fp4_e2m1", "t11", "t24:-126:127"])
def test_stochastic_rounding_has_the_right_mean_and_stays_next_door(name, dtype):
    generator = torch.Generator().manual_seed(3)
    draws = 20_000
    for value in (1.2345678, -0.7071067, 3.3e-3, 5.999, 1e-9):
        x = torch.full((draws,), value, dtype=dtype)
        below, above = round_to(x[:1], name, "down"), round_to(x[:1], name, "up")
        found = round_to(x, name, "stochastic", generator)
        assert bool(((found == below) | (found == above)).all())
        gap = float(above.double() - below.double())
        chance = float(x[0].double() - below.double()) / gap if gap else 0.0
        error = abs(float(found.double().mean()) - float(x[0].double()))
        assert error <= 5 * gap * math.sqrt(chance * (1 - chance) / draws) + gap * 2.0**-30
        # Where the chance is too small for these draws, the check above would pass emptily.
        if 1e-3 < chance < 1 - 1e-3:
            assert found.unique().numel() == 2


def test_stochastic_rounding_is_reproduced_by_its_seed_alone():
    x = torch.randn(300, 7)
    one, two, three = (
        round_to(y, "fp8_e4m3", "stochastic", torch.Generator().manual_seed(seed))
        for y, seed in ((x, 5), (x.t().contiguous().t(), 5), (x, 6))
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    torch.manual_seed(8)
    first = round_to(x, "bf16", "stochastic")
    torch.manual_seed(8)
    assert torch.equal(first, round_to(x, "bf16", "stochastic"))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_representable_stays_in_every_mode(mode):
    x = torch.tensor(exact.values(find("fp8_e5m2")))
    assert torch.equal(round_to(x, "fp8_e5m2", mode), x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", CARRIERS.values())
def test_nan_keeps_every_bit_and_zero_its_sign(dtype, mode):
    word = WORDS[dtype]
    quiet = torch.tensor([math.nan], dtype=dtype).view(word)
    zeros = torch.tensor([0, torch.iinfo(word).min], dtype=word)
    bits = torch.cat([quiet | 12345, quiet | 99 | zeros[1:], zeros])
    found = round_to(bits.view(dtype), "fp4_e2m1", mode).view(word)
    assert torch.equal(found, bits)


@pytest.mark.parametrize("policy", ["saturate", "nan", "inf"])
def test_overflow_is_what_the_format_says(policy):
    largest = find("fp8_e5m2").largest
    found = round_to(torch.tensor([1e9, -1e9, math.inf]), f"fp8_e5m2:{policy}")
    over = {"saturate": largest, "nan": math.nan, "inf": math.inf}[policy]
    assert differ(found, torch.tensor([over, -over, over])) == 0
    toward = round_to(torch.tensor([1e9, -1e9]), f"fp8_e5m2:{policy}", "zero")
    assert torch.equal(toward, torch.tensor([largest, -largest]))


def test_shapes_strides_and_dtypes_stay():
    x = torch.randn(6, 8, 4)
    wanted = round_to(x, "fp8_e4m3")
    views = {
        "transposed": lambda y: y.transpose(0, 2),
        "strided": lambda y: y[::2, :, 1:],
        "expanded": lambda y: y[:1].expand(5, 8, 4),
        "single": lambda y: y[0, 0, 0],
        "empty": lambda y: y[:0],
    }
    for view in views.values():
        assert torch.equal(round_to(view(x), "fp8_e4m3"), view(wanted))
        out = torch.empty_like(view(x))
        assert round_to(view(x), "fp8_e4m3", out=out) is out
        assert torch.equal(out, view(wanted))
        into = torch.full((9, 9, 9), 7.0)[: view(x).shape[0] if view(x).dim() else 1]
        if view(x).dim():
            place = into[:, : view(x).shape[1], : view(x).shape[2]]
            assert torch.equal(round_to(view(x), "fp8_e4m3", out=place), view(wanted))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert round_to(x.to(dtype), "fp4_e2m1").dtype is dtype
    assert torch.equal(round_to(x, "fp8_e4m3", out=x), wanted)
    assert torch.equal(x, wanted)


def test_gradient_passes_straight_through():
    x = torch.randn(5, requires_grad=True)
    y = round_to(x, "fp4_e2m1")
    (y * torch.arange(5.0)).sum().backward()
    assert torch.equal(x.grad, torch.arange(5.0))
    assert torch.equal(y.detach(), round_to(x.detach(), "fp4_e2m1"))
    with torch.no_grad():
        assert not round_to(x, "bf16").requires_grad
    half = torch.randn(3, dtype=torch.bfloat16, requires_grad=True)
    round_to(half, "fp4_e2m1").sum().backward()
    assert half.grad is not None and half.grad.dtype is torch.bfloat16


@needs_views
def test_inside_transforms_of_functions():
    x = torch.randn(4, 6)
    assert torch.equal(torch.vmap(rounder("bf16"))(x), round_to(x, "bf16"))
    gradient = torch.func.grad(lambda y: y.square().sum())(round_to(x, "bf16"))
    assert torch.equal(gradient, 2 * round_to(x, "bf16"))


def test_a_parameter_is_rounded_like_a_tensor():
    weight = torch.nn.Parameter(torch.randn(4))
    with torch.no_grad():
        assert type(round_to(weight, "bf16")) is Tensor
        assert torch.equal(round_to(weight, "bf16"), round_to(weight.data, "bf16"))


@pytest.mark.parametrize(
    ("x", "arguments", "text"),
    [
        (torch.ones(2), {"mode": "neerest"}, "no rounding mode is called 'neerest'"),
        (torch.ones(2), {"mode": "neerest"}, "did you mean 'nearest'? known: nearest, away"),
        (torch.ones(2).int(), {}, "cannot round a tensor of torch.int32; expected float32"),
        (torch.ones(2), {"out": torch.ones(3)}, "expected the same: type out=torch.empty_like(x)"),
        (
            torch.ones(2, requires_grad=True),
            {"out": torch.ones(2)},
            "out= carries no gradient back to x",
        ),
    ],
)
def test_a_user_is_told_what_to_mend(x, arguments, text):
    assert text in refusal(round_to, x, "bf16", **arguments)


@pytest.mark.parametrize(
    ("x", "out", "text"),
    [
        (
            np.ones(2, np.float32),
            None,
            "cannot round a ndarray; expected a torch tensor: type torch.from_numpy(x)",
        ),
        ([1.0], None, "cannot round a list; expected a torch tensor: type torch.tensor(x)"),
        (
            torch.ones(2).to_sparse(),
            None,
            "layout torch.sparse_coo; expected a dense one: type x.to_dense() first",
        ),
        (torch.ones(2), [0.0], "out is a list; expected a dense tensor like x: type out=torch"),
    ],
)
def test_what_is_no_dense_tensor_is_told_what_to_type(x, out, text):
    assert text in refusal(rounder("bf16"), x, out)


def test_a_number_is_no_generator():
    # Past the checks of types that tests run under.
    unchecked = inspect.unwrap(rounder)
    with pytest.raises(UserError, match=re.escape("generator is 5; expected a torch.Generator")):
        unchecked("bf16", "stochastic", 5)


@pytest.mark.parametrize(
    ("name", "largest", "becomes"), [("nvfp4", 0.3, 128 / 448), ("mxfp8_e4m3", 480.0, 448.0)]
)
def test_the_largest_of_a_block_may_saturate_even_stochastically(name, largest, becomes):
    """As the docstring says: the mean is then too small; what lies within the range keeps its."""
    blocks = torch.full((500, 32), largest, dtype=torch.float64)
    blocks[:, 1::2] = small = largest / 5.3
    blocks[0] = 1.0  # sets the scale of the whole tensor in NVFP4
    found = round_to(blocks, name, "stochastic", torch.Generator().manual_seed(1))[1:]
    assert found[:, ::2].sub(becomes).abs().max() <= 1e-7 * becomes
    low, high = found[:, 1::2].aminmax()
    chance = (small - low) / (high - low)
    deviation = (high - low) * (chance * (1 - chance) / (499 * 16)).sqrt()
    assert low < high and (found[:, 1::2].mean() - small).abs() < 5 * deviation
