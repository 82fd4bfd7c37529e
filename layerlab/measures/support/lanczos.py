"""Largest singular values of non-negative matrices through products alone: no SVD, no gradient.

Every pass over a matrix serves several processes at once. A process holds a `vector` and is handed
B times that vector; all of it stays on the device. What decides whether it has `settled` is read by
the host after some passes, for all processes at once: on a CPU after each, on an accelerator, which
waits for every reading, after many. With B = A^T A:

    Krylov   Lanczos with full reorthogonalization, one recurrence per head
    Perron   Krylov from the all-ones vector, then the two-sided enclosure
                 ||A x|| / ||x||  <=  ||A||_2  <=  sqrt(max_i (B x)_i / x_i)    for every x > 0
    Ritz     Krylov, then ||A x|| / ||x|| once more, which does not square the rounding error

Source: golub13, section 10.1; wielandt50. What is certified is the norm of the matrix as it is
stored, not of the one that exact scores would have given.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.measures.support.products import Energies, HeadKeys, Operator, Profile
from layerlab.observe.tracing.device_schedule import device_schedule, read_host, widen
from layerlab.shapes import HeadVector

HeadEvidence = Float[Tensor, "head value"]

STEPS = 60
SMOOTHINGS = 100
FEW = 8  # of them are enough for nearly every head,
GROWTH = 3  # else this many times those that were made
TOLERANCE = 8
# A run that starts anywhere may meet a smaller singular value first, and rest there for a while;
# the all-ones vector always holds a part of the largest one's.
STRICT = 1e-2
GAP = 5e-4


@runtime_checkable
class Process(Protocol):
    """An iteration that is fed with products of one operator until it has converged.

    What decides whether it has converged is its `evidence`, with one row for each head.

    Attributes:
        steps_left: how many products it can use before it has to be judged.
    """

    settled: bool
    centred: bool

    @property
    def vector(self) -> HeadKeys: ...

    @property
    def steps_left(self) -> int: ...

    def evidence(self) -> HeadEvidence: ...

    def absorb(self, product: HeadKeys, energy: HeadVector) -> None: ...

    def judge(self, evidence: HeadEvidence) -> None: ...


def settle(matrix: Operator, profile: Profile, processes: Sequence[Process]) -> None:
    """Feed every process until all have settled; one pass over the matrix serves them all."""
    schedule = device_schedule(profile.column_sums.device)
    passes = schedule.sync_interval
    while active := [process for process in processes if not process.settled]:
        for _ in range(min(passes, max(process.steps_left for process in active))):
            _pass(matrix, profile, active)
        waiting = [process for process in active if not process.settled]
        evidence = read_host([process.evidence() for process in waiting])
        for process, read in zip(waiting, evidence, strict=True):
            process.judge(read)
        passes *= schedule.sync_growth


def _pass(matrix: Operator, profile: Profile, active: Sequence[Process]) -> None:
    """Hand every process the product with its vector."""
    vectors = torch.stack([process.vector for process in active], 1)
    sums = widen(profile.column_sums)[..., None]
    shift = _only_centred(torch.bmm(widen(vectors), sums)[..., 0], profile, active)
    product, energy, total = matrix.gram(vectors, shift)
    # The mean that was taken off is rounded, and A^T carries what is left into the column sums:
    # far above the rest where all rows nearly agree.
    drift = _only_centred(total, profile, active).to(product.dtype)
    product = product - drift[..., None] * profile.column_sums[:, None]
    for index, process in enumerate(active):
        process.absorb(product[:, index], energy[:, index])


def _only_centred(sums: Energies, profile: Profile, processes: Sequence[Process]) -> Energies:
    """Return means over the rows, and zero for processes that are not centred."""
    means = sums / profile.tokens
    for index, process in enumerate(processes):
        if not process.centred:
            means[:, index].zero_()
    return means


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
        self._limit = tolerance * torch.finfo(start.dtype).eps
        self._basis = start.new_empty(heads, self._steps, keys)
        self._energies: list[Tensor] = []
        self._lengths: list[Tensor] = []

    @property
    def steps_left(self) -> int:
        """Return how many steps are left."""
        return self._steps - len(self._energies)

    def evidence(self) -> HeadEvidence:
        """Return the diagonal of the tridiagonal matrix of Lanczos, and what lies beside it."""
        return torch.cat([torch.stack(self._energies, 1), widen(torch.cat(self._lengths, 1))], 1)

    def absorb(self, product: HeadKeys, energy: HeadVector) -> None:
        """Take B times `vector`, and x^T B x as it was summed in float64."""
        if not self.steps_left:
            return
        step = len(self._energies)
        self._basis[:, step] = self.vector
        basis = self._basis[:, : step + 1]
        across = basis.mT
        rest = product[:, None]
        for _ in range(2):
            rest = torch.baddbmm(rest, torch.bmm(rest, across), basis, alpha=-1)
        length = rest.norm(dim=-1)
        noise = 4 * torch.finfo(product.dtype).eps * product.norm(dim=-1, keepdim=True)
        # Nothing is left of what is divided by it.
        length = length.masked_fill(length <= noise, torch.inf)
        self._energies.append(energy)
        self._lengths.append(length)
        self.vector = rest[:, 0] / length

    def judge(self, evidence: HeadEvidence) -> None:
        """Take the Ritz vector for `vector` where every head has converged, or none can go on."""
        energies, lengths = evidence.chunk(2, 1)
        lengths = lengths.masked_fill(lengths == torch.inf, 0.0)
        values, shares = _eigen(energies, lengths[:, :-1])
        residual = lengths[:, -1] * shares[:, -1, -1].abs()
        self.settled = not self.steps_left or not bool(
            (_error(values, residual) > self._limit).any()
        )
        if self.settled:
            self.vector = self._combine(values[:, -1:], shares[:, :, -1], lengths[:, -1:])

    def _combine(self, value: Tensor, shares: Tensor, length: Tensor) -> HeadKeys:
        """Return B times the Ritz vector, scaled: nearer than the vector itself, for no product.

        B V = V T + length v e^T, where v is the vector after the last of V, and e^T its last share.
        """
        basis = self._basis[:, : shares.shape[1]]
        factors = torch.cat([value * shares, length * shares[:, -1:]], 1).to(basis)  # sent at once
        inside = torch.bmm(factors[:, None, :-1], basis)[:, 0]
        return _unit(inside + factors[:, -1:] * self.vector)


def _eigen(diagonal: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of symmetric tridiagonal matrices."""
    ritz = diagonal.diag_embed() + beside.diag_embed(1) + beside.diag_embed(-1)
    return torch.linalg.eigh(ritz.nan_to_num(0.0, 0.0, 0.0))


