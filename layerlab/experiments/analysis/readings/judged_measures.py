"""Verdicts on what is compared beside the loss: each arm against its own, measure by measure."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from layerlab.experiments.analysis.arm_results import ArmResults
from layerlab.experiments.analysis.interim import Look
from layerlab.experiments.analysis.readings.run_readings import read_runs, unit_of
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
from layerlab.recipes.compared_measures import is_scored
from layerlab.recipes.comparison_sections import CompareSection


def measure_tests(section: CompareSection, baselines: Mapping[str, str]) -> list[PairTest]:
    """Return the tests of the measures that a recipe names, of every arm against its baseline."""
    pairs = [(arm, baseline) for arm, baseline in baselines.items() if arm != baseline]
    return [PairTest(*pair, measure=measure) for measure in section.measures for pair in pairs]


def judge_measures(
    baselines: Mapping[str, str], stages: Sequence[Look], family: Family
) -> list[dict[str, Any]]:
    """Return every arm's verdict in every measure, as plain values.

    Args:
        baselines: the baseline of each arm.
        stages: the runs up to each look.
        family: the tests of the recipe with their results.
    """
    section = stages[-1].section
    return [_row(test, stages, family) for test in measure_tests(section, baselines)]


def _row(test: PairTest, stages: Sequence[Look], family: Family) -> dict[str, Any]:
    measure, stage = test.measure, stages[-1]
    judged = stages[family[test].look]
    case = open_case(
        test,
        stages,
        family,
        diverged=judged.loss_reasons(test.arm, measure),
        base_diverged=judged.loss_reasons(test.baseline, measure),
        scale=describe_scale(stage.sides[test.arm]),
        unit=unit_of(measure, stage.section.find_step_unit()),
        words=_words(measure, stage.section),
        questions=is_scored(measure),
        answers_alike=is_scored(measure) and judged.answers_alike(test),
    )
    return {
        "measure": measure,
        "unit": case.unit,
        "arm": test.arm,
        "against": test.baseline,
        "mean": _mean(measure, stage.sides[test.arm]),
        "against_mean": _mean(measure, stage.sides[test.baseline]),
        "seeds": _pairs(measure, stage, test),
        "lost": sorted(case.diverged),
        **tabulate_case(case, partial(_sentence, measure=measure)),
    }


def _words(measure: str, section: CompareSection) -> tuple[VerdictWord, VerdictWord]:
    """Return the word for a difference below 0, and that for one above."""
    if not is_scored(measure):
        return "smaller", "larger"
    return ("worse", "better") if section.is_higher_better(measure) else ("better", "worse")


def _pairs(measure: str, stage: Look, test: PairTest) -> list[dict[str, Any]]:
    """Return what an arm and its baseline have at each seed of any arm, and their difference."""
    ours, theirs = (
        read_runs(measure, side.runs, side.metric)
        for side in (stage.sides[test.arm], stage.sides[test.baseline])
    )
    every = sorted({seed for side in stage.sides.values() for seed in side.runs})
    return [
        {
            "seed": seed,
            "value": ours.get(seed),
            "baseline": theirs.get(seed),
            "difference": ours[seed] - theirs[seed] if seed in ours and seed in theirs else None,
        }
        for seed in stage.section.seeds or every  # logs have none planned
    ]


def _mean(measure: str, side: ArmResults) -> float | None:
    found = read_runs(measure, side.runs, side.metric)
    return sum(found.values()) / len(found) if found else None


def _sentence(case: Case, word: VerdictWord, *, measure: str) -> str:
    mean = case.difference.mean or 0.0
    why = _describe_lost(case)
    reason = f"; {why}" if why else ""
    if word in case.words and why:
        return f"{measure} of {case.arm} is {word} than that of {case.baseline}: {why}"
    if word in case.words:
        return (
            f"{measure} of {case.arm} is {word} than that of {case.baseline} by "
            f"{number(abs(mean))} {case.unit} ({describe_evidence(case)})"
        )
    if word == "not distinguishable":
        return (
            f"{measure} of {case.arm} is not distinguishable from that of {case.baseline} at this "
            f"budget: {number(mean, sign=True)} {case.unit} ({describe_evidence(case)})"
            f"{describe_power(case)}{reason}"
        )
    if word == "identical":
        return f"{measure} of {case.arm} is that of {case.baseline} at every seed"
    lack = explain_lack(case, "no seed has it for both")
    if word == "diverged" and case.difference.n > 1:
        lack, reason = why, ""
    return f"no verdict on {measure} of {case.arm} and {case.baseline}: {lack}{reason}"


def _describe_lost(case: Case) -> str:
    """Describe how many runs have no number, why, and what those that are left say."""
    if not any(case.evidence.lost):
        return ""
    (ours, theirs), (ended, its) = case.evidence.lost, case.evidence.ended
    sides = ((case.arm, case.diverged), (case.baseline, case.base_diverged))
    reasons = [f"{name}: {why}" for name, lost in sides for why in dict.fromkeys(lost.values())]
    sentence = (
        f"{ours} of {ended} runs against {theirs} of {its} without one, Fisher's exact p = "
        f"{case.evidence.divergence:.2g} ({'; '.join(reasons)})"
    )
    found = case.difference
    if found.mean is None:
        return sentence
    left = f"; over the seeds left ({found.n}) it is {number(found.mean, sign=True)} {case.unit}"
    return sentence + left + (f" ({describe_evidence(case)})" if found.interval else "")
