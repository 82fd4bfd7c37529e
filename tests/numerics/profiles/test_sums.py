"""Sums of products in an order and an accumulator of their own, against loops and torch's own."""

from math import ceil, log2
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from layerlab.numerics.emulation.inner_roundings import multiply_by_rows, take_apart
from layerlab.numerics.formats.formats import SINGLE, find
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.numerics.profiles.lanes import Lane, SideBySide
from layerlab.numerics.profiles.profile import NumericsProfile, load_profile, split_sums
from layerlab.numerics.profiles.rules import summations

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def multiply(left: Tensor, right: Tensor, said: str) -> Tensor:
    return multiply_by_rows(left.float(), right.float(), summations(said))


def store(value: np.float32, format: str) -> np.float32:
    return np.float32(torch.tensor(value).to(DTYPES[format]).float().item())


def add_up(terms: list[np.float32], stages: list[list[str]]) -> np.float32:
    """Add numbers up as stages say, one at a time."""
    if not stages:
        (total,) = terms
        return total
    *inner, (format, order, number) = stages
    length = ceil(len(terms) / int(number)) if order == "split-k" else int(number)
    parts = [add_up(terms[at : at + length], inner) for at in range(0, len(terms), length)]
    if order == "tree":
        row = [store(one, format) for one in parts]
        while len(row) > 1:
            pairs = zip(row[::2], row[1::2], strict=False)
            row = [store(a + b, format) for a, b in pairs] + row[len(row) // 2 * 2 :]
        return row[0]
    total = np.float32(0)
    for one in parts:
        total = store(total + (store(one, format) if order == "split-k" else one), format)
    return total


SAID = (
    *(f"{format} {order} 1" for format in DTYPES for order in ("sequential", "tree")),
    *(f"fp32 sequential 1, {format} split-k 3" for format in DTYPES),
    "fp16 sequential 1, fp32 sequential 4",
    "fp32 tree 1, bf16 tree 3",
)


@pytest.mark.parametrize("terms", [1, 7, 22])
@pytest.mark.parametrize("said", SAID)
def test_each_order_is_a_loop_to_the_bit(said, terms):
    torch.manual_seed(0)
    left, right = torch.randn(3, terms).bfloat16(), torch.randn(terms, 4).bfloat16()
    found = multiply(left, right, said)
    for row in range(3):
        for column in range(4):
            products = left[row].float().numpy() * right[:, column].float().numpy()
            wanted = add_up(list(products), split_sums(said))
            assert found[row, column].item() == wanted, (row, column)


def draw_sixteenths() -> tuple[Tensor, Tensor]:
    """Factors whose sums of products are exact in float32, in any order."""
    torch.manual_seed(0)
    left, right = torch.randint(-31, 32, (8, 64)) / 16, torch.randint(-31, 32, (64, 8)) / 16
    return left, right


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parts_of_a_product_stored_by_torch_are_split_k(dtype):
    left, right = (one.to(dtype) for one in draw_sixteenths())
    name = {kind: format for format, kind in DTYPES.items()}[dtype]
    parts = zip(left.split(16, dim=1), right.split(16), strict=True)
    total, *rest = [a @ b for a, b in parts]
    for one in rest:
        total = total + one
    found = multiply(left, right, f"{name} split-k 4").to(dtype)
    torch.testing.assert_close(found, total, rtol=0, atol=0)
    assert not torch.equal(found, left @ right)


def test_products_added_to_a_low_one_by_torch_are_sequential():
    left, right = (one.half() for one in draw_sixteenths())
    total = torch.zeros(8, 8, dtype=torch.half)
    for a, b in zip(left.split(16, dim=1), right.split(16), strict=True):
        total = torch.addmm(total, a, b)
    found = multiply(left, right, "fp16 sequential 16").half()
    torch.testing.assert_close(found, total, rtol=0, atol=0)
    assert not torch.equal(found, left @ right)


@given(
    st.sampled_from(["bf16", "fp16", "t14", "fp32"]),
    st.sampled_from(["sequential", "tree", "split-k"]),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 2**32 - 1),
)
def test_errors_keep_the_bound_of_their_order(format, order, terms, number, seed):
    """|error| <= gamma_m sum |a b|, m the roundings that a product passes at most."""
    draw = torch.Generator().manual_seed(seed)
    left = torch.randn(2, terms, generator=draw).bfloat16()
    right = torch.randn(terms, 2, generator=draw).bfloat16()
    length = ceil(terms / number) if order == "split-k" else number
    parts = ceil(terms / length)
    passed = 1 + ceil(log2(parts)) if order == "tree" else parts

    def gamma(count: int, unit: float) -> float:
        return count * unit / (1 - count * unit)

    exact = left.double() @ right.double()
    size = left.double().abs() @ right.double().abs()
    # A part is summed in float32, and each addition rounds to float32 before the format does.
    most = gamma(passed, find(format).unit) + gamma(terms + parts, 2.0**-SINGLE)  # type: ignore[union-attr]
    found = multiply(left, right, f"{format} {order} {number}").double()
    # Products in fp16 may be subnormal.
    below = passed * 2.0**-25 if format == "fp16" else 0
    assert bool(((found - exact).abs() <= most * 1.01 * size + below).all())


