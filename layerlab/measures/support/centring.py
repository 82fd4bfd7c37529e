"""Features about their mean, in float64, and the spectra of their second moments."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.observe.tracing.device_schedule import read_host
from layerlab.shapes import Hidden, Matrix, Scalar

NAN = float("nan")
LARGE = 1024
"""Rows from which on half a Gram matrix is computed and mirrored; of fewer, all in one product."""

PARTS = 8
ValueVector = Float[Tensor, " value"]


def precise(h: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the same numbers in float64, where no float32 feature overflows when squared."""
    # Apple's device has no float64, so its features are read on the processor.
    home = "cpu" if h.device.type == "mps" else h.device
    return h.detach().to(home, torch.float64)


def centre(h: Hidden) -> Hidden:
    """Subtract the mean over tokens from the features, in float64.

    JX = (I - e e^T) X   with   e = (1, ..., 1) / sqrt(n)

    Equal tokens give exactly 0: the first token is subtracted before the mean is taken, so the
    rounding error is relative to the spread and not to the mean.

    Source: pangu23, section 3.
    Unit: that of `h`.
    """
    wide = precise(h)
    shifted = wide - wide[:1]
    return shifted - shifted.mean(0)


def form_gram(
    rows: Float[Tensor, "... row column"], out: Float[Tensor, "... row row"] | None = None
) -> Float[Tensor, "... row row"]:
    """Return A A^T of every matrix A, outside autograd.

    Of `LARGE` rows and more, each block is multiplied with itself and those before it.

    Args:
        out: what it is written into.

    Example:
        >>> form_gram(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[25.0, 4.0], [4.0, 1.0]]
    """
    rows, size = rows.detach(), rows.shape[-2]
    gram = rows.new_empty(*rows.shape[:-1], size) if out is None else out
    step = max(size if size < LARGE else -(-size // PARTS), 1)
    for start in range(0, size, step):
        own, before = slice(start, start + step), slice(start)
        until = rows[..., : own.stop, :]
        torch.matmul(rows[..., own, :], until.mT, out=gram[..., own, : own.stop])
        gram[..., before, own] = gram[..., own, before].mT
    return gram


@dataclass(frozen=True, kw_only=True)
class SecondMoments:
    """A Gram matrix, on the host: `gram` times `scale`, of which the longer side was `size`."""

    gram: Matrix
    scale: Scalar
    size: int

    def eigenvalues(self) -> ValueVector:
        """Return the eigenvalues, the largest first; NaN where the matrix is not finite.

        What is too small to be told from rounding is 0.
        """
        finite = self.gram.isfinite().all()
        values = torch.linalg.eigvalsh(torch.where(finite, self.gram, 0.0)).flip(0)
        floor = self.size * torch.finfo(torch.float64).eps * values[0]
        return torch.where(finite, torch.where(values > floor, values, 0.0), NAN) * self.scale


def gram_eigenvalues(m: Matrix) -> ValueVector:
    """Return the squared singular values of a matrix, the largest first, in float64.

    lambda_i = sigma_i(M)^2, the eigenvalues of M^T M or of M M^T, whichever is smaller

    Source: golub13, section 8.6.
    Differs: from the Gram matrix, so sigma below sqrt(size * eps) of the largest reads 0.
    Unit: the square of that of `m`.

    Example:
        >>> gram_eigenvalues(torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])).tolist()
        [9.0, 4.0]
    """
    return _gram(m).eigenvalues()


def _gram(m: Matrix) -> SecondMoments:
    wide = precise(m)
    largest = wide.abs().amax()
    wide = wide / torch.where(largest == 0, 1.0, largest)
    gram = form_gram(wide.T if wide.shape[0] >= wide.shape[1] else wide)
    return _read(gram, largest.square(), max(wide.shape))


def _read(gram: Matrix, scale: Tensor, size: int) -> SecondMoments:
    gram, scale = read_host([gram, scale])
    return SecondMoments(gram=gram, scale=scale, size=size)


@dataclass(kw_only=True)
class Pool:
    """Tokens of one layer over all sequences, as features or as second moments.

    After a merge   S = S_a + S_b + (m_b - m_a)(m_b - m_a)^T n_a n_b / n
    with S the second moments about the mean m of n tokens.
    """

    tokens: int = 0
    batches: int = 0
    features: list[Hidden] = field(default_factory=list)
    count: int = 0
    mean: ValueVector | None = None
    moments: Matrix | None = None

    @property
    def width(self) -> int:
        """Return the features of a token."""
        return self.features[0].shape[1] if self.moments is None else len(self.moments)

    @property
    def device(self) -> torch.device:
        """Return where the tokens lie."""
        return (self.features[0] if self.moments is None else self.moments).device

    def add(self, h: Hidden) -> None:
        """Take the tokens of one more batch."""
        # A copy, because a slice would keep the whole batch alive.
        self.features.append(h.detach().clone())
        self.tokens += len(h)
        self.batches += 1
        held = sum(part.numel() * part.element_size() for part in self.features)
        if self.moments is not None or held > 8 * h.shape[1] ** 2:
            self._fold()

    def on_host(self) -> SecondMoments:
        """Return the second moments about the mean, or the smaller Gram matrix of few tokens."""
        if self.moments is None:
            return _gram(centre(torch.cat(self.features)))
        self._fold()
        return _read(self.moments, self.moments.new_ones(()), max(self.tokens, len(self.moments)))

    def second_moments(self) -> tuple[ValueVector, Matrix]:
        """Return the mean token, and the second moments about it, n times the covariance."""
        self._fold()
        assert self.mean is not None and self.moments is not None, "a pool of no tokens"
        return self.mean, self.moments

    def _fold(self) -> None:
        if not self.features:
            return
        h = precise(torch.cat(self.features))
        self.features = []
        deviation = centre(h)
        moments, mean, count = form_gram(deviation.T), h.mean(0), len(h)
        if self.moments is None or self.mean is None:
            self.moments, self.mean, self.count = moments, mean, count
            return
        shift, total = mean - self.mean, self.count + count
        self.moments += moments + torch.outer(shift, shift) * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.count = total
