"""Drift of the best learning rate with size, in octaves per doubling of parameters.

A sweep knows a seed's best rate to a step of its grid; the parabola through the best rate and its
two neighbours, on a logarithmic scale, says where between them it lies. Seeds then tell how sure
that is.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from layerlab.experiments.statistics.differences import Difference, Level, paired_difference

# Losses by rate.
Sweep = Mapping[float, float]


def best_octave(sweep: Sweep) -> float | None:
    """Return log2 of the rate at which a parabola is lowest; None where the best is at an end.

    Beside a rate at which the run diverged there is none: the best one is then taken as it is.

    Example:
        >>> best_octave({1.0: 1.0, 2.0: 0.0, 4.0: 1.0}), best_octave({1.0: 1.0, 2.0: 0.5, 4.0: 0.1})
        (1.0, None)
    """
    rates = sorted(sweep)
    index = min(range(len(rates)), key=lambda one: sweep[rates[one]], default=0)
    if not 0 < index < len(rates) - 1 or not math.isfinite(sweep[rates[index]]):
        return None
    near = rates[index - 1 : index + 2]
    octaves = np.log2(near)
    if not all(math.isfinite(sweep[rate]) for rate in near):
        return float(octaves[1])
    # The slope of a parabola runs straight, and is that of each chord in its middle.
    falling, rising = np.diff([sweep[rate] for rate in near]) / np.diff(octaves)
    first, second = (octaves[:-1] + octaves[1:]) / 2
    return float(first - (second - first) * falling / (rising - falling))


def drift(
    doublings: Sequence[float], octaves: Sequence[Mapping[int, float]], level: Level
) -> Difference:
    """Return the change of the best rate in octaves per doubling, over the seeds.

    Args:
        doublings: log2 of the parameters of each size.
        octaves: of each size, the best rate by seed, for the same seeds.
    """
    places = np.array(doublings) - np.mean(doublings)
    weights = places / (places @ places)
    seeds = sorted(octaves[0])
    slopes = [
        math.fsum(float(weight) * one[seed] for weight, one in zip(weights, octaves, strict=True))
        for seed in seeds
    ]
    return paired_difference(slopes, [0.0] * len(slopes), level)
