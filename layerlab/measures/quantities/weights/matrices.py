"""Spectra of weight matrices with their tails, rank, dead rows; without a forward pass.

The spectral density of a matrix W is that of the eigenvalues of W^T W. In trained models its tail
often falls as a power; the exponent is fitted by maximum likelihood, from the point on from which
data and fit are nearest, as the package powerlaw and WeightWatcher do it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, nan, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.known_options import measure_options
from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.measures.support.centring import form_gram
from layerlab.observe.architecture.weight_matrices import WeightMatrix
from layerlab.observe.tracing.device_schedule import widen
from layerlab.shapes import Matrix

Eigenvalues = Float[Tensor, " value"]
DEAD = 1e-3
# Below this ratio of eigenvalues their square roots come from W itself, not from W^T W.
_SQUARED = 1e-8
# Entries up to this, and down to one over it, have squares and sums of them in float64.
_SQUARABLE = 1e140
# Bounds that are tried at once.
_ROWS = 256
BINS = 40
PICTURES = 400
USE = """\
Type `layerlab inspect MODEL --weights`: no text is read and no forward pass is made. The model is
not loaded; its tensors are read from the safetensors one at a time, and one matrix at a time is
held in float64. A model that is in memory is read there: `layerlab.inspect(model, weights=True)`.

Read are embeddings, projections, and each expert of a mixture by its number, whether experts are
stored one by one or in one tensor; blocks of other tensors, such as RecurrentGemma's gates, are
numbered in the same column. `layer` is -1 for what lies in front of the blocks, and their
number for what lies behind them. Convolutions are left out, and so are weights that are packed or
scaled (quantized models).

