"""Remarks that a reader of a comparison needs beside its numbers.

p and intervals hold for seeds that were fixed before anything of the result was seen. A comparison
therefore keeps, as `looked`, the seeds that were planned when its verdicts were first shown.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.experiments.analysis.arm_results import ArmResults, missing_seeds
from layerlab.experiments.analysis.comparison import SCHEMA
from layerlab.experiments.analysis.readings.run_readings import list_early
from layerlab.experiments.analysis.verdict import describe_seeds
from layerlab.experiments.plan.equal_terms import SettingDifference
from layerlab.experiments.plan.lr_search import wider
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.json_values import Record
from layerlab.records.parse import check_digest, find_table
from layerlab.records.run import RunRecord

# Sides that were to be equal and lie further apart than this, in percent, are named.
LOOSE = 0.5
# How a remark on a declared difference begins.
DECLARED = "declared to differ"


def remarks(
    section: CompareSection,
    sides: Mapping[str, ArmResults],
    contrasts: Sequence[SettingDifference],
    worse: Collection[str] = (),
) -> list[str]:
    """Return the remarks on rates, seeds, divergence and declared differences.

    Args:
        worse: arms with that verdict.
    """
    return [
        *(f"declared to differ: {contrast}" for contrast in contrasts),
        *_warn_published(section),
        *_rates(section, sides),
        *_warn_of_missing(section, sides),
        *warn_of_few_seeds(section),
        *_warn_of_divergence(sides, worse),
        *_warn_of_no_gradient(sides),
        *_warn_of_early(section, sides),
    ]


def loose(name: str, baseline: str, match: str, percent: float | None) -> str | None:
    """Return a sentence where two arms differ in size after matching."""
    if percent is None or abs(percent) <= LOOSE:
        return None
    return f"{name} is matched by {match} and still differs from {baseline} by {percent:+.2f} %"


def _warn_published(section: CompareSection) -> Iterator[str]:
    if section.published is not None:
        printed = section.published
        values = ", ".join(f"{arm} {value:g}" for arm, value in printed.values.items())
        yield f"for reference and no target, {printed.source} printed {values}; {printed.note}"


def _rates(section: CompareSection, sides: Mapping[str, ArmResults]) -> Iterator[str]:
    if not section.learning_rates:
        rates = sorted({rate for side in sides.values() for rate in side.sweep})
        if len(rates) == 1:
            yield (
                f"compared at one learning rate {rates[0]:g} for all: an arm with a "
                "different optimal learning rate may look worse than it is"
            )
        elif rates:
            yield "each arm is compared at one declared learning rate of its own"
        return
    if len(section.grid_rates) == 2:
        yield "two learning rates are no sweep: an optimum shows between three or more"
    counts = {name: len(side.tried) for name, side in sides.items()}
    if max(counts.values(), default=0) > 1:
        yield (
            "each seed is judged at the learning rate that the seeds before it like best, so that "
            "no run judges the rate that it chose; the first seed of a sweep chooses, and does not "
            "judge"
        )
    if len(set(counts.values())) > 1:
        tries = ", ".join(f"{name} {count}" for name, count in counts.items())
        yield (
            f"the arms tried unequally many learning rates ({tries}): more tries find a better best"
        )
    short = [f"{name} {count}" for name, count in counts.items() if count < section.trials]
    if section.search == "optuna" and short:
        yield (
            f"the search for learning rates has not ended: {', '.join(short)} of {section.trials}; "
            "no verdict is final before it has"
        )
    for side in sides.values():
        if side.chosen and side.chosen.edge:
            yield (
                f"the best learning rate of {side.name}, {side.chosen.rate:g}, is the "
                f"{side.chosen.edge} of the sweep: add "
                f"{wider(side.tried, side.chosen.edge):g}"
            )


def _warn_of_missing(section: CompareSection, sides: Mapping[str, ArmResults]) -> Iterator[str]:
    missing = {name: missing_seeds(section, side) for name, side in sides.items()}
    arms = [f"{name} {', '.join(map(str, seeds))}" for name, seeds in missing.items() if seeds]
    if arms:
        yield (
            f"seeds that have not finished: {'; '.join(arms)}: no verdict is final before they "
            "have, and stopping when it looks good makes it false"
        )


def _warn_of_early(section: CompareSection, sides: Mapping[str, ArmResults]) -> Iterator[str]:
    for measure in section.measures:
        early = {name: list_early(measure, one.runs, one.metric) for name, one in sides.items()}
        arms = [f"{name} {', '.join(map(str, seeds))}" for name, seeds in early.items() if seeds]
        if arms:
            yield (
                f"{measure} was reached by the first evaluation already, at seeds of "
                f"{'; '.join(arms)}: how long before is not known; name a lower loss, or evaluate "
                "earlier"
            )


def warn_of_few_seeds(section: CompareSection) -> Iterator[str]:
    """Yield a sentence where the planned seeds give no verdict, or hardly one."""
    swept, count = section.search == "optuna" or len(section.learning_rates) > 1, len(section.seeds)
    if swept and count < 3:
        yield (
            f"of {describe_seeds(count)} the first chooses rates and judges nothing, which leaves "
            "too few for a verdict; plan four or more"
        )
    if not swept and count == 1:
        yield "one seed gives a difference and no verdict; plan three or more"
    if swept and count == 3:
        yield (
            "of three seeds the first chooses rates and judges nothing: a small p may mean no more "
            "than that the other two happen to agree, and does not say that the difference "
            "matters; plan four or more"
        )
    if not swept and count == 2:
        yield (
            "with two seeds the spread is that of two numbers: a small p may mean no more than "
            "that they happen to agree, and does not say that the difference matters; plan three "
            "or more"
        )


def _warn_of_divergence(sides: Mapping[str, ArmResults], worse: Collection[str]) -> Iterator[str]:
    for side in sides.values():
        for runs in side.sweep.values():
            for run in runs.values():
                if run.diverged is None:
                    continue
                if run.rate not in side.rates.get(run.seed, ()):
                    yield f"{run.name} diverged, so its rate is not chosen: {run.diverged}"
                elif side.name in worse:
                    yield f"{run.name} diverged and counts as worse: {run.diverged}"
                else:
                    yield f"{run.name} diverged: {run.diverged}"


def _warn_of_no_gradient(sides: Mapping[str, ArmResults]) -> Iterator[str]:
    for side in sides.values():
        runs = [run for found in side.sweep.values() for run in found.values()]
        still = sum(_learned_nothing(run) for run in runs)
        if still:
            yield (
                f"{still} of {len(runs)} runs of {side.name} learned nothing: the gradient was 0 "
                "at every update that was logged"
            )


def _learned_nothing(run: RunRecord) -> bool:
    norms = [one["norm"] for one in run.events if one.get("kind") == "train" and "norm" in one]
    return bool(norms) and not any(norms)


def warn_of_one_arm(baselines: Mapping[str, str]) -> list[str]:
    """Return a remark where there is nothing to compare."""
    if any(name != baseline for name, baseline in baselines.items()):
        return []
    (name,) = baselines
    return [f'{name} is the only arm, and held against none; write arms = ["{name}", "pangu-pi"]']


def disclose_looks(section: CompareSection, look: CompareSection | None) -> list[str]:
    """Return a remark on interim looks: after how many seeds this was judged."""
    if not section.looks:
        return []
    looks, most = ", ".join(map(str, section.looks)), len(section.seeds)
    if look is None:
        return [f"looks were planned at {looks} seeds, and the first has not been taken"]
    return [
        f"looks were planned at {looks} seeds, and this is the one at {len(look.seeds)} of at most "
        f"{most}; each spends a part of alpha (Lan and DeMets), so that words that stand may end "
        "the comparison"
    ]


# Rows that show nothing of an arm's result.
_BLIND = ("baseline", "no verdict")


def disclose_added_seeds(content: Record, *files: Path) -> dict[str, Any]:
    """Return a comparison with the seeds of its first look, and a remark on those that came later.

    Runs that went on after an interruption came later too, but their seeds were planned before.

    Args:
        content: that has just been judged.
        files: comparison.json of earlier judgings of the same runs, where there were any.

    Raises:
        UserError: it is no comparison.
    """
    seen, runs = _shown_runs(content), {run["run"] for run in content["runs"]}
    earlier = [one for one in map(_read, files) if _shown_runs(one) & runs]
    if not earlier and not seen:
        return dict(content)
    seeds = content["seeds"]
    # Of several looks the one at the fewest seeds was the first.
    first = min((one.get("looked", one["seeds"]) for one in earlier), key=len, default=seeds)
    added = [seed for seed in seeds if seed not in first]
    notes = [_remark(first, added)] if added else []
    found = {**content, "looked": first, "remarks": [*content["remarks"], *notes]}
    return found if content.get("step") is None else _disclose_steps(found, earlier)


def _disclose_steps(content: dict[str, Any], earlier: Sequence[Record]) -> dict[str, Any]:
    """Return a comparison of logs with the steps at which they were judged before."""
    each = [(*one.get("looked_steps", ()), one.get("step")) for one in earlier]
    steps = sorted({step for one in each for step in one if step not in (None, content["step"])})
    if not steps:
        return content
    remark = (
        f"judged before at step {', '.join(f'{step:g}' for step in steps)}: whoever stops where it "
        "looks good finds differences that are none, and p and intervals do not account for that"
    )
    return {**content, "looked_steps": steps, "remarks": [*content["remarks"], remark]}


def _shown_runs(content: Record) -> set[str]:
    """Return the runs that a table has shown the results of, without those of baselines."""
    arms = {row["arm"] for row in content.get("rows", ()) if row["verdict"] not in _BLIND}
    return {run["run"] for run in content.get("runs", ()) if run["arm"] in arms}


def _read(file: Path) -> dict[str, Any]:
    found = find_table(file)
    if found.get("schema") != SCHEMA:
        return {}
    try:
        _shown_runs(check_digest(found))
        seeds = [*found["seeds"], *found.get("looked", ())]
        if not all(isinstance(seed, int) for seed in seeds):
            raise ValueError("a seed is no whole number")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            f"{file} is no comparison that was written here; delete it, and what it tells of "
            "earlier looks goes with it"
        ) from None
    return found


def _remark(first: list[int], added: list[int]) -> str:
    return (
        f"seeds added after a look: {', '.join(map(str, added))}; a table of seeds "
        f"{', '.join(map(str, first))} had been shown before, and p and intervals do not account "
        "for that"
    )