class Perron:
    """Two-sided enclosure of the spectral norm of a non-negative matrix.

    sqrt(x^T B x / x^T x)  <=  ||A||_2  <=  sqrt(max_i (B x)_i / x_i)

    x is the absolute Ritz vector of a Lanczos run from the all-ones vector, multiplied by B until
    both sides agree to `gap`: each product makes small entries right that Lanczos left as noise.
    Columns of zeros are left out, and an entry that vanished where its column does not is raised.
    Both sides carry the worst rounding of the products. That is (f + 2) u below, and (f + a + 4) u
    on the square above, where f and a are the additions per entry of A x and A^T y.

    Source: wielandt50.

    Args:
        stochastic: whether rows sum to 1. Then A^T A 1 is what the columns sum to: the first
            product of Lanczos is known.
    """

    centred = False

    def __init__(self, profile: Profile, stochastic: bool, gap: float = GAP) -> None:
        start = profile.reached.to(profile.column_sums.dtype)
        self.settled = False
        self.norm = self.lower = widen(start.new_zeros(start.shape[0]))
        self.upper = self.lower + torch.inf
        self._reached = profile.reached
        forward, adjoint = profile.depth
        self._below = 1 - (forward + 2) * _roundoff(start)
        self._above = 1 - (forward + adjoint + 4) * _roundoff(start)
        self._krylov = Krylov(start)
        if stochastic:
            count = widen(start).sum(-1).clamp_min(1)
            root = count.sqrt()[:, None].to(start.dtype)
            self._krylov.absorb(profile.column_sums / root, profile.tokens / count)
        self._smoothings = 0
        self._gap = gap
        self._positive = start

    @property
    def vector(self) -> HeadKeys:
        return self._positive if self._krylov.settled else self._krylov.vector

    @property
    def steps_left(self) -> int:
        if not self._krylov.settled:
            return self._krylov.steps_left
        # Where a few were not enough, many more are likely to be wanted.
        return min(max(FEW, GROWTH * self._smoothings), SMOOTHINGS - self._smoothings)

    def evidence(self) -> HeadEvidence:
        """Return both sides, or what the Lanczos run shows before there are any."""
        if not self._krylov.settled:
            return self._krylov.evidence()
        return torch.stack([self.norm, self.upper], 1)

    def absorb(self, product: HeadKeys, energy: HeadVector) -> None:
        if not self._krylov.settled:
            self._krylov.absorb(product, energy)
            return
        self._enclose(product, energy)
        self._positive = self._rescale(product)
        self._smoothings += 1

    def judge(self, evidence: HeadEvidence) -> None:
        if not self._krylov.settled:
            self._krylov.judge(evidence)
            self._positive = self._rescale(self._krylov.vector.abs())
            return
        norm, upper = evidence.unbind(1)
        apart = upper > norm * (1 + self._gap) / self._above**0.5
        self.settled = self._smoothings >= SMOOTHINGS or not bool(apart.any())

    def _enclose(self, product: Tensor, energy: Tensor) -> None:
        length = widen(self._positive).square().sum(-1)
        value = (energy / torch.where(length == 0, 1.0, length)).sqrt()
        quotient = widen(torch.where(self._reached, product / self._positive, 0.0).amax(-1))
        self.norm = torch.maximum(self.norm, value)
        self.lower = self.norm * self._below
        self.upper = torch.minimum(self.upper, (quotient / self._above).sqrt())

    def _rescale(self, vector: Tensor) -> Tensor:
        """Scale the vector to a maximum of 1.

        It is positive wherever a column is not zero.
        """
        largest = vector.amax(-1, keepdim=True)
        scaled = vector / torch.where(largest == 0, 1.0, largest)
        floor = torch.finfo(vector.dtype).tiny ** 0.5
        return torch.where(self._reached, scaled.clamp_min(floor), 0.0)


