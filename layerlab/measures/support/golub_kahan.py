"""Largest singular value of a linear map known only by its products: Golub-Kahan bidiagonalisation.

Several maps go on side by side. All vectors stay on their device; what decides whether a run has
converged is read by the host for all of them at once, and seldom where that makes it wait.
Matrices that are at hand get a bound from above as well, which a Cholesky factor certifies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.errors import NotApplicable, UserError
from layerlab.measures.support.centring import form_gram, precise
from layerlab.measures.support.lanczos import Krylov
from layerlab.observe.tracing.device_schedule import device_schedule, widen
from layerlab.observe.tracing.host_steps import Steps, run_steps, together
from layerlab.shapes import Map, Scalar

Vector = Float[Tensor, " size"]
AnyMatrix = Float[Tensor, "_ _"]
AnyBatch = Float[Tensor, "... _ _"]

SMALL = 256
"""The side of Gram matrices that the host decomposes before an accelerator has begun to."""

STEP = 2.0**10
"""By how much more a bound is raised where the last one had no certificate."""

AGREEMENT = 0.05
"""Rounding in bfloat16 stays well below it, a derivative that lacks a term does not."""


@dataclass(frozen=True, kw_only=True)
class Ritz:
    """The largest singular value found, and ||J^T u - value v|| / value of its pair.

    `residual` is that of the last complete step; the value itself is half a step ahead of it. A
    small residual says that a singular value is near, not that no larger one hides.
    """

    value: float
    residual: float
    steps: int


@runtime_checkable
class GolubKahanRun(Protocol):
    """An iteration that takes steps on its device until its evidence shows that it has converged.

    Attributes:
        settled: whether it has.
        device: where its vectors lie.
    """

    settled: bool
    device: torch.device

    @property
    def steps_left(self) -> int: ...

    def evidence(self) -> Tensor: ...

    def advance(self) -> None: ...

    def judge(self, evidence: Tensor) -> None: ...


class GolubKahan:
    """One run of the bidiagonalisation.

    J V_k = U_k B_k   and   J^T U_k = V_k B_k^T + beta_k v_{k+1} e_k^T
    value = ||[B_k, beta_k e_k]||_2

    The value is never above the true one (but for rounding), never falls with more steps, and is
    equal to it once the residual is 0. Both bases are kept orthogonal by doing every projection
    twice. A run that has exhausted its space goes on with the zero vector.

    Source: golub13, section 10.4.

    Args:
        adjoint: the transposed map.
        start: the first right vector; any length but zero.
        steps: most products with the map; as many with its transpose.
        tolerance: the residual at which to stop early.

    Raises:
        UserError: no step.
    """

    def __init__(
        self, forward: Map, adjoint: Map, start: Vector, *, steps: int, tolerance: float
    ) -> None:
        if steps < 1:
            raise UserError(f"steps={steps} finds nothing; give the number of steps, 1 or more")
        self.settled = False
        self.found = Ritz(value=0.0, residual=0.0, steps=0)
        self.device = start.device
        self._forward, self._adjoint = forward, adjoint
        self._steps = min(steps, start.numel())
        self._tolerance = tolerance
        self._right, self._left = [start / start.norm()], list[Tensor]()
        self._diagonal, self._above = list[Tensor](), list[Tensor]()
        self._first: tuple[Tensor, ...] = ()

    @property
    def steps_left(self) -> int:
        """Return how many steps are left."""
        return self._steps - len(self._diagonal)

    def evidence(self) -> Vector:
        """Return what the first step is checked by, and the bidiagonal factor."""
        return widen(torch.stack([*self._first, *self._diagonal, *self._above]))

    def advance(self) -> None:
        """Take one step: a product with the map, and one with its transpose."""
        image = self._forward(self._right[-1])
        finite = torch.isfinite(image).all().to(image.dtype)
        image = _orthogonal(image, self._left)
        self._diagonal.append(image.norm())
        self._left.append(_unit(image, self._diagonal[-1]))
        back = self._adjoint(self._left[-1])
        if not self._first:
            self._first = (finite, back @ self._right[0], back.norm())
        back = _orthogonal(back, self._right)
        self._above.append(back.norm())
        self._right.append(_unit(back, self._above[-1]))

    def judge(self, evidence: Vector) -> None:
        """Say whether the run has converged.

        Raises:
            NotApplicable: the maps are not the transpose of each other, or a product is not finite.
        """
        finite, product, size = evidence[:3].tolist()
        diagonal, above = evidence[3:].chunk(2)
        if not finite:
            raise NotApplicable("its derivative at this input is not finite")
        # A second derivative that is silently wrong has v . J^T u other than |J v|.
        length = float(diagonal[0])
        if length > 0 and not abs(product - length) <= AGREEMENT * max(length, size):
            raise NotApplicable("its derivative and the transpose of it do not agree")
        # A space that is exhausted ends the factor.
        steps = int((diagonal > 0).cumprod(0).sum())
        open_end = int((above[:steps] > 0).cumprod(0).sum())
        used = min(steps, open_end + 1)
        if used:
            self.found = _ritz(diagonal[:used], above[:used])
        ended = used < len(diagonal) or open_end < used or not self.steps_left
        self.settled = ended or self.found.residual <= self._tolerance


def converge(runs: Sequence[GolubKahanRun], skipped: int = 0) -> Steps[None]:
    """Let every run go on until it has settled; the host waits for all of them at once.

    Args:
        runs: they lie on one device.
        skipped: readings that are left out at first, where it waits for them.
    """
    if not runs:
        return
    schedule = device_schedule(runs[0].device)
    interval = schedule.sync_interval * schedule.sync_growth**skipped
    while active := [run for run in runs if not run.settled]:
        for run in active:
            for _ in range(min(interval, run.steps_left)):
                run.advance()
        evidence = yield [run.evidence() for run in active]
        for run, read in zip(active, evidence, strict=True):
            run.judge(read)
        interval *= schedule.sync_growth


class KrylovRun:
    """A `GolubKahanRun` whose steps are those of a Lanczos recurrence."""

    settled: bool
    _krylov: Krylov

    @property
    def steps_left(self) -> int:
        """Return how many steps are left."""
        return self._krylov.steps_left

    def evidence(self) -> Tensor:
        """Return what the recurrence is judged by."""
        return self._krylov.evidence()

    def judge(self, evidence: Tensor) -> None:
        """Say whether it has settled."""
        self._krylov.judge(evidence)
        self.settled = self._krylov.settled


class SpectralBounds:
    """Bounds of the spectral norms of batches of matrices: from above once each is certified.

    Those whose shorter sides are as long are read side by side.

    Attributes:
        missing: the bounds that no factor certifies as yet.
    """

    def __init__(self, matrices: Sequence[AnyBatch]) -> None:
        alike: dict[tuple[int, torch.device], list[int]] = {}
        for number, matrix in enumerate(matrices):
            alike.setdefault((min(matrix.shape[-2:]), matrix.device), []).append(number)
        self._numbers = list(alike.values())
        self._parts = [_CertifiedBounds([matrices[one] for one in each]) for each in self._numbers]
        self.missing: list[tuple[_CertifiedBounds, list[int]]] = []

    def approach(self) -> Steps[None]:
        """Find the norms from below."""
        small = [one for one in self._parts if one.gram.shape[1] <= SMALL]
        large = [one for one in self._parts if one not in small]
        # Few have converged before the last step.
        yield from together(_decompose(small), converge(large, skipped=1))
        self.missing = [(one, list(range(len(one.gram)))) for one in large]

    def certify(self) -> Steps[None]:
        """Raise the bounds until a factor certifies each."""
        while self.missing:
            self.judge((yield self.factor()))

    def factor(self) -> list[Tensor]:
        """Return which of the missing bounds have no factor; with each call more is tried."""
        return [one.factor(numbers) for one, numbers in self.missing]

    def judge(self, lacking: Sequence[Tensor]) -> None:
        """Keep as missing what has no factor."""
        self.missing = [
            (one, left)
            for (one, numbers), read in zip(self.missing, lacking, strict=True)
            if (left := [number for number, no in zip(numbers, read.tolist(), strict=True) if no])
        ]

    def values(self) -> list[Tensor]:
        """Return the bounds, never below the norms but for those that are missing."""
        found = dict[int, Tensor]()
        for numbers, one in zip(self._numbers, self._parts, strict=True):
            found.update(zip(numbers, one.bounds(), strict=True))
        return [found[number] for number in range(len(found))]


def _decompose(bounds: Sequence["_CertifiedBounds"]) -> Steps[None]:
    """Find the largest eigenvalues of small matrices on the host."""
    if bounds:
        for one, gram in zip(bounds, (yield [one.gram for one in bounds]), strict=True):
            one.found = torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0).to(one.gram)


def spectral_bounds(matrices: Sequence[AnyBatch]) -> list[Tensor]:
    """Return the spectral norms of batches of matrices, never below the true ones.

    ||W||_2 <= sqrt(t (1 + m (n + 8) eps))   if t I - W W^T has a Cholesky factor, in float64

    m is the shorter side. t is what Lanczos found, raised until there is a factor: as a rule once,
    by as much as the rounding of product and factor, n m u t and (m + 1) m u t, can be. Of small
    matrices t is the largest eigenvalue, which the host finds.

    Source: golub13, sections 4.2 and 10.1.
    Unit: that of the weights.
    """
    bounds = SpectralBounds(matrices)
    run_steps(bounds.approach())
    run_steps(bounds.certify())
    return bounds.values()


class _CertifiedBounds(KrylovRun):
    """The largest eigenvalues of the Gram matrices of batches, from below, then from above.

    Attributes:
        gram: those of all matrices, whose shorter sides are as long.
        found: those eigenvalues, from below.
    """

    found: Tensor

    def __init__(self, matrices: Sequence[AnyBatch]) -> None:
        self._shapes = [matrix.shape[:-2] for matrix in matrices]
        rows = min(matrices[0].shape[-2:])
        gram = precise(matrices[0][..., :0, :0]).new_empty(sum(self._counts()), rows, rows)
        for matrix, part in zip(matrices, gram.split(self._counts()), strict=True):
            wide = precise(matrix)
            wide = (wide.mT if wide.shape[-2] > rows else wide).reshape(len(part), rows, -1)
            form_gram(wide, out=part)
        self.settled, self.device = False, gram.device
        # No entry is larger than the largest of the diagonal.
        self._finite = gram.diagonal(dim1=1, dim2=2).isfinite().all(1)
        self.gram = gram.masked_fill_(~self._finite[:, None, None], 0.0)
        self._trace = gram.diagonal(dim1=1, dim2=2).sum(1)
        terms = [rows * (max(matrix.shape[-2:]) + 8) for matrix in matrices]
        each = zip(self._trace.split(self._counts()), terms, strict=True)
        eps = torch.finfo(torch.float64).eps
        self._eps = torch.cat([torch.full_like(part, count * eps) for part, count in each])
        self._excess = torch.zeros_like(self._trace)
        start = torch.randn(rows, generator=torch.Generator().manual_seed(0))
        limit = min(terms) / 8
        self._krylov = Krylov(start.to(self.gram).expand(len(gram), rows), tolerance=limit)

    def advance(self) -> None:
        self._krylov.absorb(*self._multiply())

    def judge(self, evidence: Tensor) -> None:
        super().judge(evidence)
        if self.settled:
            # The mean eigenvalue is never above the largest one.
            self.found = self._multiply()[1].clamp_min(self._trace / self.gram.shape[1])
            self._excess = self._eps / STEP

    def factor(self, numbers: Sequence[int]) -> Tensor:
        """Return which of some matrices have no factor; with each call more is tried."""
        for number in numbers:
            self._excess[number] *= STEP
        raised = torch.where(self._trace > 0, self.found * (1 + self._excess), 1.0)
        return torch.stack([self._lacks_factor(number, raised[number]) for number in numbers])

    def bounds(self) -> list[Tensor]:
        squared = self.found * (1 + self._excess) * (1 + self._eps)
        bounds = torch.where(self._finite, squared.sqrt(), nan).split(self._counts())
        return [part.view(shape) for part, shape in zip(bounds, self._shapes, strict=True)]

    def _counts(self) -> list[int]:
        return [shape.numel() for shape in self._shapes]

    def _lacks_factor(self, number: int, raised: Scalar) -> Tensor:
        shifted = -self.gram[number]
        shifted.diagonal().add_(raised)
        # Batches of large matrices are factored slowly.
        return torch.linalg.cholesky_ex(shifted).info != 0

    def _multiply(self) -> tuple[Tensor, Tensor]:
        vector = self._krylov.vector
        product = torch.bmm(self.gram, vector[..., None])[..., 0]
        return product, (vector * product).sum(1)


def _orthogonal(vector: Vector, basis: list[Tensor]) -> Vector:
    if basis:
        stack = torch.stack(basis)
        for _ in range(2):
            vector = vector - stack.T @ (stack @ vector)
    return vector


def _unit(vector: Vector, length: Tensor) -> Vector:
    return torch.where(length == 0, 0.0, vector / length)


def _ritz(diagonal: Vector, above: Vector) -> Ritz:
    """Return the best pair that a bidiagonal factor with this diagonal and superdiagonal offers."""
    size = len(diagonal)
    wide = torch.zeros(size, size + 1, dtype=torch.float64)
    wide[:, :-1].diagonal().copy_(diagonal)
    wide[:, 1:].diagonal().copy_(above)
    vectors, values, _ = torch.linalg.svd(wide[:, :-1])
    return Ritz(
        value=float(torch.linalg.matrix_norm(wide, 2)),
        residual=float(wide[-1, -1] * vectors[-1, 0].abs() / values[0]),
        steps=size,
    )
