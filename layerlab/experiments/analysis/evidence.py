"""The runs of a comparison that count, and the result of every test, before any word."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from layerlab.errors import UserError
from layerlab.experiments.analysis.arm_results import missing_seeds
from layerlab.experiments.analysis.claims import tests
from layerlab.experiments.analysis.interaction import Interaction, find_interactions
from layerlab.experiments.analysis.interim import LOSS, Look, collect_arms
from layerlab.experiments.analysis.readings.judged_measures import measure_tests
from layerlab.experiments.plan.equal_terms import (
    SettingDifference,
    VariedSettings,
    check_equal_terms,
)
from layerlab.experiments.statistics.additive_model import presence
from layerlab.experiments.statistics.differences import Level
from layerlab.experiments.statistics.moderated_variance import Prior
from layerlab.experiments.statistics.multiple_comparisons import Family, PairTest, shares
from layerlab.recipes.arms import arms
from layerlab.recipes.compared_measures import COMMAND, ComparedMeasure, parse_measure
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.run import RunRecord

# Where these differ, tokens are not the same tokens, and only bytes can be compared. A tokenizer
# that is trained differs with its text.
_WORDS = ("data.tokenizer", "data.vocab_size", "data.sources")
SPEEDS = ("seconds", "tokens_per_second")


@dataclass(frozen=True, kw_only=True)
class OtherSizes:
    """Evidence of the other sizes of a ladder for the comparison at one.

    Attributes:
        tests: p of all tests of the ladder beside those at this size.
        lent: by arm and baseline, what their variance has in common over the sizes.
    """

    tests: Sequence[float] = ()
    lent: Mapping[tuple[str, str], Prior] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RecipeEvidence:
    """The runs of a recipe on equal terms, and what their tests say, before any word.

    Attributes:
        baselines: of each arm.
        records: that count.
        left: remarks on those that do not.
        speeds: remarks on those whose speed does not.
        scores: remarks on those whose score does not, or is not there.
        contrasts: settings in which runs differ.
        metric: that is compared.
        crossed: interactions that the arms tell of.
        stages: the runs up to each look.
        family: every test with its result.
    """

    baselines: Mapping[str, str]
    records: Sequence[RunRecord]
    left: Sequence[str]
    speeds: Sequence[str]
    scores: Sequence[str]
    contrasts: Sequence[SettingDifference]
    metric: str
    crossed: Sequence[Interaction]
    stages: Sequence[Look]
    family: Family


def look_at_recipe(
    recipe: TrainingRecipe, found: Sequence[RunRecord], elsewhere: OtherSizes | None = None
) -> RecipeEvidence:
    """Return the runs of a recipe that count, and the result of every test.

    Raises:
        UserError: as `compare_runs`.
    """
    section = section_of(recipe)
    baselines = {str(arm.name): str(arm.against) for arm in arms(section, recipe)}
    records, left = _plan(section, [one for one in found if one.arm in baselines])
    records, speeds = without_untimed(section, records)
    records, scores = without_unlike(section, records)
    contrasts = check_equal_terms([one.manifest for one in records], VariedSettings.of(section))
    _refuse_twice(records)
    metric = "bits_per_byte" if any(one.path in _WORDS for one in contrasts) else "nats"
    crossed = find_interactions(recipe, section)
    beside = [*(one.test for one in crossed), *measure_tests(section, baselines)]
    stages, family = look_at_runs(section, baselines, records, metric, beside, elsewhere)
    return RecipeEvidence(
        baselines=baselines,
        records=records,
        left=left,
        speeds=speeds,
        scores=scores,
        contrasts=contrasts,
        metric=metric,
        crossed=crossed,
        stages=stages,
        family=family,
    )


def section_of(recipe: TrainingRecipe) -> CompareSection:
    """Return the section that says what is compared.

    Raises:
        UserError: the recipe compares nothing.
    """
    if recipe.compare is None:
        raise UserError(
            f"the recipe {recipe.name} has no compare section; write [compare] with "
            'arms = ["llama", "gpt2"]'
        )
    return recipe.compare


def _plan(
    section: CompareSection, records: Sequence[RunRecord]
) -> tuple[list[RunRecord], list[str]]:
    """Return the runs that the plan knows, and a remark on each that it does not."""
    kept, left = [], []
    for record in records:
        if record.seed not in section.seeds:
            left.append(
                f"{record.name} is left out: seed {record.seed} is none of those fixed in advance"
            )
        elif section.grid_rates and record.rate not in section.grid_rates:
            left.append(
                f"{record.name} is left out: the sweep does not have its rate {record.rate:g}"
            )
        else:
            kept.append(record)
    return kept, left


def _refuse_twice(records: Sequence[RunRecord]) -> None:
    seen: dict[tuple[str, int, float], str] = {}
    for record in records:
        key = record.arm, record.seed, record.rate
        if key in seen:
            raise UserError(
                f"{seen[key]} and {record.folder or record.name} are both {record.arm} with seed "
                f"{record.seed} at rate {record.rate:g}; delete one of them"
            )
        seen[key] = record.folder or record.name


def look_at_runs(
    section: CompareSection,
    baselines: Mapping[str, str],
    records: Sequence[RunRecord],
    metric: str,
    beside: Sequence[PairTest] = (),
    elsewhere: OtherSizes | None = None,
) -> tuple[list[Look], Family]:
    """Return the runs up to each interim look, and the result of every test.

    Where none was, the stage is that of the first.

    Args:
        beside: tests beside those of arms and claims.
        elsewhere: the other sizes of a ladder.
    """
    others = elsewhere or OtherSizes()
    asked = [PairTest(name, baseline) for name, baseline in baselines.items() if name != baseline]
    asked += beside
    asked += [
        test
        for claim in section.claims
        for several in tests(claim, baselines, section)
        for test, _ in several
    ]
    shared = presence([test.arms for test in asked if test.measure == LOSS])
    parts = shares(section.looks or (len(section.seeds),), 1 - section.confidence)
    level = Level(
        confidence=section.confidence,
        power=section.power,
        comparisons=len(Family(asked, (), 0.0, others.tests)),
        share=parts[-1],
    )

    def at(asked: CompareSection) -> Look:
        return Look(
            section=asked,
            sides=collect_arms(records, list(baselines), metric, asked.seeds),
            shared=shared,
            level=level,
            lent=others.lent,
        )

    if not section.looks:
        family = at(section)
        return [family], Family(asked, [(1.0, family)], level.alpha, others.tests)
    stages = [at(section.at(look)) for look in section.looks]
    taken = [
        (part, stage)
        for part, stage in zip(parts, stages, strict=True)
        if not any(missing_seeds(stage.section, side) for side in stage.sides.values())
    ]
    return [stage for _, stage in taken] or stages[:1], Family(asked, taken, level.alpha)


def without_untimed(
    section: CompareSection, records: Sequence[RunRecord]
) -> tuple[list[RunRecord], list[str]]:
    """Drop the speeds of runs that were not timed alone, with a remark on it.

    Those are runs that say so themselves, and all but the named ones where the section names any.

    Example:
        >>> without_untimed(CompareSection(arms=("llama",)), [])
        ([], [])
    """
    named, remarks = set(section.timed), list[str]()
    if names := ", ".join(section.timed):
        remarks.append(
            f"of speeds only those of {names} count: the other runs shared their device, and their "
            "seconds and tokens per second are left out"
        )
    if shared := sum(one.shares_device for one in records):
        remarks.append(
            f"{shared} of {len(records)} runs shared their device with others: their seconds and "
            "tokens per second are left out"
        )

    def alone(one: RunRecord) -> bool:
        return not one.shares_device and (not named or f"{one.arm}-s{one.seed}" in named)

    return [one if alone(one) else _drop_speeds(one) for one in records], remarks


def without_unlike(
    section: CompareSection, records: Sequence[RunRecord]
) -> tuple[list[RunRecord], list[str]]:
    """Drop scores that were asked for otherwise than most, with a remark on them and on what lacks.

    Example:
        >>> without_unlike(CompareSection(arms=("llama",)), [])
        ([], [])
    """
    found, remarks = list(records), []
    for measure in section.scored:
        parsed = parse_measure(measure)
        key = parsed.key
        found, files = _drop_other_files(parsed, found)
        remarks += [f"{measure}: {remark}" for remark in files]
        # What a suite asks now nobody knows without its files; a command is in the recipe.
        head = section.commands[parsed.name].digest if parsed.kind == COMMAND else ""
        scores = {one.name: one.scores[key] for one in found if key in one.scores}
        asked = {name: one.questions for name, one in scores.items() if one.asked.startswith(head)}
        usual = next((way for way, _ in Counter(asked.values()).most_common(1)), None)
        unlike = [name for name in scores if asked.get(name) != usual or name not in asked]
        lacking = [
            one.name
            for one in found
            if one.finished and one.diverged is None and key not in one.scores
        ]
        found = [_drop_score(one, key) if one.name in unlike else one for one in found]
        if unlike:
            remarks.append(
                f"{measure}: left out, because other questions or other code scored them than the "
                f"rest: {', '.join(unlike)}; type layerlab compare without --judge, which scores "
                "them anew; a command has to score the same questions of every model"
            )
        notes = (remark for one in found if key in one.scores for remark in one.scores[key].remarks)
        remarks += [f"{measure}: {remark}" for remark in dict.fromkeys(notes)]
        silent = {
            one.name: math.fsum(part.weight * part.abstained for part in one.scores[key].parts)
            for one in found
            if key in one.scores
        }
        if most := max(silent.values(), default=0.0):
            named = [name for name, share in silent.items() if share]
            remarks.append(
                f"{measure}: up to {100 * most:.3g} % of the questions have no answer in "
                f"{', '.join(named)}: they are too long for the context, or no logit is finite; "
                "they count as wrong"
            )
        if lacking:
            remarks.append(
                f"{measure}: no score of {', '.join(lacking)}; type layerlab compare without "
                "--judge, which scores finished models"
            )
    return found, remarks


def _drop_other_files(
    measure: ComparedMeasure, records: Sequence[RunRecord]
) -> tuple[list[RunRecord], list[str]]:
    """Drop scores by another file of tasks than the one that is here, with a remark on them."""
    here, key = measure.hash_files(), measure.key
    other, unknown = list[str](), list[str]()
    for one in records:
        if (score := one.scores.get(key)) is None:
            continue
        if any(here.get(name) not in (None, digest) for name, digest in score.files.items()):
            other.append(one.name)
        elif any(here.get(name) is None for name in score.files):
            unknown.append(one.name)
    remarks = []
    if other:
        remarks.append(
            f"left out, because another file of tasks scored them than the one that is there now: "
            f"{', '.join(other)}; type layerlab compare without --judge, which scores them anew"
        )
    if unknown:
        remarks.append(
            "the file of tasks is not there, so whether it is the one that scored them is not "
            f"known: {', '.join(unknown)}"
        )
    return [_drop_score(one, key) if one.name in other else one for one in records], remarks


def _drop_score(record: RunRecord, key: str) -> RunRecord:
    return replace(record, scores={name: one for name, one in record.scores.items() if name != key})


def _drop_speeds(record: RunRecord) -> RunRecord:
    result = record.result and {
        name: value for name, value in record.result.items() if name not in SPEEDS
    }
    events = tuple({**event, "seconds": None} for event in record.events)
    return replace(record, result=result, events=events)
