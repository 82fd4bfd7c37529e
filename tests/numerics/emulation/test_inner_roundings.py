"""Powers, numbers, products by group and products with rounded sums, beside torch's own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from layerlab.numerics.emulation.emulate import emulate, reference
from layerlab.numerics.emulation.inner_roundings import accumulate, multiply_groups
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.formats.round import rounder
from tests.measures.family import built
from tests.numerics.roots import needs_rounded_roots
from tests.support.refused import refuses

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
Function = Callable[[Tensor], Tensor]


class Applied(nn.Module):
    """A function as a model."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def every(format: str) -> Tensor:
    """All 65,536 numbers of sixteen bits, infinities and NaN among them."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(DTYPES[format])


def differing(function: Function, x: Tensor, format: str) -> int:
    """On how many numbers torch and its emulation differ, where not both are NaN."""
    with torch.no_grad():
        real = function(x.clone()).float()
    with emulate(Applied(function), format) as run:
        emulated = run.model(x)
    return int(((emulated != real) & ~(emulated.isnan() & real.isnan())).sum())


@pytest.mark.few(10)
@pytest.mark.parametrize("format", DTYPES)
@pytest.mark.parametrize(
    "exponent",
    [
        *(-3, -2, -1, -0.7, -0.5, 0, 0.1, 0.25, 1, 1.5, 2, 2.3, 3, 4, 5),
        pytest.param(0.5, marks=needs_rounded_roots),
    ],
)
def test_a_power_is_torch_s_own_bit_for_bit(exponent, format):
    x = every(format)
    if format == "fp16" and abs(exponent) == 0.5:
        # Of -0 and -inf torch's float16 on a CPU takes the power, and all else the root.
        x = x[x > 0]
    assert differing(lambda x: x**exponent, x, format) == 0
    assert differing(lambda x: x.clone().pow_(exponent), x, format) == 0
    assert differing(lambda x: torch.pow(x, exponent, out=torch.empty_like(x)), x, format) == 0


def test_both_roundings_of_a_cube_count_at_its_place():
    model, x = Applied(lambda x: x**3), torch.ones(2)
    with emulate(model, "bf16") as run:
        model(x)
    assert dict(run.roundings) == {OpSite("", "input"): 1, OpSite("", "power"): 2}


@pytest.mark.parametrize("format", DTYPES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: 10000**x,
        lambda x: 2.3**x,
        lambda x: x.clamp(-0.1, 1001),
        lambda x: x.clamp(max=0.1),
        lambda x: x.masked_fill(x > 0, 0.1),
        lambda x: x.masked_fill(x > 0, -10001),
        lambda x: x.clone().fill_(0.1),
        lambda x: x.new_full((3,), 0.1),
        lambda x: torch.full_like(x, 0.1),
        lambda x: nn.functional.pad(x, (1, 1), value=0.1),
        lambda x: torch.fmod(x, 0.3),
        lambda x: torch.remainder(x, 0.3),
    ],
)
def test_numbers_are_read_as_torch_reads_them(function, format):
    x = every(format)
    assert differing(function, x[x.isfinite()], format) == 0


@pytest.mark.parametrize("format", DTYPES)
def test_values_put_beside_one_another_are_added_and_rounded(format):
    x = every(format)
    x = x[x.isfinite()].view(2, -1)
    places = (torch.arange(x.shape[1]),)

    def add(x: Tensor) -> Tensor:
        return x[0].index_put(places, x[1].flip(0), accumulate=True)

    def put(x: Tensor) -> Tensor:
        return x[0].index_put(places, x[1].flip(0))

    assert differing(add, x, format) == differing(put, x, format) == 0
    for function, times in ((add, 1), (put, 0)):
        with emulate(Applied(function), format) as run:
            run.model(x)
        assert run.roundings[OpSite("", "index_put")] == times


def test_numbers_stay_as_they_are_where_nothing_is_rounded():
    model, x = nn.Sequential(nn.ELU(), Applied(lambda x: x.clamp(max=0.1))), torch.ones(1)
    found = {}
    for name, block in (
        ("reference", reference(model)),
        ("elsewhere", emulate(model, "bf16", where="0")),
        ("everywhere", emulate(model, "bf16")),
    ):
        with block:
            found[name] = model(x).item()
    assert found["reference"] == 0.1
    assert found["elsewhere"] == float(torch.tensor(0.1))
    assert found["everywhere"] == float(torch.tensor(0.1, dtype=torch.bfloat16))


def same(values: Tensor) -> Tensor:
    return values


@pytest.mark.parametrize("ends", [[2, 2, 7], [0, 3, 6]])
@pytest.mark.parametrize("axes", [(2, 3), (2, 2), (3, 2), (3, 3)])
def test_groups_are_those_of_torch(axes, ends):
    torch.manual_seed(0)
    rows, inner, columns = 7, 16, 8
    shapes = {
        (2, 3): ((rows, inner), (3, inner, columns)),
        (2, 2): ((inner, rows), (rows, columns)),
        (3, 2): ((3, columns, inner), (inner, rows)),
        (3, 3): ((3, rows, inner), (3, inner, columns)),
    }
    left, right = (torch.randn(shape) for shape in shapes[axes])
    offsets = None if axes == (3, 3) else torch.tensor(ends, dtype=torch.int32)
    expected = torch.zeros_like(multiply_groups(left, right, offsets))
    starts = [0, *ends]
    for group in range(3):
        span = slice(starts[group], ends[group])
        if axes == (2, 3):
            expected[span] = left[span] @ right[group]
        elif axes == (2, 2):
            expected[group] = left[:, span] @ right[span]
        elif axes == (3, 2):
            expected[:, span] = left[group] @ right[:, span]
        else:
            expected[group] = left[group] @ right[group]
    torch.testing.assert_close(multiply_groups(left, right, offsets), expected)
    if axes == (2, 3) and ends[-1] == rows:
        own = torch.nn.functional.grouped_mm(left, right, offs=offsets)
        torch.testing.assert_close(multiply_groups(left, right, offsets), own)


@pytest.mark.parametrize("terms", [1, 4, 5, 100])
@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
def test_sums_in_parts_are_the_product_save_for_roundings(name, terms):
    torch.manual_seed(0)
    batch = () if name.endswith("mm") and "b" not in name else (3,)
    left = torch.randn(*batch, 6, 17, dtype=torch.float64)
    right = torch.randn(*batch, 17, 5, dtype=torch.float64)
    addend = torch.randn(5, dtype=torch.float64)
    factors = (addend, left, right) if "add" in name else (left, right)
    expected = left @ right + (addend if "add" in name else 0)
    torch.testing.assert_close(accumulate(name, factors, {}, terms, same), expected)
    round = rounder("bf16")
    rounded = accumulate(name, factors, {}, terms, round)
    assert torch.equal(rounded, round(rounded))


@pytest.mark.parametrize("options", [{"alpha": 0.5}, {"beta": 0.25}, {"alpha": 2, "beta": 0}])
def test_scaled_products_are_those_of_torch(options):
    torch.manual_seed(0)
    addend, left, right = (torch.randn(3, 6, 6, dtype=torch.float64) for _ in range(3))
    if options.get("beta") == 0:
        addend = addend * torch.nan
    expected = torch.baddbmm(addend, left, right, **options)
    found = accumulate("baddbmm", (addend, left, right), options, 4, same)
    torch.testing.assert_close(found, expected)


def test_bloom_runs_with_rounded_sums():
    model = built("bloom")
    with emulate(model, "bf16", where="*:scores", accumulate=8) as run:
        assert model(torch.arange(3, 7)[None]).logits.isfinite().all()
    assert run.roundings


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_running_sums_are_rounded_as_a_loop_rounds_them(terms):
    torch.manual_seed(0)
    left, right = torch.randn(2, 7).double(), torch.randn(7, 3).double()
    round = rounder("bf16")
    total = torch.zeros(2, 3).double()
    for start in range(0, 7, terms):
        part = left[:, start : start + terms] @ right[start : start + terms]
        total = round(total + (round(part) if terms == 1 else part))
    assert torch.equal(accumulate("mm", (left, right), {}, terms, round), total)


def test_rounding_more_often_errs_more():
    torch.manual_seed(0)
    left, right = torch.randn(64, 256), torch.randn(256, 64)
    exact = left.double() @ right.double()
    errors = [
        float((accumulate("mm", (left, right), {}, terms, rounder("bf16")) - exact).norm())
        for terms in (256, 32, 4, 1)
    ]
    assert errors == sorted(errors)
    assert errors[-1] > 2 * errors[0]


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("mv", {}, "accumulate= cannot look into"),
        ("addmm", {"out_dtype": 2}, "accumulate= cannot follow"),
    ],
)
def test_what_cannot_be_split_is_refused(name, options, text):
    factors = (torch.ones(2), torch.ones(2, 2), torch.ones(2, 2))
    refuses(text, accumulate, name, factors, options, 2, same)


@pytest.mark.parametrize("format", ["bf16", "fp16", "fp32"])
def test_products_by_group_are_refused_for_mixed_dtypes_alone(format):
    class Experts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            low, wide = x.new_ones(2, 8, 8), x.new_ones(2, 8, 8).float()
            ends = torch.tensor([1, 4], dtype=torch.int32)
            first = nn.functional.grouped_mm(x, low, offs=ends)
            return first + torch._grouped_mm(x, wide, ends)

    for model, given in (
        (built("mixtral"), torch.arange(3, 9)[None]),
        (Experts(), torch.ones(4, 8)),
    ):
        with emulate(model, format) as run:
            model(given)
        mixed = isinstance(model, Experts) and format != "fp32"
        assert {str(place) for place in run.refused} == ({":product"} if mixed else set())
