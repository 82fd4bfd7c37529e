"""Compares runs from their folders: checks equal terms, tests differences, keeps all of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.experiments.analysis.claims import judge_claims
from layerlab.experiments.analysis.comparison import SCHEMA, Comparison
from layerlab.experiments.analysis.evidence import (
    OtherSizes,
    look_at_recipe,
    section_of,
)
from layerlab.experiments.analysis.interaction import judge_interactions
from layerlab.experiments.analysis.interim import Look
from layerlab.experiments.analysis.readings.curves import curves, paired_curves
from layerlab.experiments.analysis.readings.gradient_profile import gradients
from layerlab.experiments.analysis.readings.judged_measures import judge_measures
from layerlab.experiments.analysis.readings.run_readings import name_unit
from layerlab.experiments.analysis.rows import is_chosen, run_row, tabulate_rows
from layerlab.experiments.analysis.verdict import (
    number,
)
from layerlab.experiments.analysis.warnings import (
    disclose_looks,
    loose,
    remarks,
    warn_of_one_arm,
)
from layerlab.experiments.plan.equal_terms import VariedSettings, check_equal_terms, notes
from layerlab.experiments.plan.factors import begun_models, departures, together, warn_of_many_slots
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.json_values import json_values
from layerlab.records.run import RunRecord, read_record
from layerlab.version import VERSION


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
    evidence = look_at_recipe(recipe, read, elsewhere)
    baselines, records, metric = evidence.baselines, evidence.records, evidence.metric
    stages, family, names = evidence.stages, evidence.family, list(baselines)
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
        "interactions": judge_interactions(evidence.crossed, stages, family, name_unit(metric)),
        "measures": judge_measures(baselines, stages, family),
        "tests": len(family),
        "claims": judge_claims(section, baselines, stages, family, name_unit(metric)),
        "runs": [run_row(one, sides, section.scored) for one in records],
        "gradients": gradients(section, sides),
        "curves": [curves(one, is_chosen(one, sides)) for one in records],
        # Runs matched by time meet at the k-th evaluation of each.
        "paired": paired_curves(stage, baselines, "rank" if section.match == "time" else "tokens"),
        "remarks": [
            *remarks(section, sides, evidence.contrasts, _worse(rows)),
            *disclose_looks(planned, section if family.has_look else None),
            *_unequal(stage),
            *_one_text(stage, baselines),
            *warn_of_one_arm(baselines),
            *notes([one.manifest for one in records]),
            *warn_of_many_slots(rows),
            *_loose(section, rows),
            *evidence.speeds,
            *evidence.scores,
            *evidence.left,
        ],
        "elsewhere": dict(others),
    }
    return Comparison(json_values(content, infinities=False))


def _read(found: Sequence[Path | RunRecord]) -> list[RunRecord]:
    read = [one if isinstance(one, RunRecord) else read_record(one) for one in found]
    return [one for one in read if one is not None]


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
    by_row = [loose(row["arm"], row["against"], section.match, row["mismatch"]) for row in rows]
    return [one for one in by_row if one is not None]


def _worse(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["arm"] for row in rows if row["verdict"] == "worse"]
