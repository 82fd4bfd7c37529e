"""Proposes the learning rates of an arm: a grid, or a search by optuna."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from layerlab.errors import UserError, describe_install
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.result import read_result

if TYPE_CHECKING:
    from layerlab.training.run_spec import RunSpec

# Mean loss over seeds by rate; infinite where a run diverged.
Tried = Mapping[float, float]
Edge = Literal["smallest", "largest"]
# A rate this near to the end of the range, as a share of its logarithm, counts as at the end.
NEAR = 0.05
# How far beyond the end the next rate lies: rates are searched by decades at most.
STEPS = 2.0, 10.0
# How far one digit may move it, else it has two: a tenth, as from a third of 0.001 to 0.0003.
ROUNDED = 0.1 + 1e-9


@dataclass(frozen=True)
class GridSearch:
    """Every rate that was declared, the smallest first."""

    rates: tuple[float, ...]

    def propose(self, results: Tried) -> float | None:
        """Return the smallest rate that was not tried."""
        return next((rate for rate in sorted(self.rates) if rate not in results), None)


@dataclass(frozen=True)
class Optuna:
    """A search between two rates on a logarithmic scale.

    Both ends and their geometric mean come first; then optuna's Gaussian process proposes. Its
    study is made anew from the results each time, so that a search resumes where it stopped.
    """

    low: float
    high: float
    trials: int
    seed: int = 0

    def propose(self, results: Tried) -> float | None:
        """Return the next rate, of four digits; None after the last trial.

        Raises:
            UserError: optuna is not installed.
        """
        if len(results) >= self.trials:
            return None
        for rate in (self.low, _round(math.sqrt(self.low * self.high)), self.high):
            if rate not in results:
                return rate
        rate = min(max(_round(self._ask(results)), self.low), self.high)
        return rate if rate not in results else _between(results)

    def _ask(self, results: Tried) -> float:
        optuna = _optuna()
        span = optuna.distributions.FloatDistribution(self.low, self.high, log=True)
        sampler = optuna.samplers.GPSampler(
            seed=self.seed + len(results), n_startup_trials=0, deterministic_objective=False
        )
        study = optuna.create_study(direction="minimize", sampler=sampler)
        # A Gaussian process takes no infinite value: what diverged is as bad as twice the worst.
        finite = [value for value in results.values() if math.isfinite(value)]
        worst = max(finite, default=1.0) + (max(finite, default=0.0) - min(finite, default=0.0))
        inside = {rate: one for rate, one in results.items() if self.low <= rate <= self.high}
        for rate, value in sorted(inside.items()):
            study.add_trial(
                optuna.trial.create_trial(
                    params={"rate": rate},
                    distributions={"rate": span},
                    value=value if math.isfinite(value) else worst,
                )
            )
        return float(study.ask({"rate": span}).params["rate"])


# What either proposes depends on what was tried alone.
Search = GridSearch | Optuna


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best learning rate that was tried.

    Attributes:
        edge: the end of the range that it lies at, where a better one may lie beyond.
    """

    rate: float
    nats: float
    edge: Edge | None


def next_rate(section: CompareSection, seed: int = 0) -> Search:
    """Return the search that a compare section asks for.

    Raises:
        UserError: optuna is asked for, and there is no range or no optuna.
    """
    if section.search == "grid":
        return GridSearch(section.learning_rates)
    low, high = min(section.learning_rates, default=0.0), max(section.learning_rates, default=0.0)
    if low == high:
        raise UserError(
            'search = "optuna" needs a smallest and a largest rate, got '
            f"{list(section.learning_rates)}; "
            "write learning_rates = [1e-4, 1e-2]"
        )
    if section.trials < 3:
        raise UserError(
            f"compare.trials is {section.trials}; a search begins with both ends and their middle: "
            "write trials = 8"
        )
    _optuna()
    return Optuna(low, high, section.trials, seed)


