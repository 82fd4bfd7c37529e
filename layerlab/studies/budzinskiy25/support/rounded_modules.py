"""The modules of budzinskiy25 on weights and features at hand, each with its rounding bound."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from layerlab.studies.budzinskiy25.support import reference_transformer
from layerlab.studies.budzinskiy25.support.reference_transformer import Weights
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact, Strict

ModuleRun = Callable[[Exact], Tensor]


@dataclass(frozen=True, kw_only=True)
class RoundedModule:
    """One module at its inputs: draw x row x column.

    Attributes:
        run: the module in an arithmetic.
        limit: the largest |error| of every entry in units of u, to first order.
        row: where the bound stands.
    """

    name: str
    row: str
    run: ModuleRun
    limit: Tensor


def norms(x: Tensor) -> Iterator[RoundedModule]:
    """Yield the RMS norm, centring and layer norm of the last row."""
    x, width = x[:, -1:], x.shape[-1]
    centred = (x - x.mean(-1, keepdim=True)).abs()
    away = x.abs().sum(-1, keepdim=True) / centred.amin(-1, keepdim=True)
    yield RoundedModule(
        name="RMS norm",
        row="Lemma 4.6",
        run=lambda a: reference_transformer.root_mean_square(a, a.take(x)),
        limit=(width / 2 + 3) * reference_transformer.root_mean_square(Exact(), x).abs(),
    )
    yield RoundedModule(
        name="centring",
        row="Lemma 4.10",
        run=lambda a: reference_transformer.centre(a, a.take(x)),
        limit=(1 + away) * centred,
    )
    yield RoundedModule(
        name="layer norm",
        row="Lemma 4.11",
        run=lambda a: reference_transformer.layer_norm(a, a.take(x)),
        limit=(width / 2 + 5 + 2 * away) * reference_transformer.layer_norm(Exact(), x).abs(),
    )


def perceptron(x: Tensor, weights: Weights) -> RoundedModule:
    """Return the bias-free ReLU perceptron of the last row, bounded by d + |Omega| roundings."""
    x = x[:, -1:]
    inner = x @ weights.inner.mT
    active = (inner > 0).sum(-1, keepdim=True)
    reach = (x.abs() @ weights.inner.abs().mT) * (inner > 0)
    return RoundedModule(
        name="perceptron",
        row="Lemma 4.14",
        run=lambda a: reference_transformer.perceptron(a, a.take(x), weights.convert(a)),
        limit=(x.shape[-1] + active) * (reach @ weights.outer.abs().mT),
    )


def attentions(x: Tensor, weights: Weights, digits: int = 53) -> Iterator[RoundedModule]:
    """Yield scores, softmax and one causal head; the last two also without the scores' range.

    The softmax reads scores of so many digits, or fewer digits would count as rounding.
    """
    tokens, width, inner = x.shape[1], x.shape[2], weights.query.shape[1]
    query, key = x @ weights.query.mT, x @ weights.key.mT
    scores = query @ key.mT / inner**0.5
    size = (x.abs() @ weights.query.abs().mT) @ (x.abs() @ weights.key.abs().mT).mT / inner**0.5
    yield RoundedModule(
        name="scores",
        row="Lemma 4.17",
        run=lambda a: score_pairs(a, x, weights),
        limit=(2 * width + inner + 1) * size,
    )
    yield from softmaxes(scores if digits == 53 else Strict(digits).take(scores).double())
    past = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    chance = torch.softmax(scores.masked_fill(~past, -torch.inf), -1)
    seen = past.sum(-1, keepdim=True)
    top = scores.masked_fill(~past, -torch.inf).amax(-1, keepdim=True)
    spread = (top - scores).masked_fill(~past, 0.0).amax(-1, keepdim=True)
    reach = chance @ (x.abs() @ weights.value.abs().mT)
    largest = size.masked_fill(~past, 0.0).amax(-1, keepdim=True)
    bracket = 2 * seen + width + 2 + 2 * (2 * width + inner + 1) * largest
    for row, limit in (
        ("Lemma 4.21", bracket + 2 * spread),
        ("Lemma 4.21, without range", bracket),
    ):
        yield RoundedModule(
            name="attention",
            row=row,
            run=lambda a: reference_transformer.attention(a, a.take(x), weights.convert(a)),
            limit=limit * reach,
        )


def softmaxes(scores: Tensor) -> Iterator[RoundedModule]:
    """Yield the softmax as all code computes it, with its own bound and the unshifted one's."""
    tokens = scores.shape[-1]
    past = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    hidden = scores.masked_fill(~past, -torch.inf)
    chance, seen = torch.softmax(hidden, -1), past.sum(-1, keepdim=True)
    down = (hidden.amax(-1, keepdim=True) - scores).masked_fill(~past, 0.0)
    shifted = seen + 2 + down + (chance * down).sum(-1, keepdim=True)
    for row, limit in (("Lemma 4.19", shifted), ("Lemma 4.19, unshifted", seen + 2)):
        yield RoundedModule(
            name="softmax",
            row=row,
            run=lambda a: reference_transformer.softmax(a, a.take(scores)),
            limit=limit * chance,
        )


def score_pairs(arithmetic: Exact, x: Tensor, weights: Weights) -> Tensor:
    """Return the scores (W_q x_t) . (W_k x_i) / sqrt(d_h) of all pairs."""
    held, own = arithmetic.take(x), weights.convert(arithmetic)
    query, key = arithmetic.product(held, own.query.mT), arithmetic.product(held, own.key.mT)
    found = arithmetic.product(query, key.mT)
    return arithmetic.divide(found, arithmetic.root_of(own.query.shape[-2]))
