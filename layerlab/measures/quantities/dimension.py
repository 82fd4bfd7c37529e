"""Effective dimension of the features of a layer, over the tokens of all sequences.

Everything here is a function of the eigenvalues of a Gram matrix in float64, whichever side of it
is smaller, so no singular value decomposition is taken. What that costs: eigenvalues below
size * eps times the largest cannot be told from 0 and are set to it (eps = 2^-52, size the longer
side), which hides singular values below about 1e-6 of the largest (2e-7 at 256 tokens). The m
hidden ones carry at most delta = m * sqrt(size * eps) of the sum of singular values, so the entropy
in `effective_rank` moves by at most h(delta) + delta * log(m + rank), h the entropy of a coin; the
others weigh eigenvalues, not their roots, and move by at most m * size * eps relative.

A layer's tokens are kept as they are until the second moments take less memory; from then on
every further sequence is merged into those (Chan's formula, which shifts by the means and so does
not cancel). The order of the sequences changes the result by rounding only.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import torch

from layerlab.errors import UserError
from layerlab.known_options import measure_options
from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.measures.support.centring import NAN, Pool, SecondMoments, ValueVector
from layerlab.observe.tracing.device_schedule import HostThreads, read_numbers
from layerlab.observe.tracing.records import Layer
from layerlab.shapes import Hidden, Scalar

LAYERS = "layers"
ENOUGH = 4  # tokens for each feature: see `reliable`
USE = """\
Type `layerlab inspect MODEL --text FILE --samples auto`, and this measure reads as many tokens as
it needs, 4 for each feature, or all that the text has, which is then said. Other measures read the
first 4 samples; the rest are run side by side, 2,048 tokens at a time, and of each layer no more is
kept than a matrix of width x width in float64."""


def effective_dimension(eigenvalues: ValueVector, epsilon: float = 0.8) -> Scalar:
    """Return the fewest principal directions that hold the share epsilon of the variance.

    d(epsilon) = min {k : sum_{i<=k} lambda_i >= epsilon * sum_i lambda_i}

    1 means a line. A share that is reached within rounding counts as reached. Without any variance
    there is no value.

    Source: pangu23, section 5.2.
    Unit: directions.

    Args:
        eigenvalues: of the covariance, in any order and scale.
        epsilon: the share, above 0 and at most 1.

    Raises:
        UserError: a share outside (0, 1].

    Example:
        >>> effective_dimension(torch.tensor([5.0, 3.0, 1.0, 1.0])).item()
        2.0
    """
    _check_share(epsilon)
    share = _share(eigenvalues)
    rounding = len(share) * torch.finfo(torch.float64).eps
    short = share.sort(descending=True).values.cumsum(0) < epsilon - rounding
    return torch.where(share.isnan().any(), NAN, (short.sum() + 1).double())


def effective_rank(eigenvalues: ValueVector) -> Scalar:
    """Return how many equal singular values would have the entropy of these.

    erank = exp(-sum_i p_i log p_i)   with   p_i = sigma_i / sum_j sigma_j
    and sigma_i = sqrt(lambda_i)

    1 means a line; at most the rank.

    Source: roy07, section 2.
    Unit: directions.

    Args:
        eigenvalues: squares of the singular values; the entropy is that of their roots.

    Example:
        >>> round(effective_rank(torch.ones(5)).item(), 12)
        5.0
    """
    return _perplexity(eigenvalues.double().clamp_min(0).sqrt())


def entropy_rank(eigenvalues: ValueVector) -> Scalar:
    """Return how many equal eigenvalues would have the entropy of these.

    exp(-sum_i q_i log q_i)   with   q_i = lambda_i / sum_j lambda_j

    1 means a line; at most the rank, and never below the participation ratio.

    Source: roy07, section 2.
    Differs: from eigenvalues instead of singular values, as many programs do under the same name.
    Unit: directions.
    """
    return _perplexity(eigenvalues)


def participation_ratio(eigenvalues: ValueVector) -> Scalar:
    """Return how many equal eigenvalues would have the sum and the sum of squares of these.

    PR = (sum_i lambda_i)^2 / sum_i lambda_i^2

    1 means a line; at most the rank.

    Source: Own.
    Unit: directions.

    Example:
        >>> participation_ratio(torch.tensor([2.0, 2.0, 0.0])).item()
        2.0
    """
    return 1 / _share(eigenvalues).square().sum()


def stable_rank(eigenvalues: ValueVector) -> Scalar:
    """Return the squared Frobenius norm over the squared spectral norm.

    ||M||_F^2 / ||M||_2^2 = sum_i lambda_i / max_i lambda_i

    1 means a line; at most the rank.

    Source: rudelson07, section 1.
    Unit: directions.

    Args:
        eigenvalues: those of a weight matrix, or of centred features; uncentred features give at
            most 1 / (1 - rho^2), so they tell little more than the relative residual rho does.

    Example:
        >>> stable_rank(torch.tensor([4.0, 2.0, 2.0])).item()
        2.0
    """
    return 1 / _share(eigenvalues).amax()


def _share(eigenvalues: ValueVector) -> ValueVector:
    values = eigenvalues.double().clamp_min(0)
    values = values / values.amax()  # 0 / 0 is NaN: nothing varies, so nothing is shared
    return values / values.sum()


def _perplexity(weights: ValueVector) -> Scalar:
    share = _share(weights)
    return torch.special.entr(share).sum().exp()


def _check_share(epsilon: float) -> None:
    if not 0 < epsilon <= 1:
        raise UserError(
            f"given epsilon={epsilon}; the share of the variance is above 0 and at most 1: "
            "type for instance epsilon=0.8"
        )


def reliable(tokens: int, width: int) -> bool:
    """Return whether there are enough tokens for the width to read a dimension off them.

    tokens >= 4 * width

    N tokens span at most N - 1 dimensions, and sampling spreads the eigenvalues further: an
    isotropic cloud of dimension d reads PR = d / (1 + d/N), so 4 tokens for each feature read at
    least 0.8 of it.

    Source: Own.
    """
    return tokens >= ENOUGH * width


def read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    """Add the tokens to the pool of their layer; there are no rows yet.

    Source: Own.
    """
    pool(layer.layer, layer.stream, run)
    return iter(())


def pool(layer: int, tokens: Hidden, run: MeasureContext) -> None:
    """Add tokens to the pool of a layer, and begin to read the pools that are complete.

    Source: Own.
    """
    layers = run.memory.setdefault(LAYERS, _Layers(epsilon=run.options["epsilon"]))
    layers.pools.setdefault(layer, Pool()).add(tokens)
    layers.begin_complete(run.batches)


def close(run: MeasureContext) -> Iterator[Row]:
    """Yield one row for each layer; each pool is released once it has been read.

    Source: Own.
    """
    if LAYERS not in run.memory:
        return
    for row in run.memory.pop(LAYERS).finish():
        if not row["reliable"]:
            run.notes["tokens"] = (
                f"{row['tokens']} tokens for a width of {row['width']}: too few to read a "
                f"dimension from (at most {row['tokens'] - 1} can show); compare layers with each "
                f"other only, or give at least {ENOUGH * row['width']} tokens (--samples auto)"
            )
        yield row


@dataclass(kw_only=True)
class _Layers:
    """The pools of layers, and the rows that the host's threads already make of some."""

    epsilon: float
    pools: dict[int, Pool] = field(default_factory=dict)
    begun: dict[int, Future[Row]] = field(default_factory=dict)
    threads: HostThreads | None = None

    def begin_complete(self, batches: int) -> None:
        """Begin to read the layers that no more tokens follow for, while threads are free.

        The rest stay where they are: each takes a matrix of the host's memory.
        """
        for layer in [one for one, pool in self.pools.items() if pool.batches == batches]:
            threads = self._beside(layer)
            if threads.busy < threads.beside:
                self._begin(layer)

    def finish(self) -> list[Row]:
        """Return the rows of all layers."""
        for layer in sorted(self.pools):
            self._begin(layer)
        rows = [self.begun[layer].result() for layer in sorted(self.begun)]
        if self.threads is not None:
            self.threads.close()
        return rows

    def _begin(self, layer: int) -> None:
        """Begin to make a layer's row, and release its pool."""
        threads, pool = self._beside(layer), self.pools.pop(layer)
        sizes: Row = {"layer": layer, "tokens": pool.tokens, "width": pool.width}
        work = partial(_reading, epsilon=self.epsilon)
        self.begun[layer] = threads.begin(work, (sizes, pool.on_host()))

    def _beside(self, layer: int) -> HostThreads:
        """Return the threads, which work beside the device of the layer that is read first."""
        self.threads = self.threads or HostThreads(self.pools[layer].device)
        return self.threads


