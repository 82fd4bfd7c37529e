"""Largest singular values of non-negative matrices through products alone: no SVD, no gradient.

A matrix is given in blocks of rows, kept or computed on every pass, and every pass over it serves
several processes at once. A process holds a `vector`, is handed B times that vector, and says when
it has `settled`. With B = A^T A:

    Krylov   Lanczos with full reorthogonalisation, one recurrence per head
    Perron   Krylov from the all-ones vector, then the two-sided enclosure
                 ||A x|| / ||x||  <=  ||A||_2  <=  sqrt(max_i (B x)_i / x_i)    for every x > 0
    Ritz     Krylov, then ||A x|| / ||x|| once more, which does not square the rounding error

Source: golub13, section 10.1; wielandt50. What is certified is the norm of the matrix as it is
stored, not of the one that exact scores would have given.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.observe.tracing.attention_tiles import Block
from layerlab.shapes import Attentions, HeadVector

HeadKeys = Float[Tensor, "head key"]
Vectors = Float[Tensor, "head vector key"]
Energies = Float[Tensor, "head vector"]

STEPS = 60
SMOOTHINGS = 100
CHUNK = 1024
TOLERANCE = 8
# A run that starts anywhere may meet a smaller singular value first, and rest there for a while;
# the all-ones vector always holds a part of the largest one's.
STRICT = 1e-2
GAP = 5e-4


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The results of one pass over a matrix: sums and norms of its columns, sums of its rows.

    Attributes:
        depth: the most additions that an entry of A x, and of A^T y, goes through in `gram`.
    """

    tokens: int
    depth: tuple[int, int]
    column_sums: HeadKeys
    column_norms: HeadKeys
    row_sum_min: HeadVector
    row_norm: HeadVector

    @property
    def reached(self) -> Tensor:
        """Return which columns are not zero; a NaN counts as reached, so that it is seen."""
        return self.column_sums != 0


@runtime_checkable
class Process(Protocol):
    """An iteration that is fed with products of one operator until it has converged."""

    settled: bool
    centred: bool

    @property
    def vector(self) -> HeadKeys: ...

    def absorb(self, product: HeadKeys, energy: HeadVector) -> None: ...


def dense(matrix: Attentions) -> tuple[Block, ...]:
    """Return a matrix as one block."""
    return (Block(slice(0, matrix.shape[1]), slice(0, matrix.shape[2]), matrix),)


