"""Compares runs from their folders: checks equal terms, tests differences, keeps all of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.experiments.analysis.arm_results import ArmResults, missing_seeds
from layerlab.experiments.analysis.claims import judge_claims
from layerlab.experiments.analysis.comparison import SCHEMA, Comparison
from layerlab.experiments.analysis.evidence import (
    OtherSizes,
    look_at_recipe,
    section_of,
)
from layerlab.experiments.analysis.interaction import judge_interactions
from layerlab.experiments.analysis.interim import LOSS, Look
from layerlab.experiments.analysis.readings.curves import curves, paired_curves
from layerlab.experiments.analysis.readings.gradient_profile import gradients
from layerlab.experiments.analysis.readings.judged_measures import judge_measures
from layerlab.experiments.analysis.readings.run_readings import name_unit
from layerlab.experiments.analysis.verdict import (
    describe_scale,
    explain_uncounted,
    judge,
    number,
    open_case,
)
from layerlab.experiments.analysis.warnings import (
    disclose_looks,
    loose,
    remarks,
    warn_of_one_arm,
)
from layerlab.experiments.plan.equal_terms import VariedSettings, check_equal_terms, notes
from layerlab.experiments.plan.factors import begun_models, departures, together, warn_of_many_slots
from layerlab.experiments.statistics.differences import Difference
from layerlab.experiments.statistics.multiple_comparisons import Family, PairTest, tabulate_test
from layerlab.recipes.compared_measures import parse_measure
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.json_values import json_values
from layerlab.records.run import RunRecord, read_record
from layerlab.version import VERSION

_COUNTS = {"parameters": "parameters", "flops": "forward_flops"}


def compare_runs(
    recipe: TrainingRecipe,
    found: Sequence[Path | RunRecord],
    elsewhere: OtherSizes | None = None,
) -> Comparison:
    """Compare the runs of a recipe, and name those that are not finished.

    Args:
        found: folders of runs, or what was read from them.
        elsewhere: the other sizes, where the recipe is one of a ladder.

    Raises:
        UserError: the recipe compares nothing, runs differ in what was not declared, or two runs
            claim one arm, seed and rate.
    """
    planned, read = section_of(recipe), _read(found)
    looked = look_at_recipe(recipe, read, elsewhere)
    baselines, records, metric = looked.baselines, looked.records, looked.metric
    stages, family, names = looked.stages, looked.family, list(baselines)
    others = Counter(one.arm for one in read if one.arm not in names)
    stage = stages[-1]
    section, sides = stage.section, stage.sides
    differs = departures(begun_models(records), baselines)
    declared = _find_declared(planned, baselines, records)
    rows = [
        {**row, "differs": differs[row["arm"]]}
        for row in tabulate_rows(
            stages,
            family,
            baselines,
            declared=declared,
            together={name: together(one) for name, one in differs.items()},
        )
    ]
    content = {
        "schema": SCHEMA,
        "layerlab": VERSION,
        "recipe": recipe.model_dump(mode="json"),
        "name": recipe.name,
        "about": recipe.about,
        "inferred": recipe.inferred,
        "baseline": section.baseline or names[0],
        "arms": names,
        "metric": metric,
        "confidence": section.confidence,
        "power": section.power,
        "seeds": list(planned.seeds),
        "match": section.match,
        "rows": rows,
        "interactions": judge_interactions(looked.crossed, stages, family, name_unit(metric)),
        "measures": judge_measures(baselines, stages, family),
        "tests": len(family),
        "claims": judge_claims(section, baselines, stages, family, name_unit(metric)),
        "runs": [run_row(one, sides, section.scored) for one in records],
        "gradients": gradients(section, sides),
        "curves": [curves(one, _is_chosen(one, sides)) for one in records],
        # Runs matched by time meet at the k-th evaluation of each.
        "paired": paired_curves(stage, baselines, "rank" if section.match == "time" else "tokens"),
        "remarks": [
            *remarks(section, sides, looked.contrasts, _worse(rows)),
            *disclose_looks(planned, section if family.looked else None),
            *_unequal(stage),
            *_one_text(stage, baselines),
            *warn_of_one_arm(baselines),
            *notes([one.manifest for one in records]),
            *warn_of_many_slots(rows),
            *_loose(section, rows),
            *looked.speeds,
            *looked.scores,
            *looked.left,
        ],
        "elsewhere": dict(others),
    }
    return Comparison(json_values(content, infinities=False))


def _read(found: Sequence[Path | RunRecord]) -> list[RunRecord]:
    read = [one if isinstance(one, RunRecord) else read_record(one) for one in found]
    return [one for one in read if one is not None]


def tabulate_rows(
    stages: Sequence[Look],
    family: Family,
    baselines: Mapping[str, str],
    *,
    declared: Mapping[str, Sequence[str]],
    together: Mapping[str, str] | None = None,
    unit: str | None = None,
    **beside: Any,
) -> list[dict[str, Any]]:
    """Return a row for each arm, with its verdict, as plain values.

    Args:
        stages: the runs up to each look.
        family: the tests with their results.
        baselines: of each arm.
        declared: settings in which each arm differs from its baseline.
        together: what is said of an arm that more than one part of differs.
        unit: of the differences; that of the metric where it is None.
        beside: what a case is told beside.
    """
    rows = []
    stage, section = stages[-1], stages[-1].section
    for name, baseline in baselines.items():
        side, base = stage.sides[name], stage.sides[baseline]
        row = _figures(section, side, base)
        if name == baseline:
            none = Difference(kind="paired", n=len(side.values))
            rows.append({**row, **_test(none), **_baseline(side, unit)})
            continue
        test = PairTest(name, baseline)
        judged = stages[family[test].look]
        case = open_case(
            test,
            stages,
            family,
            diverged=judged.sides[name].diverged,
            base_diverged=judged.sides[baseline].diverged,
            uncounted=[one.name for one in (side, base) if one.uncounted],
            differ=declared[name],
            together=(together or {}).get(name, ""),
            scale=describe_scale(side),
            unit=unit or name_unit(side.metric),
            words=("worse", "better") if section.is_higher_better(LOSS) else ("better", "worse"),
            **beside,
        )
        verdict = judge(case)
        tested = _test(case.difference, family[test].corrected)
        rows.append({**row, **tested, "verdict": verdict.word, "said": verdict.said})
    return rows


def _find_declared(
    section: CompareSection, baselines: Mapping[str, str], records: Sequence[RunRecord]
) -> dict[str, list[str]]:
    """Return the declared settings in which the runs of each arm and its baseline differ."""
    found = {}
    for name, baseline in baselines.items():
        pair = [one.manifest for one in records if one.arm in (name, baseline)]
        found[name] = [one.path for one in check_equal_terms(pair, VariedSettings.of(section))]
    return found


def _unequal(stage: Look) -> list[str]:
    """Return a remark where the variances of arms differ more than by chance."""
    p = stage.model.unequal() if stage.section.variance == "moderated" else None
    if p is None or p >= stage.level.alpha:
        return []
    spreads = {name: stage.model.spread(name) for name in stage.model.arms}
    least, most = min(spreads, key=spreads.__getitem__), max(spreads, key=spreads.__getitem__)
    return [
        f"arms do not vary alike from seed to seed (Bartlett's p = {p:.2g}): {most} by "
        f"{number(spreads[most])}, {least} by {number(spreads[least])}; each keeps some of its own"
    ]


def _one_text(stage: Look, baselines: Mapping[str, str]) -> list[str]:
    """Return a remark where intervals do not account for the choice of the held-out text."""
    found = [
        stage.difference(name, baseline) for name, baseline in baselines.items() if name != baseline
    ]
    if not any(one.text is None and one.interval for one in found):
        return []
    by_bytes = stage.metric != "nats"
    why = "arms differ in their tokens" if by_bytes else "runs kept no losses by block"
    return [f"intervals are over seeds, and hold for this held-out text alone: {why}"]


def _loose(section: CompareSection, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    told = [loose(row["arm"], row["against"], section.match, row["mismatch"]) for row in rows]
    return [one for one in told if one is not None]


def _worse(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["arm"] for row in rows if row["verdict"] == "worse"]


def _figures(section: CompareSection, side: ArmResults, base: ArmResults) -> dict[str, Any]:
    return {
        "arm": side.name,
        "against": base.name,
        side.metric: side.mean(side.metric),
        "nats": side.mean("nats"),
        "bits_per_byte": side.mean("bits_per_byte"),
        "accuracy": side.mean("accuracy"),
        "sd": side.sd(),
        "rate": side.chosen.rate if side.chosen else None,
        "rates": [{"rate": rate, side.metric: one} for rate, one in sorted(side.tried.items())],
        "edge": side.chosen.edge if side.chosen else None,
        "tokens_per_second": side.mean("tokens_per_second"),
        "peak_memory_bytes": side.most("peak_memory_bytes"),
        "parameters": side.most("parameters"),
        "flops": side.mean("flops"),
        "seconds": side.mean("seconds"),
        "start": _start(side, base),
        "mismatch": _mismatch(section, side, base),
        "diverged": sorted(side.diverged),
        "missing": missing_seeds(section, side),
    }


def _test(found: Difference, corrected: float | None = None) -> dict[str, Any]:
    return {**tabulate_test(found, corrected), "paired": found.kind != "welch"}


def _start(side: ArmResults, base: ArmResults) -> float | None:
    """Return the largest difference to the baseline before the first update, over shared seeds."""
    pairs = [
        (run.value("step0_nats"), base.runs[seed].value("step0_nats"))
        for seed, run in side.runs.items()
        if seed in base.runs
    ]
    gaps = [one - other for one, other in pairs if one is not None and other is not None]
    return max(gaps, key=abs, default=None)


def _mismatch(section: CompareSection, side: ArmResults, base: ArmResults) -> float | None:
    """Return the difference in size that matching left, in percent of the baseline's."""
    if section.match == "none":
        return None
    if section.match == "time":
        found = side.mean("seconds"), base.mean("seconds")
    else:
        name = _COUNTS[section.match]
        found = _count(side, name), _count(base, name)
    own, wanted = found
    return 100 * (own - wanted) / wanted if own is not None and wanted else None


