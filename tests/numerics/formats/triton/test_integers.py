"""Whole numbers on a GPU have the bits of `integer_formats.py` on a CPU."""

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: it is in the extra `gpu`")

from layerlab import UserError
from layerlab.numerics.formats.formats import Integer, find
from layerlab.numerics.formats.integer_formats import to_integers
from layerlab.numerics.formats.round import round_to
from layerlab.numerics.formats.triton import integers as module
from layerlab.numerics.formats.triton import peaks as triton_peaks
from layerlab.numerics.formats.triton.integers import round_integers
from tests.numerics.formats.test_kernel import random
from tests.numerics.formats.test_round import awkward, halves
from tests.numerics.formats.triton_sample import (
    DEVICE,
    WORDS,
    equal,
    take_for_gpu,
)

DETERMINISTIC = ("nearest", "away", "zero", "up", "down")
SCALES = ("int8", "int4:channel", "int4:group16", "int8:group24", "int8:channel:axis-2")
symmetries = pytest.mark.parametrize("symmetry", ["symmetric", "asymmetric", "full"])
dtypes = pytest.mark.parametrize("dtype", WORDS)


def samples(dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    limits = torch.finfo(dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    halfway = torch.cat([torch.arange(-127, 128) / 2, torch.tensor([127.0])])
    return {
        "normal": normal(3, 5, 40),
        "any bits": random(1_275, dtype)[-2_528:].view(-1, 32),
        "halfway": halfway.to(dtype).repeat(2, 1),
        "positive": normal(2, 50).abs() + 1,
        "negative": -normal(2, 50).abs() - 1,
        "tiny": normal(3, 32) * limits.tiny * 3,
        "huge": (normal(3, 32) * 0.3).clamp(-1, 1) * limits.max,
        "zeros": torch.tensor([0.0, -0.0], dtype=dtype).repeat(20, 1),
    }


def check(x: Tensor, format: Integer, mode: str, label: str = "") -> None:
    found = round_integers(x.to(DEVICE), format, mode)
    assert equal(found, to_integers(x, format, mode)), f"{label} {mode}"


@dtypes
@symmetries
@pytest.mark.parametrize("scale", SCALES)
def test_whole_numbers_have_the_bits_of_the_reference(scale, symmetry, dtype):
    format = find(f"{scale}:{symmetry}")
    for label, x in samples(dtype).items():
        for mode in DETERMINISTIC if label == "halfway" else ("nearest",):
            check(x, format, mode, label)


def test_a_number_alone_and_other_layouts(monkeypatch):
    x = torch.randn(6, 5, 8)
    views = (x[0, 0, 0], x.transpose(0, 2), x[::2, :, 1:], x[:0])
    wanted = [round_to(view, "int8:channel") for view in views]
    deep = round_to(x, "int4:group3:axis0")
    take_for_gpu(monkeypatch)
    for view, one in zip(views, wanted, strict=True):
        assert equal(round_to(view.to(DEVICE), "int8:channel"), one)
    assert equal(round_to(x.to(DEVICE), "int4:group3:axis0"), deep)
    with pytest.raises(UserError, match="along axis -3 of a tensor with 2 axes"):
        round_to(torch.ones(2, 2, device=DEVICE), "int8:channel:axis-3")


@dtypes
@symmetries
@pytest.mark.parametrize("scale", SCALES)
def test_given_draws_give_the_bits_of_the_reference(scale, symmetry, dtype, monkeypatch):
    format = find(f"{scale}:{symmetry}")
    drawn: list[Tensor] = []
    source = torch.Generator().manual_seed(2)

    def draw(self: Tensor, generator: object = None) -> Tensor:
        values = torch.rand(self.shape, dtype=self.dtype, generator=source)
        drawn.append(values)
        return values

    for label, x in samples(dtype).items():
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "uniform_", draw)
            wanted = to_integers(x, format, "stochastic")
        given = drawn.pop().contiguous().to(DEVICE)
        found = round_integers(x.to(DEVICE), format, "stochastic", draws=given)
        assert equal(found, wanted), label


@dtypes
@pytest.mark.parametrize("scale", ["int8", "int8:channel"])
def test_words_drawn_there_have_the_right_mean_and_come_from_the_seed(scale, dtype, monkeypatch):
    take_for_gpu(monkeypatch)
    draws = 4_000
    x = torch.tensor([127.0, 2.5, -2.5, 0.3, -0.7], dtype=dtype, device=DEVICE).repeat(draws, 1)
    generator = torch.Generator().manual_seed(7)
    found = round_to(x, scale, "stochastic", generator)
    chance = (x[0] - x[0].floor()).cpu().double()
    upper = (found.cpu() - x[0].cpu().floor()).double()
    deviation = (chance * (1 - chance) / draws).sqrt()
    assert bool(((upper.mean(0) - chance).abs() <= 5 * deviation).all())
    pairs = ((upper[:, 1:] - chance[1:]) * (upper[:, :-1] - chance[:-1])).mean(0)
    spread = (deviation[1:] * deviation[:-1] * math.sqrt(draws)).abs()
    assert bool((pairs.abs() <= 5 * spread).all())
    assert not equal(found, round_to(x, scale, "stochastic", generator))
    assert equal(found, round_to(x, scale, "stochastic", torch.Generator().manual_seed(7)))


def test_how_the_work_is_divided_changes_nothing(monkeypatch):
    x = torch.randn(2, 600, device=DEVICE)
    found: dict[str, list[Tensor]] = {"int8": [], "int8:channel": [], "int8:channel:axis-2": []}
    for limit in (module.LARGE, 0):
        for size in (1 << 13, 512):
            for home in (module, triton_peaks):
                monkeypatch.setattr(home, "LARGE", limit)
                monkeypatch.setattr(home, "fit_block", lambda count, size=size: size)
            for name, results in found.items():
                for mode in ("nearest", "stochastic"):
                    generator = torch.Generator().manual_seed(1)
                    results.append(round_integers(x, find(name), mode, generator))
    for results in found.values():
        assert all(equal(one, results[place % 2]) for place, one in enumerate(results))
        assert not equal(results[0], results[1])


@pytest.mark.full
@pytest.mark.parametrize("scale", ["int8", "int8:channel", "int4:group128:asymmetric"])
def test_every_number_of_sixteen_bits_and_millions_of_others(scale):
    near = torch.cat([halves(torch.bfloat16).float(), halves(torch.float16).float()])
    many = awkward(125_000)
    normal = torch.randn(600_000, generator=torch.Generator().manual_seed(6))
    for x in (near, many, many.abs().sort().values, normal):
        for mode in DETERMINISTIC:
            check(x[: len(x) // 512 * 512].view(-1, 512), find(scale), mode)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", SCALES)
def test_a_gpu_takes_them(scale):
    x = torch.randn(12, 40, 96)
    for mode in DETERMINISTIC:
        assert equal(round_to(x.cuda(), scale, mode), to_integers(x, find(scale), mode)), mode