def profile(blocks: Iterable[Block], keys: int) -> Profile:
    """Return the column sums, column norms and row sums of non-negative matrices, in one pass."""
    sums: list[Tensor] = []
    columns = squares = torch.empty(0)
    height = 0
    for block in blocks:
        entries = block.entries
        if not sums:
            columns = entries.new_zeros(entries.shape[0], keys)
            squares = torch.zeros_like(columns)
        sums.append(entries.sum(-1))
        height = max(height, entries.shape[1])
        columns[:, block.keys] += entries.sum(1)
        squares[:, block.keys] += entries.square().sum(1)
    rows = torch.cat(sums, 1)
    return Profile(
        tokens=rows.shape[1],
        depth=(min(keys, CHUNK) + -(-keys // CHUNK), height + len(sums)),
        column_sums=columns,
        column_norms=squares.sqrt(),
        row_sum_min=rows.amin(1),
        row_norm=rows.double().norm(dim=1) / keys**0.5,
    )


def gram(
    blocks: Iterable[Block], vectors: Vectors, shift: Energies
) -> tuple[Vectors, Energies, Energies]:
    """Return A^T y, ||y||^2 and sum(y) with y = A x - shift.

    For several x in one pass over the rows of A.

    With shift = mean(A x) this is A^T J A x with J = I - e e^T, and e = (1, ..., 1) / sqrt(n).
    """
    product = torch.zeros_like(vectors)
    energy, total = torch.zeros_like(shift), torch.zeros_like(shift)
    for block in blocks:
        image = _image(block, vectors[:, :, block.keys]) - shift.to(vectors.dtype)[..., None]
        energy += image.double().square().sum(-1)
        total += image.double().sum(-1)
        product[:, :, block.keys] += image @ block.entries
    return product, energy, total


def _image(block: Block, vectors: Tensor) -> Tensor:
    """Return A x, summed in chunks: that keeps the worst rounding of long rows small."""
    chunks = zip(vectors.split(CHUNK, -1), block.entries.mT.split(CHUNK, -2), strict=True)
    first, *rest = (vector @ entries for vector, entries in chunks)
    return sum(rest, start=first)


def settle(blocks: Iterable[Block], known: Profile, processes: Sequence[Process]) -> None:
    """Feed every process until all have settled; one pass over the matrix serves them all."""
    while active := [process for process in processes if not process.settled]:
        vectors = torch.stack([process.vector for process in active], 1)
        mean = torch.einsum("hvk,hk->hv", vectors.double(), known.column_sums.double())
        centred = torch.tensor([process.centred for process in active], device=mean.device)
        shift = torch.where(centred, mean / known.tokens, 0.0)
        product, energy, total = gram(blocks, vectors, shift)
        # The mean that was taken off is rounded, and A^T carries what is left into the column sums:
        # far above the rest where all rows nearly agree.
        drift = torch.where(centred, total / known.tokens, 0.0).to(product.dtype)
        product = product - drift[..., None] * known.column_sums[:, None]
        for index, process in enumerate(active):
            process.absorb(product[:, index], energy[:, index])


class Krylov:
    """Lanczos for the largest eigenvalue of B, one recurrence per head.

    It has settled when the estimated relative error of every head's eigenvalue, the smaller of
    residual and residual^2 / gap, is below tolerance * eps. A head whose Krylov space is
    exhausted goes on with the zero vector, and a NaN settles: neither can loop for ever.

    Source: golub13, section 10.1.
    """

    def __init__(self, start: HeadKeys, steps: int = STEPS, tolerance: float = TOLERANCE) -> None:
        heads, keys = start.shape
        self.settled = False
        self.vector = _unit(start)
        self._steps = min(steps, keys)
        self._tolerance = tolerance
        self._basis = start.new_empty(heads, self._steps, keys)
        self._ritz = torch.zeros(heads, self._steps, self._steps, dtype=torch.float64)
        self._taken = 0

    def absorb(self, product: HeadKeys, energy: HeadVector) -> None:
        """Take B times `vector`, and x^T B x as it was summed in float64."""
        step, self._taken = self._taken, self._taken + 1
        self._basis[:, step] = self.vector
        basis = self._basis[:, : self._taken]
        rest = product[:, None]
        for _ in range(2):
            rest = rest - (rest @ basis.mT) @ basis
        length = rest[:, 0].norm(dim=-1)
        noise = 4 * torch.finfo(product.dtype).eps * product.norm(dim=-1)
        length = torch.where(length <= noise, 0.0, length)
        self._ritz[:, step, step] = energy.cpu()
        values, shares = self._eigen()
        residual = length.cpu().double() * shares[:, -1, -1].abs()
        self.settled = self._taken == self._steps or not bool(
            (_error(values, residual) > self._tolerance * torch.finfo(product.dtype).eps).any()
        )
        if self.settled:
            self.vector = _unit((shares[:, None, :, -1].to(basis) @ basis)[:, 0])
            return
        self.vector = torch.where(length[:, None] == 0, 0.0, rest[:, 0] / length[:, None])
        self._ritz[:, step, step + 1] = self._ritz[:, step + 1, step] = length.cpu()

    def _eigen(self) -> tuple[Tensor, Tensor]:
        taken = self._ritz[:, : self._taken, : self._taken]
        return torch.linalg.eigh(taken.nan_to_num(0.0, 0.0, 0.0))


class Perron:
    """Two-sided enclosure of the spectral norm of a non-negative matrix.

    sqrt(x^T B x / x^T x)  <=  ||A||_2  <=  sqrt(max_i (B x)_i / x_i)

    x is the absolute Ritz vector of a Lanczos run from the all-ones vector, multiplied by B until
    both sides agree to `gap`: each product makes small entries right that Lanczos left as noise.
    Columns of zeros are left out, and an entry that vanished where its column does not is raised.
    Both sides carry the worst rounding of the products. That is (f + 2) u below, and (f + a + 4) u
    on the square above, where f and a are the additions per entry of A x and A^T y.

    Source: wielandt50.
    """

    centred = False

    def __init__(self, known: Profile, gap: float = GAP) -> None:
        start = known.reached.to(known.column_sums.dtype)
        self.settled = False
        self.norm = self.lower = start.new_zeros(start.shape[0], dtype=torch.float64)
        self.upper = self.lower + torch.inf
        self._reached = known.reached
        forward, adjoint = known.depth
        self._below = 1 - (forward + 2) * _roundoff(start)
        self._above = 1 - (forward + adjoint + 4) * _roundoff(start)
        self._krylov = Krylov(start)
        self._smoothings = 0
        self._gap = gap
        self._positive = start

    @property
    def vector(self) -> HeadKeys:
        return self._positive if self._krylov.settled else self._krylov.vector

    def absorb(self, product: HeadKeys, energy: HeadVector) -> None:
        if not self._krylov.settled:
            self._krylov.absorb(product, energy)
            self._positive = self._raised(self._krylov.vector.abs())
            return
        self._enclose(product, energy)
        self._positive = self._raised(product)
        self._smoothings += 1
        apart = self.upper > self.norm * (1 + self._gap) / self._above**0.5
        self.settled = self._smoothings == SMOOTHINGS or not bool(apart.any())

    def _enclose(self, product: Tensor, energy: Tensor) -> None:
        length = self._positive.double().square().sum(-1)
        value = (energy / torch.where(length == 0, 1.0, length)).sqrt()
        quotient = torch.where(self._reached, product / self._positive, 0.0).amax(-1).double()
        self.norm = torch.maximum(self.norm, value)
        self.lower = self.norm * self._below
        self.upper = torch.minimum(self.upper, (quotient / self._above).sqrt())

    def _raised(self, vector: Tensor) -> Tensor:
        """Scale the vector to a maximum of 1.

        It is positive wherever a column is not zero.
        """
        largest = vector.amax(-1, keepdim=True)
        scaled = vector / torch.where(largest == 0, 1.0, largest)
        floor = torch.finfo(vector.dtype).tiny ** 0.5
        return torch.where(self._reached, scaled.clamp_min(floor), 0.0)


class Ritz:
    """The largest singular value of J A = (I - e e^T) A, as ||J A x|| at the Ritz vector x.

    Lanczos starts from a seeded Gaussian, never from the all-ones vector, for which J A x = 0.
    Where rows sum to 1 means are taken off as well, so that a nearly uniform A keeps its digits.
    Values below about sqrt(n) u ||A||_2 are rounding.

    Source: pangu23, Lemma 1.
    """

    centred = True

    def __init__(self, known: Profile, stochastic: bool, seed: int = 0) -> None:
        sums = known.column_sums
        draw = torch.randn(sums.shape[1], generator=torch.Generator().manual_seed(seed))
        self._stochastic = stochastic
        start = (draw - draw.mean() * stochastic).to(sums).expand_as(sums)
        self.settled = False
        self.norm = sums.new_zeros(sums.shape[0], dtype=torch.float64)
        self._krylov = Krylov(start, tolerance=STRICT)

    @property
    def vector(self) -> HeadKeys:
        return self._krylov.vector

    def absorb(self, product: HeadKeys, energy: HeadVector) -> None:
        if self._krylov.settled:
            self.norm = energy.sqrt()
            self.settled = True
            return
        # J A 1 = 0: what a product has along the all-ones vector is rounding, larger than the rest.
        self._krylov.absorb(product - product.mean(-1, keepdim=True) * self._stochastic, energy)


def _error(values: Tensor, residual: Tensor) -> Tensor:
    """Return the estimated relative error of the largest Ritz value."""
    largest = values[:, -1]
    gap = largest - values[:, -2] if values.shape[1] > 1 else largest
    error = torch.minimum(residual, residual.square() / gap.clamp_min(1e-300))
    return torch.where(largest > 0, error / largest.clamp_min(1e-300), 0.0)


def _unit(vector: Tensor) -> Tensor:
    length = vector.norm(dim=-1, keepdim=True)
    return vector / torch.where(length == 0, 1.0, length)


def _roundoff(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps / 2