def _count(side: ArmResults, name: str) -> float | None:
    return next((run.count(name) for run in side.runs.values()), None)


def _baseline(side: ArmResults, unit: str | None) -> dict[str, str]:
    mean, sd = side.mean(side.metric), side.sd()
    sentence = f"{side.name} is the baseline"
    if side.uncounted:
        sentence += f": {explain_uncounted([side.name], name_unit(side.metric))}"
    elif mean is None:
        sentence += ", and no seed of it has finished with a number"
    else:
        spread = f", from seed to seed {number(sd)}" if sd is not None else ""
        unit, n = unit or name_unit(side.metric), len(side.values)
        sentence = f"{side.name} is the baseline: {mean:.4f} {unit} (mean of {n}{spread})"
    return {"verdict": "baseline", "said": f"{sentence}."}


def _is_chosen(record: RunRecord, sides: Mapping[str, ArmResults]) -> bool:
    return sides[record.arm].runs.get(record.seed) is record


def run_row(
    record: RunRecord, sides: Mapping[str, ArmResults], scored: Sequence[str]
) -> dict[str, Any]:
    """Return a run as it stands in `comparison.json`.

    Args:
        scored: measures that are scores of finished models.
    """
    left = ("schema", "blocks")
    result = {name: one for name, one in (record.result or {}).items() if name not in left}
    scores = {one: record.scores.get(parse_measure(one).key) for one in scored}
    return {
        **result,
        **{name: one and one.score for name, one in scores.items()},
        "run": record.name,
        "arm": record.arm,
        "seed": record.seed,
        "rate": record.rate,
        "finished": record.finished,
        "diverged": record.diverged,
        "chosen": _is_chosen(record, sides),
    }
