"""Blocks on a GPU have the bits of `block_formats.py`; without one, in Triton's interpreter."""

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: it is in the extra `gpu`")

from layerlab.numerics.formats.block_formats import (
    _outer_scale,
    _power,
    _two_level,
    to_blocks,
)
from layerlab.numerics.formats.formats import BLOCKS, Block, find
from layerlab.numerics.formats.grid import MODES, grid
from layerlab.numerics.formats.integer_formats import join_blocks, split_blocks
from layerlab.numerics.formats.round import round_to
from layerlab.numerics.formats.round_reference import in_torch
from layerlab.numerics.formats.triton import blocks as module
from layerlab.numerics.formats.triton.blocks import is_known, round_blocks
from tests.numerics.formats.test_block_formats import spread
from tests.numerics.formats.test_kernel import random
from tests.numerics.formats.test_round import awkward, halves
from tests.numerics.formats.test_round_out import Operations
from tests.numerics.formats.triton_sample import (
    DEVICE,
    WORDS,
    draw_words,
    equal,
    take_for_gpu,
)

DETERMINISTIC = ("nearest", "away", "zero", "up", "down")


def block(element: str, size: int, scale: str) -> Block:
    return Block(f"{element} by {size}", find(element), size, scale)


# Sizes that are no power of two, many digits, elements far below one: the wide way, too.
OTHERS = (
    block("t4:-40:3:saturate", 24, "power of two"),
    block("bf16", 16, "power of two"),
    block("t25:-10:9:saturate", 16, "fp8_e4m3"),
    block("t12:-5:9:saturate", 12, "fp8_e4m3"),
)
ALL = (*BLOCKS.values(), *OTHERS)
named = pytest.mark.parametrize("format", ALL, ids=lambda format: format.name)


