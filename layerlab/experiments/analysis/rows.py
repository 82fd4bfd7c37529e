"""Arms and runs as rows of plain values, each arm with its verdict."""

from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.experiments.analysis.arm_results import ArmResults, missing_seeds
from layerlab.experiments.analysis.interim import LOSS, Look
from layerlab.experiments.analysis.readings.run_readings import name_unit
from layerlab.experiments.analysis.verdict import (
    describe_scale,
    explain_uncounted,
    judge,
    number,
    open_case,
)
from layerlab.experiments.statistics.differences import Difference
from layerlab.experiments.statistics.multiple_comparisons import Family, PairTest, tabulate_test
from layerlab.recipes.compared_measures import parse_measure
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.run import RunRecord

_COUNTS = {"parameters": "parameters", "flops": "forward_flops"}


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


def is_chosen(record: RunRecord, sides: Mapping[str, ArmResults]) -> bool:
    """Return whether a run is the one of its seed that its arm is compared by."""
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
        "chosen": is_chosen(record, sides),
    }
