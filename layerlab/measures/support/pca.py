"""Principal components of tokens: the directions along which they differ most.

From the second moments of a `dimension.Pool`, width x width in float64, of which only the leading
eigenvectors are computed; no matrix has a side for each token.
"""

from dataclasses import dataclass

import scipy.linalg
import torch
from jaxtyping import Float, Int
from torch import Tensor

from layerlab.measures.support.centring import NAN, Pool, precise
from layerlab.shapes import Hidden, Scalar

COMPONENTS = 3
MeanVector = Float[Tensor, " width"]
Variances = Float[Tensor, " component"]
Directions = Float[Tensor, "component width"]
Points = Float[Tensor, "token component"]
Marks = Int[Tensor, " token"]


@dataclass(frozen=True, kw_only=True)
class Components:
    """The directions of most variance of a cloud of tokens, the largest first.

    Attributes:
        variances: along each direction; the covariance divides by tokens - 1.
        total: variance along all directions of the width together.
        tokens: how many there are.
    """

    mean: MeanVector
    directions: Directions
    variances: Variances
    total: float
    tokens: int

    @property
    def shares(self) -> Variances:
        """Return the shares of the total variance; NaN where nothing varies."""
        return self.variances / self.total if self.total > 0 else self.variances * NAN


def components(pool: Pool) -> Components:
    """Return the three directions of most variance.

    Those without any are zeros, as beyond the width.

    S v_i = lambda_i v_i,   S = sum_t (x_t - m)(x_t - m)^T / (n - 1),   variance_i = lambda_i

    Source: pangu23, section 5.2.
    Differs: the source leaves the sign of a direction open; here its largest entry is positive, so
    that the same features give the same picture.
    Unit: the square of that of the features (variances).
    """
    mean, moments = (one.cpu() for one in pool.second_moments())
    width, freedom = len(mean), max(pool.tokens - 1, 1)
    count = min(COMPONENTS, width)
    directions, variances = mean.new_zeros(COMPONENTS, width), mean.new_zeros(COMPONENTS)
    total = float(moments.trace()) / freedom
    if moments.isfinite().all():
        values, vectors = scipy.linalg.eigh(
            moments.numpy(), subset_by_index=(width - count, width - 1)
        )
        found = torch.from_numpy(values).flip(0) / freedom
        floor = max(pool.tokens, width) * torch.finfo(torch.float64).eps * found[0]
        kept = found > floor
        directions[:count] = _sign(torch.from_numpy(vectors).T.flip(0)) * kept[:, None]
        variances[:count] = found * kept
    return Components(
        mean=mean, directions=directions, variances=variances, total=total, tokens=pool.tokens
    )


def coordinates(h: Hidden, found: Components) -> Points:
    """Return the coordinates of tokens in the space of the three directions.

    c_ti = v_i . (x_t - m)

    Source: pangu23, section 5.2.
    Unit: that of the features.
    """
    return (precise(h).cpu() - found.mean) @ found.directions.T


def apartness(points: Points, marks: Marks) -> Scalar:
    """Return how far tokens of different words lie apart, as a share of how far any lie apart.

    eta^2 = sum_w n_w ||m_w - m||^2 / sum_t ||c_t - m||^2

    1 means that each word is a point of its own, 0 that every word has the same mean. Words without
    any difference between them reach (words - 1) / (tokens - 1) on average.

    Unit: none.

    Example:
        >>> apartness(torch.tensor([[0.0], [0.0], [2.0]]), torch.tensor([0, 0, 1])).item()
        1.0
    """
    deviation = points - points.mean(0)
    between = points.new_zeros(())
    for mark in marks.unique():
        part = deviation[marks == mark]
        between = between + len(part) * part.mean(0).square().sum()
    return between / deviation.square().sum()


def _sign(vectors: Directions) -> Directions:
    """Return each direction turned so that its largest entry, the first of equals, is positive."""
    largest = vectors.abs().argmax(1, keepdim=True)
    return vectors * torch.where(vectors.gather(1, largest) < 0, -1.0, 1.0)
