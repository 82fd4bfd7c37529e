"""The kernel of GPUs, in Triton: what `rounding.cpp` does, bit for bit, in one read and one write.

Whole-number arithmetic on the carrier's bits, in 32 bits for float32, without a branch. The numbers
of the grid are constants of the compiled code: one specialization for a format, mode and carrier.
Random words are made where they are used (Philox, four at a time), from a seed in the device's
memory and an element's place in the tensor: no noise is stored, and nothing is waited for.

Proved on a CPU: through Triton's interpreter, the bits of pure torch for every format and mode; and
that the code compiles for compute capability 9.0, four numbers of float32 to a load, without shared
memory or a spilled register: 14 machine instructions for a number to bf16, 27 to fp8, and 32 and 47
stochastically. Not yet shown by a GPU: that it runs there, and how fast.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from layerlab.numerics.formats.grid import MODES, Grid, Mode, grid
from layerlab.numerics.formats.kernel import KNOWN, KNOWN_FORMAT
from layerlab.numerics.formats.random_bits import seed_on
from layerlab.numerics.formats.round_reference import WORDS

INTERPRETED = bool(triton.knobs.runtime.interpret)
# Elements that a program takes: two loads of sixteen bytes for each of 128 threads. The interpreter
# runs one program after the other, each in NumPy.
BLOCK = 1 << 18 if INTERPRETED else 1024
# From here on, places are counted in 64 bits.
LARGE = 2**31 - 2**20


@triton.jit
def round_words(bits, noise, GRID: tl.constexpr, MODE: tl.constexpr):
    """Round the bits of a carrier; `noise` is read in stochastic rounding only."""
    stored: tl.constexpr = GRID.stored
    # -1 where there is a sign.
    negative = bits >> (31 if stored == 23 else 63)
    size = bits & (GRID.infinity | ((1 << stored) - 1))
    sign = bits ^ size
    if GRID.uniform:
        kept = _cut(size, noise, negative, GRID.normal, (1 << GRID.normal) - 1, MODE)
        found = kept
    else:
        # What lies above the significand: the exponent field less one, where it stands.
        above = tl.maximum(size - (1 << stored), 0) & -(1 << stored)
        significand = size - above
        drop = GRID.base - 1 - (above >> stored)
        if GRID.wide:
            drop = tl.maximum(drop, tl.maximum(_length(significand, stored) - GRID.digits, 0))
        else:
            drop = tl.maximum(drop, GRID.normal)
        if MODE == "stochastic":
            far = tl.minimum(tl.maximum(drop - GRID.cap, 0), stored + 1)
            significand = significand >> far
        drop = tl.minimum(drop, GRID.cap)
        ones = ((drop * 0 + 1) << drop) - 1
        kept = _cut(significand, noise, negative, drop, ones, MODE)
        found = kept + above
        if MODE == "nearest" or MODE == "away" or MODE == "zero":
            found = tl.where(kept != 0, found, 0)
        else:
            # Where all bits but the carry are dropped, there is the smallest number or nothing.
            found = tl.where(drop > stored, tl.where(kept != 0, GRID.least, 0), found)
    if GRID.above == GRID.below:
        found = tl.where(found > GRID.most, GRID.above, found)
    else:
        found = tl.where(found > GRID.most, tl.where(negative != 0, GRID.below, GRID.above), found)
    found = tl.where(size == GRID.infinity, GRID.infinite, found)
    return tl.where(size >= GRID.kept, size, found) | sign


@triton.jit
def _cut(significand, noise, negative, drop, ones, MODE: tl.constexpr):
    """Add what the mode asks for, then cut off the dropped bits."""
    if MODE == "nearest":
        significand += (ones >> 1) + ((significand >> drop) & ones & 1)
    if MODE == "away":
        significand += (ones >> 1) + (ones & 1)
    if MODE == "up":
        significand += ~negative & ones
    if MODE == "down":
        significand += negative & ones
    if MODE == "stochastic":
        significand += noise & ones
    return significand & ~ones


@triton.jit
def _length(significand, stored: tl.constexpr):
    """Return how many binary digits a whole number has, by the exponent it has as a real one."""
    if stored == 23:
        length = (significand.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    else:
        length = (significand.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1022
    return length


@triton.jit
def draw_words(seed, first, COUNT: tl.constexpr, WIDE: tl.constexpr):
    """Return a random word for each of COUNT elements; the first is a multiple of COUNT."""
    share: tl.constexpr = 2 if WIDE else 4
    offsets = first // share + tl.arange(0, COUNT // share)
    one, two, three, four = tl.randint4x(tl.load(seed), offsets)
    if WIDE:
        upper = (one.to(tl.uint64) << 32) | two.to(tl.uint64)
        lower = (three.to(tl.uint64) << 32) | four.to(tl.uint64)
        words = tl.reshape(tl.join(upper, lower), [COUNT]).to(tl.int64, bitcast=True)
    else:
        # Neighbours in the tensor are neighbours in a thread: nothing is exchanged.
        pairs = tl.join(tl.join(one, three), tl.join(two, four))
        words = tl.reshape(pairs, [COUNT]).to(tl.int32, bitcast=True)
    return words


@triton.jit
def _round_each(
    x,
    out,
    seed,
    words,
    count,
    GRID: tl.constexpr,
    MODE: tl.constexpr,
    DRAWN: tl.constexpr,
    LARGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0)
    if LARGE:
        first = first.to(tl.int64)
    first = first * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    inside = offsets < count
    bits = tl.load(x + offsets, mask=inside, other=0)
    noise = bits
    if DRAWN == "words":
        noise = tl.load(words + offsets, mask=inside, other=0)
    elif DRAWN == "seed":
        noise = draw_words(seed, first, BLOCK, GRID.stored == 52)
    tl.store(out + offsets, round_words(bits, noise, GRID, MODE), mask=inside)


class TritonLaunch:
    """The kernel for one format, mode and carrier, ready to be called."""

    def __init__(self, numbers: Grid, mode: Mode, dtype: torch.dtype) -> None:
        self._grid = numbers
        self._mode = mode
        self._word = WORDS[dtype]

    def draw(self, x: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """Return what stochastic rounding draws with, a seed; None in the other modes."""
        return seed_on(x.device, generator) if self._mode == "stochastic" else None

    def __call__(
        self, x: Tensor, out: Tensor, seed: Tensor | None = None, words: Tensor | None = None
    ) -> None:
        """Round x into `out`, both contiguous or laid out alike; `out` may be x.

        Args:
            seed: of the random words, one whole number on the device.
            words: given instead, one for each element.
        """
        count = x.numel()
        if count == 0:
            return
        block = fit_block(count)
        launch(
            _round_each,
            x.view(self._word),
            -(-count // block),
            out.view(self._word),
            seed,
            words,
            count,
            self._grid,
            self._mode,
            random_source(seed, words),
            count > LARGE,
            block,
        )


def check(device: str) -> None:
    """Round a few numbers on a device.

    Raises:
        RuntimeError: it rounds wrongly; or what Triton itself raises.
    """
    dtype, mode = torch.float32, MODES[0]
    given, wanted = (
        torch.tensor(list(one), dtype=dtype, device=device) for one in (KNOWN, KNOWN.values())
    )
    TritonLaunch(grid(KNOWN_FORMAT, mode, dtype), mode, dtype)(given, given)
    if not torch.equal(given.view(WORDS[dtype]), wanted.view(WORDS[dtype])):
        raise RuntimeError("the kernel rounds wrongly")


def fit_block(count: int) -> int:
    """Return how many elements a program takes; the interpreter takes no more than there are."""
    return min(BLOCK, max(1024, triton.next_power_of_2(count))) if INTERPRETED else BLOCK


def random_source(seed: Tensor | None, words: Tensor | None) -> str:
    """Return where a kernel finds its random words."""
    return "none" if seed is None and words is None else "seed" if words is None else "words"


def launch(kernel: Any, x: Tensor, programs: int, *rest: Any) -> None:
    """Run a kernel on the device of its first tensor.

    Nothing is fused: a product and a sum that are rounded once have other bits.
    """
    with torch.cuda.device_of(x):
        kernel[(programs,)](x, *rest, num_warps=4, enable_fp_fusion=False)
