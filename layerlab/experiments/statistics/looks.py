"""Interim looks: a comparison that may stop once all is decided, and its expected runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layerlab.experiments.statistics.additive_model import Additive
from layerlab.experiments.statistics.differences import Level
from layerlab.experiments.statistics.multiple_comparisons import Evidence, Family, PairTest, shares
from layerlab.recipes.comparison_sections import CompareSection

if TYPE_CHECKING:
    from layerlab.training.run_spec import RunSpec

# Effects that a plan tells of, in standard deviations of a run beside its seed; 0 is no difference.
EFFECTS = (0.0, 2.0, 4.0)
DRAWS = 60
_OPEN = ("not distinguishable", "too few seeds", "no verdict", "diverged")


def stretches(section: CompareSection, runs: "Sequence[RunSpec]") -> "list[list[RunSpec]]":
    """Return the runs that each look adds to those before.

    All at once where there are none.
    """
    if not section.looks:
        return [list(runs)]
    ends = (0, *section.looks)
    return [
        [run for run in runs if run.seed in section.seeds[start:end]]
        for start, end in zip(ends, section.looks, strict=False)
    ]


def is_decided(content: Mapping[str, Any]) -> bool:
    """Return whether every arm and every claim has a verdict."""
    verdicts = [row["verdict"] for row in content["rows"]]
    claims = [claim["verdict"] for claim in content["claims"]]
    return not any(word in _OPEN for word in verdicts) and "not decided" not in claims


def expected_runs(section: CompareSection, arms: int) -> dict[float, float]:
    """Simulate how many runs it takes until every arm has a verdict, by effect size.

    Args:
        arms: with their baseline.
    """
    rng = np.random.default_rng(0)
    return {
        effect: float(np.mean([_seeds(section, arms, effect, rng) for _ in range(DRAWS)])) * arms
        for effect in EFFECTS
    }


def describe_looks(section: CompareSection, arms: int) -> list[str]:
    """Describe how many runs a plan with interim looks expects.

    Nothing where there are none.
    """
    if not section.looks:
        return []
    runs = expected_runs(section, arms)
    counts = [
        f"{count:.0f} where {'no arm differs' if not effect else f'all differ by {effect:g} sd'}"
        for effect, count in runs.items()
    ]
    looks = ", ".join(map(str, section.looks))
    return [
        f"looks at {looks} seeds: runs to expect at one rate, of {arms * len(section.seeds)} at "
        f"most, in {DRAWS} simulated comparisons: {', '.join(counts)} of a run beside its seed"
    ]


@dataclass(frozen=True)
class _LossTable:
    """A table of losses up to a look."""

    model: Additive

    def evidence(self, test: PairTest) -> Evidence:
        return Evidence(found=self.model.difference(test.arm, test.baseline, Level()))


def _seeds(section: CompareSection, arms: int, effect: float, rng: np.random.Generator) -> int:
    """Return the seeds after which a simulated comparison stops."""
    table = rng.standard_normal((arms, len(section.seeds)))
    table[1:] += effect
    tests = [PairTest(str(arm), "0") for arm in range(1, arms)]
    alpha = 1 - section.confidence
    stages = []
    for look, share in zip(section.looks, shares(section.looks, alpha), strict=True):
        values = {str(arm): dict(enumerate(row[:look].tolist())) for arm, row in enumerate(table)}
        stages.append((share, _LossTable(Additive(values, {"0": 1.0}))))
        family = Family(tests, stages, alpha)
        if all(family[test].corrected < alpha for test in tests):
            return look
    return len(section.seeds)