def samples(dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    limits = torch.finfo(dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "one size": normal(9, 64),
        "many sizes": spread(20, 96).to(dtype),
        "short": spread(3, 5, 77).to(dtype),
        "any bits": random(1_275, dtype)[-2_528:].view(-1, 32),
        "tiny": normal(9, 32) * limits.tiny * 3,
        "huge": (normal(9, 32) * 0.3).clamp(-1, 1) * limits.max,
        "zeros": torch.tensor([0.0, -0.0], dtype=dtype).repeat(40),
        "powers": torch.exp2(torch.arange(-140, 120, 0.25).to(dtype)).view(20, 52),
        "single": torch.tensor(0.75, dtype=dtype),
        "empty": torch.empty(0, 32, dtype=dtype),
    }


def ties(format: Block) -> Tensor:
    """Numbers at, just below and just above every halfway point of NVFP4's elements."""
    steps = torch.arange(0, 48) / 8.0
    parts = torch.tensor([1.0, 1.125, 1.875, 0.0625, 448.0, 13.0, 2.0**-9, 3 * 2.0**-9])
    rows = []
    # 49 x (1/49) is not 1 in float64, nor is that of 103 and 187.
    for whole in (1.0, 49.0, 103 * 2.0**-20, 187 * 2.0**-100, 2.0**-126):
        scales = parts * whole
        blocks = torch.cat([steps.expand(8, -1), torch.full((8, 16), 5.0)], 1)
        blocks = (blocks.view(8, 4, 16) * scales[:, None, None]).clone()
        blocks[..., -1] = 6 * scales[:, None]  # sets the scale of its block
        up = torch.nextafter(blocks, torch.full_like(blocks, torch.inf))
        down = torch.nextafter(blocks, torch.full_like(blocks, -torch.inf))
        up[..., -1] = down[..., -1] = blocks[..., -1]
        rows.append(torch.cat([blocks, up, -down]).view(-1, format.size))
        assert float(rows[-1].max()) == 2688 * whole
    return torch.stack(rows)


def check(x: Tensor, format: Block, mode: str, label: str = "") -> None:
    assert equal(round_blocks(x.to(DEVICE), format, mode), to_blocks(x, format, mode)), (
        f"{label} {mode}"
    )


@pytest.mark.parametrize("dtype", WORDS)
@named
def test_blocks_have_the_bits_of_the_reference(format, dtype):
    for label, x in samples(dtype).items():
        for mode in DETERMINISTIC if label in {"many sizes", "any bits"} else ("nearest", "up"):
            check(x, format, mode, label)


def test_halfway_points_of_nvfp4_fall_as_in_the_reference():
    """Where the quotient is exact, a product with the reciprocal may be off by its last bit."""
    for x in ties(BLOCKS["nvfp4"]):
        for mode in ("nearest", "up", "down"):
            check(x, BLOCKS["nvfp4"], mode)


@pytest.mark.full
@named
def test_every_number_of_sixteen_bits_and_millions_of_others(format):
    generator = torch.Generator().manual_seed(6)
    x = awkward(125_000)
    # Large and small ones far from each other, then all sizes beside each other.
    size = format.size * 32
    near = torch.cat([halves(torch.bfloat16).float(), halves(torch.float16).float()])
    calm = torch.randn(600_000, generator=generator)
    for numbers in (x.abs().sort().values, x, near, calm):
        for mode in DETERMINISTIC:
            check(numbers[: len(numbers) // size * size].view(-1, size), format, mode)


def scaled_reference(x: Tensor, format: Block, words: Tensor) -> Tensor:
    """`to_blocks` in stochastic rounding, with given words for the quotients."""
    wide = torch.atleast_1d(x.double())
    blocks = split_blocks(wide, format.size)
    peaks = torch.where(blocks.isfinite(), blocks.abs(), 0).amax(-1, keepdim=True)
    if format.scale == "power of two":
        scale = _power(peaks, format)
    else:
        scale = _two_level(peaks, format, _outer_scale(peaks.amax(), format))
    carrier = torch.float64 if words.dtype == torch.int64 else torch.float32
    quotient = (blocks / torch.where(scale == 0, 1, scale)).to(carrier)
    out = torch.empty_like(quotient)
    numbers = grid(format.element, "stochastic", carrier)
    in_torch(quotient, out, numbers, "stochastic", words.view(quotient.shape))
    return join_blocks(out.double() * scale, wide).view(x.shape).to(x.dtype)


@pytest.mark.parametrize("dtype", WORDS)
@named
def test_given_words_give_the_bits_of_the_reference(format, dtype):
    for label, x in samples(dtype).items():
        if label == "empty":
            continue
        whole = torch.atleast_1d(x)
        places = whole.numel() // whole.shape[-1] * -(-whole.shape[-1] // format.size)
        narrow = dtype == torch.float32 and format.name.startswith(("mx", "t4"))
        for kind in [torch.int64, torch.int32] if narrow and label == "one size" else [torch.int64]:
            words = draw_words(places * format.size, kind)
            found = round_blocks(x.to(DEVICE), format, "stochastic", words=words.to(DEVICE))
            assert equal(found, scaled_reference(x, format, words)), (label, kind)


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_words_drawn_there_have_the_right_mean_and_come_from_the_seed(name, dtype, monkeypatch):
    take_for_gpu(monkeypatch)
    draws = 4_000
    x = torch.full((draws, 32), 0.7, dtype=dtype, device=DEVICE)
    x[:, ::16] = 6.0
    generator = torch.Generator().manual_seed(2)
    found = round_to(x, name, "stochastic", generator)
    low, high = (float(round_to(x, name, mode)[0, 1]) for mode in ("down", "up"))
    upper = (found[:, 1:16].cpu().double() - low) / (high - low)
    chance = (float(x[0, 1]) - low) / (high - low)
    deviation = math.sqrt(chance * (1 - chance) / draws)
    assert 0.1 < chance < 0.9
    assert bool(((upper.mean(0) - chance).abs() < 5 * deviation).all())
    assert not equal(found, round_to(x, name, "stochastic", generator))
    assert equal(found, round_to(x, name, "stochastic", torch.Generator().manual_seed(2)))


def test_how_the_work_is_divided_changes_nothing(monkeypatch):
    x = torch.randn(24, 96, device=DEVICE)
    found = []
    for limit in (module.LARGE, 0):
        monkeypatch.setattr(module, "LARGE", limit)
        for elements in (1 << 18, 1024):
            monkeypatch.setattr(module, "fit_block", lambda count, size=elements: size)
            generator = torch.Generator().manual_seed(4)
            found.append(round_blocks(x, BLOCKS["mxfp4"], "stochastic", generator))
            found.append(round_blocks(x, BLOCKS["nvfp4"], "nearest"))
    for other in found[2:]:
        assert any(equal(other, one) for one in found[:2])


def test_round_to_takes_them(monkeypatch):
    x = torch.randn(6, 64)
    turned, halved = round_to(x.t(), "mxfp4"), round_to(x.bfloat16(), "nvfp4")
    take_for_gpu(monkeypatch)
    taken = []
    monkeypatch.setattr(
        module, "round_blocks", lambda *call: taken.append(call[1].name) or round_blocks(*call)
    )
    there = x.to(DEVICE)
    assert equal(round_to(there.t(), "mxfp4"), turned)
    assert torch.equal(round_to(there.bfloat16(), "nvfp4").cpu(), halved)
    assert taken == ["mxfp4", "nvfp4"]
    monkeypatch.setenv("LAYERLAB_KERNEL", "0")
    assert equal(round_to(there.t(), "mxfp4"), turned) and len(taken) == 2


def test_every_named_format_is_known_and_odd_ones_are_left_to_pure_torch(monkeypatch):
    assert all(map(is_known, ALL))
    odd = (
        block("fp8_e4m3:nan", 32, "power of two"),
        block("t4:-40:-3:saturate", 32, "power of two"),
        block("fp8_e4m3", 4096, "power of two"),
    )
    assert not any(map(is_known, odd))
    take_for_gpu(monkeypatch)
    monkeypatch.setattr(module, "round_blocks", lambda *call: pytest.fail("not known"))
    for format in odd:
        assert round_to(torch.ones(40, device=DEVICE), format).shape == (40,)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_a_gpu_takes_them(mode):
    x = spread(200, 96)
    for name in BLOCKS:
        found = round_to(x.cuda(), name, mode)
        assert mode == "stochastic" or equal(found, round_to(x, name, mode)), name


@pytest.mark.parametrize("name", ("mxfp4", "nvfp4", "int8", "int8:channel"))
def test_a_result_is_written_where_it_is_asked_for_and_nowhere_before(name, monkeypatch):
    x = spread(6, 64)
    wanted = round_to(x, name)
    take_for_gpu(monkeypatch)
    there, out = x.to(DEVICE), torch.empty_like(x, device=DEVICE)
    round_to(there, name, out=out)  # what is made once
    with Operations() as plain:
        round_to(there, name)
    with Operations() as direct:
        assert round_to(there, name, out=out) is out
    # The interpreter itself copies what a kernel was given.
    assert equal(out, wanted) and direct.count("copy_") == plain.count("copy_")
    assert direct.count("empty") == plain.count("empty") - 1
    assert equal(round_to(there, name, out=there), wanted)