def best(results: Tried) -> Best:
    """Return the rate of the lowest loss, and whether the range should have been wider.

    Raises:
        UserError: nothing was tried.

    Example:
        >>> best({1e-3: 3.2, 3e-3: 3.1, 1e-2: 3.3}).rate
        0.003
    """
    if not results:
        raise UserError("no learning rate was tried; expected at least one finished run")
    rate = min(results, key=lambda one: (results[one], one))
    return Best(rate=rate, nats=results[rate], edge=_edge(rate, results))


def wider(rates: Tried, edge: Edge) -> float:
    """Return a round rate beyond an end: about as far out as its neighbour lies inside.

    Example:
        >>> wider({1e-3: 3.3, 3e-3: 3.2, 1e-2: 3.1}, "largest")
        0.03
        >>> wider({3e-3: 3.2, 6e-3: 3.3, 1.2e-2: 3.4}, "smallest")
        0.0015
    """
    least, most = STEPS
    ordered = sorted(rates)
    end, inner = (ordered[0], ordered[1]) if edge == "smallest" else (ordered[-1], ordered[-2])
    step = min(max(end / inner, inner / end, least), most)
    exact = end / step if edge == "smallest" else end * step
    plain = float(f"{exact:.1g}")
    return plain if abs(plain / exact - 1) <= ROUNDED else float(f"{exact:.2g}")


def _edge(rate: float, results: Tried) -> Edge | None:
    """Return the end of the tried range that a rate lies near, if any.

    How near an end is goes by the range of rates that did not diverge: one far out says nothing.
    """
    trained = [one for one, loss in results.items() if math.isfinite(loss)]
    if not trained:
        return None
    near = NEAR * math.log(max(trained) / min(trained))
    below = any(math.log(rate / one) > near for one in results)
    above = any(math.log(one / rate) > near for one in results)
    if below == above:
        return None
    return "largest" if below else "smallest"


def _between(results: Tried) -> float | None:
    """Return the rate halfway from the best to its farther neighbour, for a repeated proposal."""
    ordered = sorted(results)
    index = ordered.index(best(results).rate)
    near = ordered[max(0, index - 1) : index + 2]
    gaps = [(high / low, _round(math.sqrt(low * high))) for low, high in pairwise(near)]
    fresh = [gap for gap in gaps if gap[1] not in results]
    return max(fresh)[1] if fresh else None


def _round(rate: float) -> float:
    """Round a rate to four digits, as it names a folder."""
    return float(f"{rate:.4g}")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError(
            'search = "optuna" needs optuna, which is not installed; '
            f"{describe_install('tune')}, or write "
            'search = "grid"'
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def search_rates(
    section: CompareSection,
    runs: "Sequence[RunSpec]",
    out: Path,
    carry: "Callable[[list[RunSpec]], object]",
) -> "list[RunSpec]":
    """Carry out the runs of a search, all arms side by side, until every arm has had its trials.

    Args:
        runs: of the plan; their rates are not looked at.
        out: in which each run has a folder of its name.
        carry: carries out runs.

    Returns:
        Every run that was made.

    Raises:
        UserError: the search has no range, or optuna is not installed.
    """
    arms = {run.arm: {one.seed: one for one in runs if one.arm == run.arm} for run in runs}
    searches = {arm: next_rate(section, number) for number, arm in enumerate(arms)}
    tried: dict[str, dict[float, float]] = {arm: {} for arm in arms}
    made: list[RunSpec] = []
    while True:
        proposed = {arm: one.propose(tried[arm]) for arm, one in searches.items()}
        fresh = {
            arm: [_at(run, rate) for run in arms[arm].values()]
            for arm, rate in proposed.items()
            if rate is not None
        }
        if not fresh:
            return made
        carry([run for several in fresh.values() for run in several])
        for arm, several in fresh.items():
            tried[arm][several[0].rate] = _mean(several, out)
            made += several


def _at(run: "RunSpec", rate: float) -> "RunSpec":
    return replace(run, recipe=run.recipe.change({"train.learning_rate": rate}))


def _mean(runs: "Sequence[RunSpec]", out: Path) -> float:
    """Return the mean of the seeds; infinite where one of them diverged or crashed."""
    found = [(read_result(out / run.name) or {}).get("nats") for run in runs]
    return fmean(math.inf if one is None else one for one in found)
