"""The source's Transformer, equations (6)-(10): one causal head, ReLU, a norm where one is told.

Written once for any arithmetic: with `Exact` it is the reference, with `Strict` every scalar
operation is rounded. Tokens are rows, so the source's W x is x W^T here. The softmax subtracts the
largest score of its row: without that, scores above 709 overflow even float64, which happens in one
draw of twenty at depth 40. An all-zero row has the norm 0, where a division would give 0 / 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Draws, Exact

NormName = Literal["layer", "rms"]
NormPlacement = Literal["pre", "branch", "sum", "post"]
NormFunction = Callable[[Exact, Draws], Draws]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The matrices of one block, a set per draw, as the source writes them (output x input)."""

    query: Tensor
    key: Tensor
    value: Tensor
    inner: Tensor
    outer: Tensor

    def convert(self, arithmetic: Exact) -> "Weights":
        """Return the weights in the carrier and the digits of an arithmetic."""
        return Weights(
            **{one.name: arithmetic.take(getattr(self, one.name)) for one in fields(self)}
        )


def root_mean_square(arithmetic: Exact, x: Draws) -> Draws:
    """Return R(x) = sqrt(d) x / ||x||, row by row; 0 where the row is 0.

    Source: budzinskiy25, equation 8.
    """
    norm = arithmetic.root(arithmetic.total(arithmetic.multiply(x, x)))
    direction = arithmetic.divide(x, torch.where(norm == 0, torch.ones_like(norm), norm))
    return arithmetic.multiply(direction, arithmetic.root_of(x.shape[-1]))


def centre(arithmetic: Exact, x: Draws) -> Draws:
    """Centre each row: C(x) = x - mean(x).

    Source: budzinskiy25, Lemma 3.7.
    """
    mean = arithmetic.divide(arithmetic.total(x), float(x.shape[-1]))
    return arithmetic.subtract(x, mean)


def layer_norm(arithmetic: Exact, x: Draws) -> Draws:
    """Return N(x) = R(C(x)), row by row.

    Source: budzinskiy25, equation 1.
    """
    return root_mean_square(arithmetic, centre(arithmetic, x))


NORMS: dict[str, NormFunction] = {"layer": layer_norm, "rms": root_mean_square}


def softmax(arithmetic: Exact, scores: Draws) -> Draws:
    """Return the causal softmax of each row, shifted by its largest allowed score.

    Source: budzinskiy25, section 2.2.
    Differs: shifted, as every implementation is; the source's own form overflows.
    """
    tokens = scores.shape[-1]
    past = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    largest = scores.masked_fill(~past, -torch.inf).amax(-1, keepdim=True)
    shifted = arithmetic.subtract(scores, largest).masked_fill_(~past, 0)
    powers = arithmetic.exponential(shifted).masked_fill(~past, 0)
    return arithmetic.divide(powers, arithmetic.total(powers))


def attention(arithmetic: Exact, x: Draws, weights: Weights) -> Draws:
    """Apply one causal head without an output matrix.

    Source: budzinskiy25, section 2.2.
    """
    query, key, value = (
        arithmetic.product(x, matrix.mT) for matrix in (weights.query, weights.key, weights.value)
    )
    scores = arithmetic.product(query, key.mT)
    scores = arithmetic.divide(scores, arithmetic.root_of(weights.query.shape[-2]))
    return arithmetic.product(softmax(arithmetic, scores), value)


def perceptron(arithmetic: Exact, x: Draws, weights: Weights) -> Draws:
    """Apply two matrices with a ReLU between them and no bias.

    Source: budzinskiy25, equation 2.
    """
    hidden = arithmetic.product(x, weights.inner.mT).relu_()
    return arithmetic.product(hidden, weights.outer.mT)


def block(
    arithmetic: Exact,
    x: Draws,
    weights: Weights,
    norm: NormName = "layer",
    placement: NormPlacement = "pre",
) -> Draws:
    """Apply one block; `placement` says where the norm of the attention stands.

    "pre" is x + A(N(x)), "branch" x + N(A(x)), "sum" N(x + A(x)); the feed-forward is x + M(N(x))
    in all three, so that one thing differs. "post" has both norms behind their sums: N(x + A(x)),
    then N(x + M(x)).

    Source: budzinskiy25, equations 6 and 9.
    """
    normed = NORMS[norm]
    if placement == "pre":
        x = arithmetic.add(x, attention(arithmetic, normed(arithmetic, x), weights))
    elif placement == "branch":
        x = arithmetic.add(x, normed(arithmetic, attention(arithmetic, x, weights)))
    else:
        x = normed(arithmetic, arithmetic.add(x, attention(arithmetic, x, weights)))
    if placement == "post":
        return normed(arithmetic, arithmetic.add(x, perceptron(arithmetic, x, weights)))
    return arithmetic.add(x, perceptron(arithmetic, normed(arithmetic, x), weights))


STATISTICS = {
    "max": "largest relative error of a component",
    "mean": "mean relative error of the components",
    "normwise": "Frobenius norm of the error over that of the result",
}


def errors(observed: Draws, exact: Draws) -> Tensor:
    """Return the three statistics of the error of each draw, in the order of `STATISTICS`.

    A component that is exactly zero has the error 0 where it was hit, infinity where not.

    Source: budzinskiy25, section 3.1.
    """
    observed, exact = (x.double().flatten(1) for x in (observed, exact))
    difference = (observed - exact).abs()
    relative = torch.where(difference == 0, torch.zeros_like(exact), difference / exact.abs())
    normwise = difference.norm(dim=1) / exact.norm(dim=1)
    return torch.stack([relative.amax(1), relative.mean(1), normwise], 1)


def run(
    arithmetics: Sequence[Exact],
    start: Draws,
    drawn: Callable[[], Weights],
    layers: int,
    norm: NormName = "layer",
    placement: NormPlacement = "pre",
) -> Tensor:
    """Return the errors of a stack after each block, draw x layer x arithmetic x statistic.

    Input and weights are rounded to the fewest digits of all, so that every arithmetic computes the
    same function of the same numbers, and only the operations differ.

    Source: budzinskiy25, Figure 1.
    """
    coarsest = min(arithmetics, key=lambda one: one.digits or 64)
    exact, found = Exact(), []
    held = coarsest.take(start)
    truth, streams = exact.take(held), [one.take(held) for one in arithmetics]
    for _ in range(layers):
        weights = drawn().convert(coarsest)
        truth = block(exact, truth, weights.convert(exact), norm, placement)
        for index, one in enumerate(arithmetics):
            streams[index] = block(one, streams[index], weights.convert(one), norm, placement)
        found.append(torch.stack([errors(stream, truth) for stream in streams], 1))
    return torch.stack(found, 1)
