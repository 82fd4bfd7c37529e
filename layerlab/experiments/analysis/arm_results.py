"""The runs of one arm, and the learning rate at which each seed is compared.

A rate that is chosen on the runs that judge it looks better than it is, the more so the more rates
were tried. Each seed is therefore judged at the rate that the seeds before it like best, on each
half of the held-out blocks at the one that they like best on the other half; the first seed of a
sweep chooses, and does not judge. What a seed adds is then independent of what chose its rate,
which it is not where all other seeds choose (bench/judging/statistics.py, part `rates`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from layerlab.experiments.plan.lr_search import Best, best
from layerlab.experiments.statistics.differences import deviation
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.run import RunRecord

Runs = Mapping[int, RunRecord]
# A seed's rate for the blocks with even and with odd numbers.
Rates = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class ArmResults:
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

    @cached_property
    def rates(self) -> dict[int, Rates]:
        """The learning rates of each seed: best for earlier seeds, on the other half."""
        seeds = sorted({seed for runs in self.sweep.values() for seed in runs})
        first, second = (self._list_bests(seeds, half) for half in (1, 0))
        # With one rate there is nothing to choose; a seed that is alone has nobody to ask.
        if len(self.sweep) == 1 or len(seeds) == 1:
            first, second = first[-1:] * len(seeds), second[-1:] * len(seeds)
        return {
            seed: (even, odd)
            for seed, even, odd in zip(seeds, first, second, strict=False)
            if even is not None and odd is not None
        }

    @cached_property
    def runs(self) -> Runs:
        """The run of each seed at its learning rate; of two rates, that for the even blocks."""
        found = {seed: self.sweep[even].get(seed) for seed, (even, _) in self.rates.items()}
        return {seed: run for seed, run in found.items() if run is not None}

    @cached_property
    def blocks(self) -> dict[int, np.ndarray]:
        """Nats per token of each block of the held-out text, by seed, where runs kept them."""
        found = {}
        for seed in self.values:
            even, odd = (self.sweep[rate][seed].blocks for rate in self.rates[seed])
            if even is not None and odd is not None:
                found[seed] = np.where(np.arange(len(even)) % 2 == 0, even, odd)
        return found

    @cached_property
    def values(self) -> dict[int, float]:
        """The compared value by seed; diverged runs have none."""
        found = {seed: self._value(seed) for seed in self.rates}
        return {seed: value for seed, value in found.items() if value is not None}

    @cached_property
    def diverged(self) -> dict[int, str]:
        """Return the reason why each run diverged, by seed."""
        found = {}
        for seed, rates in self.rates.items():
            for rate in rates:
                run = self.sweep[rate].get(seed)
                if run is not None and run.diverged is not None:
                    found[seed] = run.diverged
        return found

    @property
    def uncounted(self) -> bool:
        """Return whether runs ended with a loss, and none with one in what is compared."""
        ended = [run for run in self.runs.values() if run.value("nats") is not None]
        return bool(ended) and all(run.value(self.metric) is None for run in ended)

    @property
    def ended(self) -> int:
        """Seeds whose runs ended, diverged or not."""
        return len(self.values) + len(self.diverged)

    def mean(self, name: str) -> float | None:
        """Return the mean of a number of the results, over the seeds that did not diverge."""
        if name == self.metric:
            numbers = list(self.values.values())
        else:
            seeds = self.values or set(self.runs) - set(self.diverged)
            found = [self.runs[seed].value(name) for seed in seeds]
            numbers = [one for one in found if one is not None]
        return math.fsum(numbers) / len(numbers) if numbers else None

    def most(self, name: str) -> float | None:
        """Return the largest of a number of the results."""
        found = [run.value(name) for run in self.runs.values()]
        return max((one for one in found if one is not None), default=None)

    def sd(self) -> float | None:
        """Return the standard deviation of the compared value over the seeds."""
        values = list(self.values.values())
        return deviation(values) if len(values) > 1 else None

    def _value(self, seed: int) -> float | None:
        """Return the value of both halves of the held-out text together."""
        runs = [self.sweep[rate].get(seed) for rate in self.rates[seed]]
        parts = [None if run is None else run.halves(self.metric) for run in runs]
        even, odd = parts
        return None if even is None or odd is None else even[0] + odd[1]

    def _list_bests(self, seeds: Sequence[int], half: int) -> list[float | None]:
        """Return the best rate for none of the seeds, the first, the first two, and so on.

        By the mean over the seeds that all rates with a run have, on one half of the blocks; where
        there are none, over those that each has.
        """
        done = {
            rate: {
                seed: _loss(run, self.metric, half) for seed, run in runs.items() if run.finished
            }
            for rate, runs in self.sweep.items()
        }
        own = {rate: _RunningMean() for rate in done}
        shared: dict[float, _RunningMean] = {}
        found: list[float | None] = [None]
        for number, seed in enumerate(seeds, start=1):
            for rate in done:
                if seed in done[rate]:
                    own[rate].add(done[rate][seed])
            begun = [rate for rate in done if own[rate].count]
            # Seeds that were shared need not be where a rate has its first run.
            fresh = len(begun) > len(shared)
            if fresh:
                shared = {rate: _RunningMean() for rate in begun}
            for one in seeds[:number] if fresh else (seed,):
                if all(one in done[rate] for rate in begun):
                    for rate in begun:
                        shared[rate].add(done[rate][one])
            tried = {rate: (shared[rate] if shared[rate].count else own[rate]) for rate in begun}
            means = {rate: one.value for rate, one in tried.items()}
            found.append(best(means).rate if means else None)
        return found


@dataclass
class _RunningMean:
    """The mean of numbers as they come, rounded once, as that of `math.fsum` is."""

    total: Fraction = Fraction(0)
    count: int = 0
    finite: bool = True

    def add(self, number: float) -> None:
        """Add a number, which may be infinite."""
        self.count += 1
        self.finite = self.finite and math.isfinite(number)
        if self.finite:
            self.total += Fraction(number)

    @property
    def value(self) -> float:
        """The mean of all."""
        return float(self.total) / self.count if self.finite else math.inf


def collect_arm(name: str, records: Sequence[RunRecord], metric: str) -> ArmResults:
    """Collect an arm's runs.

    A rate at which a run diverged counts as infinitely bad.
    """
    sweep: dict[float, dict[int, RunRecord]] = {}
    for record in records:
        sweep.setdefault(record.rate, {})[record.seed] = record
    tried = _try(sweep, metric)
    chosen = best(tried) if tried else None
    return ArmResults(name=name, sweep=sweep, tried=tried, chosen=chosen, metric=metric)


def missing_seeds(section: CompareSection, side: ArmResults) -> list[int]:
    """Return the planned seeds that an arm has not finished at every learning rate."""
    sweep = [side.sweep.get(rate, {}) for rate in section.grid_rates or side.sweep]
    return [
        seed
        for seed in section.seeds
        if not sweep or any(seed not in runs or not runs[seed].finished for runs in sweep)
    ]


def _try(sweep: Mapping[float, Runs], metric: str) -> dict[float, float]:
    """Return mean loss of each rate."""
    done = {
        rate: {seed: run for seed, run in runs.items() if run.finished}
        for rate, runs in sweep.items()
    }
    done = {rate: runs for rate, runs in done.items() if runs}
    shared = set.intersection(*(set(runs) for runs in done.values())) if done else set()
    return {
        rate: _mean(
            [_loss(run, metric, None) for seed, run in runs.items() if seed in shared or not shared]
        )
        for rate, runs in done.items()
    }


def _mean(losses: Sequence[float]) -> float:
    return math.fsum(losses) / len(losses)


def _loss(run: RunRecord, metric: str, half: int | None) -> float:
    found = run.halves(metric)
    if found is None:  # as of a run that diverged
        return math.inf
    return sum(found) if half is None else found[half]
