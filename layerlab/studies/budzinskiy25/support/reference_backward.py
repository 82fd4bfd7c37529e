"""Gradients of the source's Transformer by hand: the way back, rounded as the way forward is.

Each part gives its value and a pullback: a function from the gradient of the value to that of the
input. A gradient that comes from several places is summed in the order written here.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from layerlab.studies.budzinskiy25.support.reference_transformer import (
    NormName,
    Weights,
    centre,
    softmax,
)
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Draws, Exact

Pullback = Callable[[Draws], Draws]
WithVJP = tuple[Draws, Pullback]


def normed(arithmetic: Exact, x: Draws, norm: NormName) -> WithVJP:
    """Return the norm of `decoder` and its pullback; the gradient of an all-zero row is 0.

    Source: budzinskiy25, Lemma 3.6 and Lemma 3.8.
    """
    y = centre(arithmetic, x) if norm == "layer" else x
    size = arithmetic.root(arithmetic.total(arithmetic.multiply(y, y)))
    nothing = size == 0
    size = torch.where(nothing, torch.ones_like(size), size)
    direction = arithmetic.divide(y, size)
    root = arithmetic.root_of(x.shape[-1])

    def pull(gradient: Draws) -> Draws:
        scaled = arithmetic.multiply(gradient, root)
        along = arithmetic.total(arithmetic.multiply(scaled, direction))
        across = arithmetic.subtract(scaled, arithmetic.multiply(direction, along))
        found = arithmetic.divide(across, size).masked_fill(nothing, 0)
        return centre(arithmetic, found) if norm == "layer" else found

    return arithmetic.multiply(direction, root), pull


def attend(arithmetic: Exact, x: Draws, weights: Weights) -> WithVJP:
    """Return the attention of `decoder` and its pullback.

    Source: budzinskiy25, Lemma 3.14.
    """
    query, key, value = (
        arithmetic.product(x, matrix.mT) for matrix in (weights.query, weights.key, weights.value)
    )
    root = arithmetic.root_of(weights.query.shape[-2])
    scores = arithmetic.divide(arithmetic.product(query, key.mT), root)
    share = softmax(arithmetic, scores)

    def pull(gradient: Draws) -> Draws:
        to_share = arithmetic.product(gradient, value.mT)
        mean = arithmetic.total(arithmetic.multiply(share, to_share))
        to_scores = arithmetic.multiply(share, arithmetic.subtract(to_share, mean))
        to_scores = arithmetic.divide(to_scores, root)
        to_query = arithmetic.product(arithmetic.product(to_scores, key), weights.query)
        to_key = arithmetic.product(arithmetic.product(to_scores.mT, query), weights.key)
        to_value = arithmetic.product(arithmetic.product(share.mT, gradient), weights.value)
        return arithmetic.add(arithmetic.add(to_query, to_key), to_value)

    return arithmetic.product(share, value), pull


def feed(arithmetic: Exact, x: Draws, weights: Weights) -> WithVJP:
    """Return the two-layer perceptron of `decoder` and its pullback; ReLU has the slope 0 at 0.

    Source: budzinskiy25, Lemma 3.10.
    """
    hidden = arithmetic.product(x, weights.inner.mT).relu_()

    def pull(gradient: Draws) -> Draws:
        to_hidden = arithmetic.product(gradient, weights.outer) * (hidden > 0)
        return arithmetic.product(to_hidden, weights.inner)

    return arithmetic.product(hidden, weights.outer.mT), pull


def block(arithmetic: Exact, x: Draws, weights: Weights, norm: NormName = "layer") -> WithVJP:
    """Return one pre-norm block, as `decoder.block` computes it, and its pullback.

    Source: budzinskiy25, equations 6 and 9.
    """
    first, back_first = normed(arithmetic, x, norm)
    branch, back_attention = attend(arithmetic, first, weights)
    middle = arithmetic.add(x, branch)
    second, back_second = normed(arithmetic, middle, norm)
    update, back_fed = feed(arithmetic, second, weights)

    def pull(gradient: Draws) -> Draws:
        gradient = arithmetic.add(gradient, back_second(back_fed(gradient)))
        return arithmetic.add(gradient, back_first(back_attention(gradient)))

    return arithmetic.add(middle, update), pull


def gradients(
    arithmetic: Exact, x: Draws, stack: Sequence[Weights], last: Draws, norm: NormName = "layer"
) -> tuple[list[Draws], list[Tensor]]:
    """Return the stream after each block, and the gradient by the input of each.

    The gradients are of sum(last * result); both lists are in the order of the blocks.
    """
    streams, pullbacks = [], []
    for weights in stack:
        x, pull = block(arithmetic, x, weights, norm)
        streams.append(x)
        pullbacks.append(pull)
    found, gradient = [], last
    for pull in reversed(pullbacks):
        gradient = pull(gradient)
        found.append(gradient)
    return streams, found[::-1]