def _reading(given: tuple[Row, SecondMoments], epsilon: float) -> Row:
    sizes, moments = given
    values = moments.eigenvalues()
    counts = {
        "effective_dimension": effective_dimension(values, epsilon),
        "effective_rank": effective_rank(values),
        "participation_ratio": participation_ratio(values),
        "stable_rank": stable_rank(values),
        "erank_entropy2": entropy_rank(values),
    }
    return {
        "layer": sizes["layer"],
        **read_numbers(counts),
        **sizes,
        "reliable": reliable(sizes["tokens"], sizes["width"]),
    }


MEASURES = (
    Measure(
        name="dimension",
        title="Dimension of the features",
        unit="directions",
        source="pangu23, section 5.2; roy07, section 2; rudelson07, section 1",
        about=(
            "How many directions of the residual stream the tokens of all texts together really "
            "use, counted in four ways that weigh the weak directions differently. "
            "A count that falls with depth means that features are squeezed into few directions, "
            "and with fewer than four tokens for each feature every count is too low."
        ),
        equation=(
            "lambda = eigenvalues of the pooled covariance, sigma = sqrt(lambda);  "
            "d(eps) = min {k: sum_{i<=k} lambda_i >= eps sum lambda};  "
            "erank = exp(entropy(sigma / sum sigma));  "
            "PR = (sum lambda)^2 / sum lambda^2;  stable rank = sum lambda / max lambda"
        ),
        per=("layer",),
        columns={
            "effective_dimension": "fewest principal directions with the share epsilon of variance",
            "effective_rank": "exponential of the entropy of the singular values (directions)",
            "participation_ratio": "(sum of eigenvalues)^2 over sum of their squares (directions)",
            "stable_rank": "of the centred features: ||JX||_F^2 / ||JX||_2^2 (directions)",
            "erank_entropy2": "exponential of the entropy of the eigenvalues (directions)",
            "tokens": "tokens N of all sequences together; at most N - 1 directions can show",
            "width": "features of the residual stream",
            "reliable": f"whether there are at least {ENOUGH} tokens for each feature",
        },
        plot=("effective_dimension", "effective_rank", "participation_ratio", "stable_rank"),
        roles={"tokens": "size", "width": "size", "reliable": "flag"},
        better="higher",
        needs=frozenset({"stream"}),
        read=read,
        pool=pool,
        close=close,
        **measure_options("dimension"),
        use=USE,
    ),
)
