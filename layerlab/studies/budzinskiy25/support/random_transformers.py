"""Random Transformers as the source draws them, and the errors of a stack over many of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerlab.studies.budzinskiy25.support.reference_transformer import (
    STATISTICS,
    NormName,
    NormPlacement,
    Weights,
    run,
)
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import MOST_DIGITS, Strict
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import Sampler
from layerlab.studies.engine.statistics import summary, table
from layerlab.studies.engine.study import Picture

# Entries of the diagonal matrices that raise the condition number of W_k^T W_q.
DIAGONAL = (0.25, 4.0)
NAMES = tuple(STATISTICS)
MAX, MEAN, NORMWISE = range(3)


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Sizes and deviations of random Transformers.

    Attributes:
        attention: deviation of the entries of W_q, W_k and W_v.
        feedforward: deviation of the entries of the perceptron's matrices.
        conditioned: whether W_k^T W_q stands between random diagonal matrices.
    """

    width: int
    tokens: int
    inner: int
    attention: float
    feedforward: float
    conditioned: bool = False

    def start(self, draw: Sampler) -> Tensor:
        """Return inputs with standard normal entries."""
        return draw.normal(self.tokens, self.width)

    def weights(self, draw: Sampler) -> Weights:
        """Return the matrices of one block."""
        query, key, value = (
            draw.normal(self.width, self.width, deviation=self.attention) for _ in range(3)
        )
        if self.conditioned:
            low, high = DIAGONAL
            query = query * draw.uniform(1, self.width, low=low, high=high)
            key = key * draw.uniform(1, self.width, low=low, high=high)
        return Weights(
            query=query,
            key=key,
            value=value,
            inner=draw.normal(self.inner, self.width, deviation=self.feedforward),
            outer=draw.normal(self.width, self.inner, deviation=self.feedforward),
        )


def rounding(digits: int) -> Strict:
    """Return the arithmetic with so many digits.

    With more than `MOST_DIGITS` a result is rounded to float64 first, which moves one of some 2^(52
    - digits): roundings that small are for errors that have to stay small, and not for their bits.
    """
    return Strict(digits, carrier=torch.float64 if digits > MOST_DIGITS else None)


def stack_errors(
    draw: Sampler,
    ensemble: Ensemble,
    digits: Sequence[int],
    layers: int,
    norm: NormName = "layer",
    placement: NormPlacement = "pre",
    changed: Callable[[Weights], Weights] = lambda weights: weights,
) -> Tensor:
    """Return the errors after each block, draw x layer x digits x statistic.

    `changed` alters the weights.
    """
    return run(
        [rounding(each) for each in digits],
        ensemble.start(draw),
        lambda: changed(ensemble.weights(draw)),
        layers,
        norm,
        placement,
    )


def by_layer(errors: np.ndarray, digits: Sequence[int], **labels: Any) -> pd.DataFrame:
    """Summarise how each statistic is distributed over the draws, per layer and digits."""
    return table(
        [
            summary(
                errors[:, layer, index, statistic],
                {**labels, "layer": layer + 1, "digits": each, "statistic": name},
            )
            for index, each in enumerate(digits)
            for layer in range(errors.shape[1])
            for statistic, name in enumerate(NAMES)
        ]
    )


def last(errors: np.ndarray, digits: Sequence[int], **labels: Any) -> pd.DataFrame:
    """Return the errors of every draw after the last layer."""
    columns: Mapping[str, Any] = {
        f"{name}_{each}": errors[:, -1, index, statistic]
        for index, each in enumerate(digits)
        for statistic, name in enumerate(NAMES)
    }
    return pd.DataFrame({**labels, "draw": np.arange(len(errors)), **columns})


def plot_errors(
    errors: Mapping[str, np.ndarray], places: Sequence[float], by: str, *, x: str, log: str = "y"
) -> tuple[Picture, ...]:
    """Plot the mean and the median of the normwise errors, a line per name, over the places."""
    found = []
    for name, title, reduce in (
        ("mean", f"Mean error by {by}", np.mean),
        ("median", f"Median error by {by}", np.median),
    ):
        lines = [
            Curve(name=label, x=places, y=reduce(draws, axis=0).tolist(), kind=kind)
            for kind, (label, draws) in enumerate(errors.items())
        ]
        found.append(curves(name, title, lines, x=x, y="relative error, normwise", log=log))
    return tuple(found)