The exponent is that of the density of eigenvalues, empty where fewer than `fewest` of them are
above 0; beside it stand its standard error and the distance of the fit from the data, which says
whether the tail is a power at all: above about 0.1 it hardly is."""


@dataclass(frozen=True, kw_only=True)
class Tail:
    """A tail p(x) = (alpha - 1) / start (x / start)^-alpha of eigenvalues from `start` on."""

    alpha: float
    error: float
    start: float
    distance: float
    count: int


def fit_tail(eigenvalues: Eigenvalues) -> Tail:
    """Fit a power to the tail of positive numbers.

    alpha = 1 + n / sum_i ln(x_i / start),   error = (alpha - 1) / sqrt(n),   n numbers >= start

    Of all numbers but the largest, `start` is the one for which the Kolmogorov-Smirnov distance
    max |F(x) - F_n(x)| between the fitted and the empirical distribution is least.

    Source: clauset09, equations 3.1, 3.2 and 3.9; martin18, for eigenvalues of weights.
    Unit: none (alpha, error, distance), that of the eigenvalues (start).
    """
    x = eigenvalues.double().sort().values
    logs, size = x.log(), len(x)
    starts = torch.cat([x.new_ones(1, dtype=torch.bool), x[1:] > x[:-1]])[:-1]
    counts = torch.arange(size, 0, -1, dtype=x.dtype)
    sums = logs.flip(0).cumsum(0).flip(0) - counts * logs
    alphas = torch.where(sums > 0, 1 + counts / sums, inf)
    tried = (starts & alphas[:-1].isfinite()).nonzero()[:, 0]
    if not len(tried):
        return Tail(alpha=nan, error=nan, start=nan, distance=nan, count=0)
    places = torch.arange(size, dtype=x.dtype)
    distances = []
    for part in tried.split(_ROWS):
        ratios = logs[None, :] - logs[part, None]
        fitted = -torch.expm1((1 - alphas[part, None]) * ratios)
        exact = (places[None, :] - part[:, None]) / counts[part, None]
        gaps = (fitted - exact).abs().masked_fill(places[None, :] < part[:, None], 0.0)
        distances.append(gaps.amax(1))
    distance = torch.cat(distances)
    best = int(distance.argmin())
    index = int(tried[best])
    alpha, count = float(alphas[index]), size - index
    return Tail(
        alpha=alpha,
        error=(alpha - 1) / sqrt(count),
        start=float(x[index]),
        distance=float(distance[best]),
        count=count,
    )


def singular_values(weight: Matrix) -> Eigenvalues:
    """Return the singular values in float64, the largest first.

    They are the roots of the eigenvalues of W^T W (or W W^T, the smaller one), which has half the
    digits of the smallest; where those matter, W itself is decomposed.

    Source: golub13, section 8.6.
    Unit: that of the weights.
    """
    wide = weight.detach().to("cpu", torch.float64)
    wide = wide.T if wide.shape[0] < wide.shape[1] else wide
    largest = _largest(wide)
    if isfinite(largest) and largest and not 1 / _SQUARABLE < largest < _SQUARABLE:
        return largest * singular_values(wide / largest)
    squares = torch.linalg.eigvalsh(form_gram(wide.T)).flip(0)
    if float(squares[-1]) > _SQUARED * float(squares[0]):
        return squares.sqrt()
    return torch.linalg.svdvals(torch.linalg.qr(wide, mode="r").R)


def _largest(weight: Matrix) -> float:
    """Return the largest size of an entry; NaN where one is NaN."""
    low, high = weight.aminmax()  # absolute values would be a copy
    return max(-float(low), float(high))


def dead(weight: Matrix, axis: int) -> int:
    """Return how many rows (axis 0) or columns (axis 1) are next to nothing.

    ||row|| < DEAD median ||row||

    Source: Own.
    Unit: rows, or columns.
    """
    sizes = widen(weight.detach()).norm(dim=1 - axis)
    return (
        int((sizes < DEAD * sizes.median()).sum())
        if sizes.median() > 0
        else int((sizes == 0).sum())
    )


def read(given: WeightMatrix, run: MeasureContext) -> Iterator[Row]:
    """Read one row of one matrix.

    Source: Own.
    """
    weight, name = given.weight, given.name
    wide = weight.detach().to("cpu", torch.float64)  # once, for all that is read of it
    size = _largest(wide)
    if not isfinite(size):
        raise NotApplicable(f"{name} of layer {given.layer} holds numbers that are not finite")
    if weight.dtype == torch.float64 and size > _SQUARABLE:
        raise NotApplicable(f"squares of {name} of layer {given.layer} are not finite in float64")
    values = singular_values(wide)
    largest = float(values[0])
    floor = max(weight.shape) * torch.finfo(torch.float32).eps * largest
    rank = int((values > floor).sum())
    eigenvalues = values[:rank].square()
    enough = rank >= run.options["fewest"]
    tail = (
        fit_tail(eigenvalues)
        if enough
        else Tail(alpha=nan, error=nan, start=nan, distance=nan, count=0)
    )
    _draw(given, eigenvalues, tail, run)
    yield {
        "layer": given.layer,
        "matrix": name,
        "expert": nan if given.expert is None else given.expert,
        "alpha": tail.alpha,
        "error": tail.error,
        "start": tail.start,
        "tail": tail.count,
        "distance": tail.distance,
        "norm": largest,
        "stable_rank": float(values.square().sum()) / largest**2 if largest else nan,
        "rank": rank,
        "full_rank": len(values),
        "condition": largest / float(values[-1]) if float(values[-1]) else inf,
        "dead_rows": dead(wide, 0),
        "dead_columns": dead(wide, 1),
        "rows": weight.shape[0],
        "columns": weight.shape[1],
    }


def _draw(given: WeightMatrix, eigenvalues: Eigenvalues, tail: Tail, run: MeasureContext) -> None:
    """Add the density of the eigenvalues to the picture: bins of equal width in the logarithm."""
    entries: list[dict[str, Any]] = run.picture.setdefault("entries", [])
    run.picture["kind"] = "density"
    drawn = any((one["layer"], one["matrix"]) == (given.layer, given.name) for one in entries)
    if drawn or len(eigenvalues) < 2 or given.expert or len(entries) >= PICTURES:
        return
    logs = eigenvalues.log10()
    low, high = float(logs.min()), float(logs.max())
    if high - low < 1e-6:
        return
    counts = torch.histc(logs, bins=BINS, min=low, max=high)
    entries.append(
        {
            "layer": given.layer,
            "matrix": given.name,
            "low": low,
            "high": high,
            "counts": [int(count) for count in counts],
            "alpha": tail.alpha,
            "error": tail.error,
            "start": tail.start,
            "tail": tail.count,
        }
    )


MEASURES = (
    Measure(
        name="matrices",
        title="Weights only: spectra of the weight matrices",
        unit="none (alpha, stable_rank, condition, ranks); that of the weights (norm)",
        source="martin18; martin21; clauset09",
        about=(
            "The eigenvalues of W^T W of each weight matrix, the exponent with which their tail "
            "falls, and what is missing: rank, and rows or columns next to nothing. "
            "Matrices of well-trained models mostly have exponents between 2 and 6 (martin21); "
            "a random one has no such tail, and its exponent is larger."
        ),
        equation=(
            "p(lambda) ~ lambda^-alpha for lambda >= start, lambda the eigenvalues of W^T W;  "
            "stable rank = ||W||_F^2 / ||W||_2^2;  condition = sigma_max / sigma_min"
        ),
        per=("layer", "matrix", "expert"),
        columns={
            "alpha": "exponent of the tail of the eigenvalues; empty where there are too few",
            "error": "standard error of the exponent",
            "start": "eigenvalue from which on the tail is fitted",
            "tail": "eigenvalues in the tail",
            "distance": "Kolmogorov-Smirnov distance between the tail and its fit",
            "norm": "spectral norm: the largest singular value",
            "stable_rank": "||W||_F^2 / ||W||_2^2: about how many directions matter",
            "rank": "singular values above max(rows, columns) 2^-23 times the largest",
            "full_rank": "the smaller of rows and columns",
            "condition": "largest over smallest singular value",
            "dead_rows": f"outputs whose row is smaller than {DEAD} of the median row",
            "dead_columns": f"inputs whose column is smaller than {DEAD} of the median column",
            "rows": "outputs",
            "columns": "inputs",
        },
        plot=("alpha", "stable_rank", "condition", "norm"),
        roles={"full_rank": "size", "rows": "size", "columns": "size"},
        better=None,
        needs=frozenset({"matrices"}),
        resumes=True,
        read=read,
        **measure_options("matrices"),
        default=False,
        use=USE,
    ),
)