class CentredRitz:
    """The largest singular value of J A = (I - e e^T) A, as ||J A x|| at the Ritz vector x.

    Lanczos starts from a seeded Gaussian, never from the all-ones vector, for which J A x = 0.
    Where rows sum to 1 means are taken off as well, so that a nearly uniform A keeps its digits.
    Values below about sqrt(n) u ||A||_2 are rounding.

    Source: pangu23, Lemma 1.
    """

    centred = True

    def __init__(self, profile: Profile, stochastic: bool, seed: int = 0) -> None:
        sums = profile.column_sums
        draw = torch.randn(sums.shape[1], generator=torch.Generator().manual_seed(seed))
        self._stochastic = stochastic
        start = (draw - draw.mean() * stochastic).to(sums).expand_as(sums)
        self.settled = False
        self.norm = widen(sums.new_zeros(sums.shape[0]))
        self._krylov = Krylov(start, tolerance=STRICT)

    @property
    def vector(self) -> HeadKeys:
        return self._krylov.vector

    @property
    def steps_left(self) -> int:
        return 1 if self._krylov.settled else self._krylov.steps_left

    def evidence(self) -> HeadEvidence:
        return self._krylov.evidence()

    def absorb(self, product: HeadKeys, energy: HeadVector) -> None:
        if self._krylov.settled:
            self.norm = energy.sqrt()
            self.settled = True
            return
        # J A 1 = 0: what a product has along the all-ones vector is rounding, larger than the rest.
        self._krylov.absorb(product - product.mean(-1, keepdim=True) * self._stochastic, energy)

    def judge(self, evidence: HeadEvidence) -> None:
        self._krylov.judge(evidence)


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
