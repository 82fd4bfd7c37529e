"""One side of a comparison: an arm's runs, and the learning rate that it is judged at."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from layerlab.training.record import Record
from layerlab.training.search import Best, best
from layerlab.training.statistics import deviation

Runs = Mapping[int, Record]


@dataclass(frozen=True, kw_only=True)
class Side:
    """An arm with its runs.

    Attributes:
        name: of the arm.
        sweep: runs by rate, then by seed.
        tried: mean loss of each rate over the seeds that all of its rates have finished.
        chosen: the best of them; None while nothing has finished.
        metric: that is compared.
    """

    name: str
    sweep: Mapping[float, Runs]
    tried: Mapping[float, float]
    chosen: Best | None
    metric: str

    @property
    def runs(self) -> Runs:
        """At the rate that the arm is judged at, by seed."""
        return self.sweep[self.chosen.rate] if self.chosen else {}

    @cached_property
    def values(self) -> dict[int, float]:
        """What is compared, by seed; diverged runs have no value."""
        return {
            seed: value
            for seed, run in self.runs.items()
            if run.diverged is None and (value := run.value(self.metric)) is not None
        }

    @cached_property
    def diverged(self) -> dict[int, str]:
        """Why, by seed."""
        return {seed: run.diverged for seed, run in self.runs.items() if run.diverged is not None}

    def mean(self, name: str) -> float | None:
        """Of a number of the results, over the seeds that did not diverge."""
        found = [self.runs[seed].value(name) for seed in self.values]
        numbers = [one for one in found if one is not None]
        return math.fsum(numbers) / len(numbers) if numbers else None

    def most(self, name: str) -> float | None:
        """The largest of a number of the results."""
        found = [run.value(name) for run in self.runs.values()]
        return max((one for one in found if one is not None), default=None)

    def sd(self) -> float | None:
        """Of what is compared, from seed to seed."""
        values = list(self.values.values())
        return deviation(values) if len(values) > 1 else None

    def missing(self, seeds: Sequence[int], rates: Sequence[float] = ()) -> list[int]:
        """Planned seeds that have not finished at every rate: those given, or those begun."""
        sweep = [self.sweep.get(rate, {}) for rate in rates or self.sweep]
        return [
            seed
            for seed in seeds
            if not sweep or any(seed not in runs or not runs[seed].finished for runs in sweep)
        ]


def side_of(name: str, records: Sequence[Record], metric: str) -> Side:
    """Collect an arm's runs and choose its rate: the best by the mean over its seeds.

    A rate at which a run diverged counts as infinitely bad.
    """
    sweep: dict[float, dict[int, Record]] = {}
    for record in records:
        sweep.setdefault(record.rate, {})[record.seed] = record
    tried = _tried(sweep, metric)
    chosen = best(tried) if tried else None
    return Side(name=name, sweep=sweep, tried=tried, chosen=chosen, metric=metric)


def _tried(sweep: Mapping[float, Runs], metric: str) -> dict[float, float]:
    done = {
        rate: {seed: run for seed, run in runs.items() if run.finished}
        for rate, runs in sweep.items()
    }
    done = {rate: runs for rate, runs in done.items() if runs}
    shared = set.intersection(*(set(runs) for runs in done.values())) if done else set()
    return {
        rate: _mean([run for seed, run in runs.items() if seed in shared or not shared], metric)
        for rate, runs in done.items()
    }


def _mean(runs: Sequence[Record], metric: str) -> float:
    values = [run.value(metric) if run.diverged is None else None for run in runs]
    numbers = [one for one in values if one is not None]
    return math.fsum(numbers) / len(numbers) if len(numbers) == len(values) else math.inf