def test_an_order_with_fewer_roundings_errs_less():
    torch.manual_seed(0)
    left, right = torch.randn(64, 512).bfloat16(), torch.randn(512, 64).bfloat16()
    exact = left.double() @ right.double()
    orders = ("bf16 sequential 1", "bf16 tree 1", "bf16 split-k 4", "fp16 sequential 16")
    errors = [float((multiply(left, right, one) - exact).norm()) for one in (*orders, "t14 tree 1")]
    assert errors == sorted(errors, reverse=True) and errors[0] > 50 * errors[-1] > 0


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear"])
def test_every_product_is_made_of_one_of_matrices(name):
    torch.manual_seed(0)
    batch = (3,) if "bmm" in name else ()
    left, right = torch.randn(*batch, 4, 6), torch.randn(*batch, 6, 5)
    right = right[:, 0] if name.endswith("mv") else right
    addend = torch.randn(4 if name.endswith("mv") else 5)
    factors = [addend, left, right] if "add" in name else [left, right]
    factors = [left, right.t(), addend] if name == "linear" else factors
    options: dict[str, Any] = {"alpha": 0.5, "beta": 2} if "add" in name else {}
    wanted = getattr(torch.ops.aten, name)(*factors, **options)
    torch.testing.assert_close(take_apart(name, factors, options, torch.matmul), wanted)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("mean", ([-1], True)),
        ("mean", ([2],)),
        ("mean", ([1, -1], True)),
        ("_softmax", (-1, False)),
        ("_softmax", (1, False)),
        ("native_layer_norm", ([6], torch.arange(6.0), torch.ones(6), 1e-5)),
        ("native_layer_norm", ([5, 6], None, None, 1e-5)),
    ],
)
def test_sums_of_values_are_those_of_torch(name, given):
    torch.manual_seed(0)
    values = torch.randn(4, 5, 6)
    wanted = getattr(torch.ops.aten, name)(values, *given)
    wanted = wanted[0] if name == "native_layer_norm" else wanted
    torch.testing.assert_close(take_apart(name, [values, *given], {}, torch.matmul), wanted)


def run_lanes(model: nn.Module, given: Tensor, other: NumericsProfile) -> list[list[Tensor]]:
    """Values of each output beside eager bf16."""
    lanes = [Lane(profile=load_profile("torch-eager")), Lane(profile=other)]
    index = OperationIndex(model)
    for _ in range(2):  # the first run counts the operations of norms
        run = SideBySide(model, lanes, index)
        with run.running():
            found = [run.values(one) for one in model(*given)]
    return found


class Stream(nn.Module):
    """A residual stream of two sums, each read by a norm."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(in_place), Block(in_place)])

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            y, x = layer(x, y)
        return y, x


class Block(nn.Module):
    """A sum that a norm reads."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.norm = LlamaRMSNorm(64)
        self.in_place = in_place

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        total = x * 1 if self.in_place else x + y
        if self.in_place:
            total += y
        return self.norm(total), total


def normalize(read: Tensor, weight: Tensor, square: Tensor | None = None) -> Tensor:
    square = read.square().mean(-1, keepdim=True) if square is None else square
    root = torch.rsqrt(square + 1e-6)
    return (weight.bfloat16() * (read * root).bfloat16()).float()


@pytest.mark.parametrize("said", ["bf16 tree 1", "fp16 sequential 1", "fp32 tree 1"])
def test_a_norm_adds_its_squares_in_order(said):
    torch.manual_seed(0)
    block, given = Block(False), torch.randn(2, 5, 64).bfloat16().float()
    weight = block.norm.weight.detach().uniform_(0.5, 2)
    apart = NumericsProfile(name="apart", sums={"norm_inside": said})
    normed, _ = run_lanes(block, given, apart)
    total = (given[0] + given[1]).bfloat16().float()
    rows = [add_up(list(row.square().numpy()), split_sums(said)) for row in total]
    square = torch.tensor(rows)[:, None] / 64
    torch.testing.assert_close(normed[1], normalize(total, weight, square), rtol=0, atol=0)
    assert torch.equal(*normed) == (said == "fp32 tree 1"), "one more digit flips no rounding here"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_norm_reads_the_sum_before_it_is_rounded(in_place):
    torch.manual_seed(0)
    model = Stream(in_place)
    given = torch.randn(2, 5, 64).bfloat16().float()
    weights = [parameter.detach().uniform_(0.5, 2) for parameter in model.parameters()]
    fused = NumericsProfile(name="fused", operations={"norm_input": "fp32"})
    normed, stream = run_lanes(model, given, fused)
    for number, early in enumerate((False, True)):
        x, y = given
        for weight in weights:
            total = x + y
            x = total.bfloat16().float()
            y = normalize(total if early else x, weight)
        torch.testing.assert_close(stream[number], x, rtol=0, atol=0)
        torch.testing.assert_close(normed[number], y, rtol=0, atol=0)
    assert not torch.equal(*normed)
