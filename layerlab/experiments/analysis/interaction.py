"""Does a block gain as much under another setting of training, such as the optimizer?

Four arms tell: two blocks, each under two values of one setting. The gain of a block is the loss of
its baseline less its own, seed by seed; an interaction is the gain under one value less the gain
under the other. It is a test among those of the recipe, and is corrected with them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from layerlab.experiments.analysis.arm_results import ArmResults
from layerlab.experiments.analysis.interim import Look
from layerlab.experiments.analysis.verdict import (
    Case,
    VerdictWord,
    describe_evidence,
    describe_power,
    describe_scale,
    explain_lack,
    number,
    open_case,
    tabulate_case,
)
from layerlab.experiments.statistics.multiple_comparisons import Family, PairTest
from layerlab.recipes.arms import arms
from layerlab.recipes.comparison_sections import Arm, CompareSection
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.settings import flatten

# Each arm is tuned for itself: the rate at which it is declared is no difference.
_RATE = "train.learning_rate"


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """Two blocks under two values of a setting.

    Attributes:
        setting: its path.
        values: the two, in the order of the arms.
        base: the arms of the block that the other is held against, by value.
        block: those of the other block.
    """

    setting: str
    values: tuple[Any, Any]
    base: tuple[str, str]
    block: tuple[str, str]

    @property
    def test(self) -> PairTest:
        """The test of the gain under the second value, less that under the first."""
        return PairTest(self.base[1], self.block[1], less=(self.base[0], self.block[0]))

    @property
    def under(self) -> tuple[str, str]:
        """The two values in words: `muon` says what it is, 8 does not."""
        name = self.setting.rpartition(".")[2]
        first, second = (
            one if isinstance(one, str) else f"{name} = {json.dumps(one)}" for one in self.values
        )
        return first, second


def find_interactions(recipe: TrainingRecipe, section: CompareSection) -> list[Interaction]:
    """Find an arm and its baseline that are there twice, with one setting of training apart."""
    listed, common = arms(section, recipe), dict(flatten(recipe.decisive()))
    named = {str(arm.name): arm for arm in listed}
    found = []
    for index, block in enumerate(listed):
        base = named[str(block.against)]
        if _block(base) == _block(block) or _apart(base, block, common):
            continue
        others = [arm for arm in listed if _block(arm) == _block(base)]
        for other, its_base in product(listed[index + 1 :], others):
            if _block(other) != _block(block) or _apart(other, its_base, common):
                continue
            apart = list(_apart(block, other, common).items())
            if len(apart) == 1 and apart[0][0].startswith("train."):
                found.append(
                    Interaction(
                        setting=apart[0][0],
                        values=apart[0][1],
                        base=(str(base.name), str(its_base.name)),
                        block=(str(block.name), str(other.name)),
                    )
                )
    return found


def judge_interactions(
    crossed: Sequence[Interaction],
    stages: Sequence[Look],
    family: Family,
    unit: str,
) -> list[dict[str, Any]]:
    """Return every interaction with its verdict, as plain values.

    Args:
        stages: the runs up to each look.
        family: the tests of the recipe with their results.
        unit: of the losses.
    """
    return [_row(one, stages, family, unit) for one in crossed]


def _row(one: Interaction, stages: Sequence[Look], family: Family, unit: str) -> dict[str, Any]:
    stage, judged = stages[-1], stages[family[one.test].look]
    sides = [stage.sides[name] for name in one.test.arms]
    gains = [judged.difference(*pair).mean for pair in zip(one.base, one.block, strict=True)]
    case = open_case(
        one.test,
        stages,
        family,
        arm=one.block[0],
        baseline=one.base[0],
        diverged={seed: why for side in sides for seed, why in side.diverged.items()},
        together=_both(one, gains, unit),
        scale=describe_scale(sides[1]),
        unit=unit,
        words=("smaller", "larger"),
    )
    return {
        "setting": one.setting,
        "values": list(one.values),
        "arms": list(one.block),
        "against": list(one.base),
        "gains": gains,
        **tabulate_case(case, partial(_sentence, one=one, sides=sides)),
    }


def _sentence(
    case: Case, word: VerdictWord, *, one: Interaction, sides: Sequence[ArmResults]
) -> str:
    (then, now), mean = one.under, case.difference.mean or 0.0
    evidence = describe_evidence(case)
    if word in case.words:
        size = number(abs(mean))
        return (
            f"the gain of {case.arm} over {case.baseline} is {size} {case.unit} {word} under {now} "
            f"than under {then} ({evidence})"
        )
    if word == "not distinguishable":
        change = number(mean, sign=True)
        sentence = (
            f"the gain of {case.arm} over {case.baseline} is not distinguishable under {now} from "
            f"that under {then} at this budget: {change} {case.unit} ({evidence})"
        )
        return sentence + describe_power(case)
    if word == "identical":
        return f"the gain of {case.arm} over {case.baseline} is the same under {now} and {then}"
    lack = explain_lack(case, "no seed has finished for all four arms")
    if lost := ", ".join(side.name for side in sides if side.diverged):
        lack = f"runs of {lost} diverged, and which seeds are left is no chance"
    return (
        f"no verdict on the gain of {case.arm} over {case.baseline} under {now} and {then}: {lack}"
    )


def _both(one: Interaction, gains: Sequence[float | None], unit: str) -> str:
    """Describe both gains: whether the verdict on a block survives shows in their signs."""
    first, second = gains
    if first is None or second is None:
        return ""
    return (
        f"a gain of {number(second, sign=True)} {unit} under {one.under[1]} and of "
        f"{number(first, sign=True)} under {one.under[0]}"
    )


def _block(arm: Arm) -> str:
    """Return what decides an arm's model, as a key."""
    own = {path: value for path, value in arm.set.items() if _is_of_model(path)}
    return json.dumps([arm.variant, arm.options, own], sort_keys=True, default=str)


def _apart(one: Arm, other: Arm, common: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings beside model and rate in which two arms differ, with both values."""
    paths = [path for path in {**one.set, **other.set} if path != _RATE and not _is_of_model(path)]
    values = {
        path: tuple(arm.set.get(path, common.get(path)) for arm in (one, other)) for path in paths
    }
    return {path: (first, second) for path, (first, second) in values.items() if first != second}


def _is_of_model(path: str) -> bool:
    return path.split(".")[0] == "model"
