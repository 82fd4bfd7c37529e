"""Judges the logs of other trainers as a comparison judges its own runs."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from layerlab.errors import UserError
from layerlab.experiments.analysis.claims import judge_claims
from layerlab.experiments.analysis.comparison import SCHEMA, Comparison
from layerlab.experiments.analysis.evidence import look_at_runs
from layerlab.experiments.analysis.readings.curves import curves, paired_curves
from layerlab.experiments.analysis.readings.judged_measures import judge_measures, measure_tests
from layerlab.experiments.analysis.readings.run_readings import name_unit
from layerlab.experiments.analysis.rows import run_row, tabulate_rows
from layerlab.experiments.log_remarks import list_remarks
from layerlab.experiments.log_settings import describe_unlike, find_unlike, refuse_unlike
from layerlab.experiments.log_values import (
    LOSS,
    JudgedStep,
    find_direction,
    find_end,
    leave_unfinished,
    list_arms,
    make_records,
    number_seeds,
)
from layerlab.experiments.statistics.differences import check_confidence, check_margin
from layerlab.experiments.statistics.multiple_comparisons import Evidence, PairTest
from layerlab.logs.training_log import ROWS, UPDATES, TrainingLog
from layerlab.recipes.compared_measures import STEP_UNIT
from layerlab.recipes.comparison_sections import Claim, CompareSection
from layerlab.records.json_values import json_values
from layerlab.records.run import RunRecord
from layerlab.version import VERSION

# Digits of a loss that runs of an arm may share, and so many beyond as no two have by chance.
SHARED, SURE = 2, 8


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """Request for a verdict on logs.

    Attributes:
        judged: which readings count.
        baseline: arm that others are judged against; the first where it is None.
        margin: within which an arm counts as alike, which is then tested too.
        allowed: settings in which arms may differ.
        strict: refuse arms that differ in others.
        higher: whether more is better in what is judged; its name tells where it is None.
        confidence: of the intervals.
        name: of the comparison.
    """

    judged: JudgedStep = field(default_factory=JudgedStep)
    baseline: str | None = None
    margin: float | None = None
    allowed: Sequence[str] = ()
    strict: bool = False
    higher: bool | None = None
    confidence: float = 0.95
    name: str = "judge"


def judge_logs(logs: Sequence[TrainingLog], asked: JudgeRequest) -> Comparison:
    """Judge runs by their logs: each arm against the baseline, paired where seeds are the same.

    Of runs with the same readings one counts.

    Raises:
        UserError: logs have one arm, two of one run, no number where they are judged, or arms
            differ in what a strict request does not allow.
    """
    logs, unfinished = leave_unfinished(logs, asked.baseline)
    logs, copies = _leave_copies(logs, asked.judged.at)
    names = list_arms(logs, asked.baseline)
    unlike = find_unlike(logs, names, asked.allowed)
    if asked.strict:
        refuse_unlike(unlike, names)
    higher = _is_higher(logs, asked)
    records = make_records(logs, asked.judged, higher=higher)
    section = _section(logs, names, records, asked, higher=higher)
    name = logs[0].loss_name if higher else LOSS
    unit = name_unit(name)
    baselines = dict.fromkeys(names, names[0])
    tests = measure_tests(section, baselines)
    stages, family = look_at_runs(section, baselines, records, LOSS, tests)
    # Nothing was planned of somebody's runs: no seed is missing.
    free = section.model_copy(update={"seeds": ()})
    stages = [replace(one, section=free) for one in stages]
    rows = tabulate_rows(
        stages,
        family,
        baselines,
        declared=unlike.by_arm,
        unit=unit,
        more_seeds="run two or more of each arm",
    )
    content = {
        "schema": SCHEMA,
        "layerlab": VERSION,
        "name": asked.name,
        "about": "",
        "inferred": "",
        "baseline": names[0],
        "arms": names,
        "metric": LOSS,
        "judged": name,
        "step": find_end(logs, asked.judged),
        "higher_is_better": higher,
        "confidence": section.confidence,
        "power": section.power,
        "seeds": sorted({one.seed for one in records}),
        "match": "none",
        "rows": [{**row, "rate": None, "rates": [], "edge": None} for row in rows],
        "measures": judge_measures(baselines, stages, family),
        "tests": len(family),
        "claims": judge_claims(free, baselines, stages, family, unit),
        "runs": [{**run_row(one, stages[-1].sides, ()), "rate": None} for one in records],
        "curves": [{**curves(one, True), "rate": None} for one in records],
        "paired": paired_curves(stages[-1], baselines, "update"),
        "remarks": [
            _describe_judged(logs, asked.judged, higher=higher),
            *unfinished,
            *_describe_pairs(logs, names),
            *describe_unlike(unlike, names),
            *list_remarks(logs),
            *_describe_shared(logs, asked.judged.at),
            *copies,
        ],
    }
    return Comparison(json_values(content, infinities=False))


def weigh_pair(
    logs: Sequence[TrainingLog], asked: JudgeRequest
) -> tuple[Evidence, list[RunRecord], list[str]]:
    """Return what the runs of an arm and its baseline say, before any word or correction.

    With the numbers that are judged, and remarks on the runs.

    Raises:
        UserError: as `judge_logs` does.
    """
    names = list_arms(logs, asked.baseline)
    higher = _is_higher(logs, asked)
    records = make_records(logs, asked.judged, higher=higher)
    section = _section(logs, names, records, asked, higher=higher)
    stages, _ = look_at_runs(section, dict.fromkeys(names, names[0]), records, LOSS, [])
    test = PairTest(names[1], names[0], measure=next(iter(section.measures), LOSS))
    remarks = [
        _describe_judged(logs, asked.judged, higher=higher),
        *describe_unlike(find_unlike(logs, names, asked.allowed), names),
        *list_remarks(logs),
    ]
    return stages[-1].evidence(test), records, remarks


def _is_higher(logs: Sequence[TrainingLog], asked: JudgeRequest) -> bool:
    return find_direction(logs) if asked.higher is None else asked.higher


class _LogSection(CompareSection):
    """Settings of a comparison of logs, where more of what is judged may be better.

    Attributes:
        higher: whether it is.
        counted: what its steps are.
    """

    higher: bool = False
    counted: str = STEP_UNIT

    def is_higher_better(self, measure: str) -> bool:
        """Return whether more is better in a measure."""
        return self.higher if measure == LOSS else super().is_higher_better(measure)

    def find_step_unit(self) -> str:
        """Return what the steps of runs are."""
        return self.counted


def _section(
    logs: Sequence[TrainingLog],
    names: Sequence[str],
    records: Sequence[RunRecord],
    asked: JudgeRequest,
    *,
    higher: bool = False,
) -> CompareSection:
    target, counted = asked.judged.target, logs[0].step_name
    claims = [
        Claim(
            source="asked for",
            statement=f"{name} is within {asked.margin:g} of {names[0]}.",
            relation="alike",
            arms=((name, names[0]),),
            margin=asked.margin,
        )
        for name in names[1:]
        if asked.margin is not None
    ]
    return _LogSection(
        higher=higher,
        counted=STEP_UNIT if counted.lower() in UPDATES else counted,
        arms=tuple(names),
        baseline=names[0],
        seeds=tuple(sorted({one.seed for one in records})),
        measures=() if target is None else (f"steps:{target!r}",),
        claims=tuple(claims),
        confidence=asked.confidence,
        # Nobody has declared that arms vary alike, and few seeds do not tell whether they do.
        variance="own",
    )


def _describe_judged(
    logs: Sequence[TrainingLog], judged: JudgedStep, *, higher: bool = False
) -> str:
    columns = ", ".join(dict.fromkeys(one.loss_name for one in logs))
    others = ", ".join(dict.fromkeys(name for one in logs for name in one.beside))
    left = f"; beside it stand {others}, which --loss may name" if others else ""
    if all(one.step_name == ROWS and len(one.steps) == 1 for one in logs):
        better = ", of which more is better" if higher else ""
        return f"what is judged is {columns}{better}, the one reading of each run{left}"
    step = f"{find_end(logs, judged):g}" + (", the last" if judged.at is None else "")
    mean = f"the mean of {judged.last} readings up to" if judged.last > 1 else "the reading at"
    if higher:
        return f"the score is {columns}, of which more is better, {mean} step {step}{left}"
    return f"the loss is {columns}, {mean} step {step}{left}"


def _describe_pairs(logs: Sequence[TrainingLog], names: Sequence[str]) -> list[str]:
    """Return a remark where the two sides of a difference share no seed, or some do not."""
    seeds: dict[str, set[int]] = {name: set() for name in names}
    numbers, words = number_seeds(logs), dict[int, str]()
    for one in logs:
        if one.seed is not None:
            seeds[one.arm].add(numbers[id(one)])
            words[numbers[id(one)]] = one.seed
    unnamed = Counter(one.arm for one in logs if one.seed is None)
    base, remarks = seeds[names[0]], []
    for name in names[1:]:
        shared, every = seeds[name] & base, seeds[name] | base
        without = unnamed[name] + unnamed[names[0]]
        if shared and (shared != every or without):
            left = sorted(words[one] for one in every - shared)
            left += [f"{without} of no known seed"] if without else []
            remarks.append(
                f"{name} and {names[0]} are paired over {len(shared)} of the seeds; the others "
                f"({', '.join(left)}) have no partner"
            )
    return remarks


def find_shared(
    logs: Sequence[TrainingLog], at: float | None
) -> list[tuple[TrainingLog, TrainingLog]]:
    """Return runs that have the readings of one of another arm, each with it.

    Of one seed two arms have the same readings where what they try changes nothing; then they have
    them at every seed that both have.
    """
    digests = [digest_readings(one, at) for one in logs]
    sure = [(one, digest) for one, digest in zip(logs, digests, strict=True) if digest is not None]
    by_arm: dict[str, dict[str | None, str]] = {}
    for one, digest in sure:
        by_arm.setdefault(one.arm, {})[one.seed] = digest
    seen: dict[str, TrainingLog] = {}
    found = []
    for one, digest in sure:
        other = seen.setdefault(digest, one)
        if other.arm == one.arm:
            continue
        own, its = by_arm[one.arm], by_arm[other.arm]
        if other.seed != one.seed or any(own[seed] != its[seed] for seed in own.keys() & its):
            found.append((one, other))
    return found


def _describe_shared(logs: Sequence[TrainingLog], at: float | None) -> list[str]:
    return [
        f"{one.name} ({one.place}) has the readings of {other.name} ({other.place}), as a copy has"
        for one, other in find_shared(logs, at)
    ]


def _leave_copies(
    logs: Sequence[TrainingLog], at: float | None
) -> tuple[list[TrainingLog], list[str]]:
    """Return each run once, and remarks on copied logs and on seeds that do nothing."""
    # A seed that stands twice is refused, whatever its readings are.
    copies = [(a, b) for a, b in find_copies(logs, at) if a.seed is None or a.seed != b.seed]
    left = {id(one) for one, _ in copies}
    return [one for one in logs if id(one) not in left], [
        f"{one.name} ({one.place}) is left out: it has the same readings as {other.name} "
        f"({other.place}), so that they are no two runs: a log was copied, or the seed was not used"
        for one, other in copies
    ]


def find_copies(
    logs: Sequence[TrainingLog], at: float | None
) -> list[tuple[TrainingLog, TrainingLog]]:
    """Return runs that have the readings of an earlier one of their arm, each with that one.

    Args:
        at: step up to which they are compared; the last one of each where it is None.
    """
    seen: dict[tuple[str, str], TrainingLog] = {}
    found = []
    for one in logs:
        digest = digest_readings(one, at)
        if digest is None:
            continue
        other = seen.setdefault((one.arm, digest), one)
        if other is not one:
            found.append((one, other))
    return found


def digest_readings(log: TrainingLog, at: float | None) -> str | None:
    """Return a digest of a run's readings; None where another run may have the same by chance.

    Runs of an arm share the first digits of their losses. Beyond these each of their readings has a
    few of its own, so that one in double precision is enough, or two in single precision, or three
    that were rounded to four decimals.

    Args:
        at: step up to which they count: one log may be cut off where a copy of it goes on.
    """
    inside = log.steps <= (math.inf if at is None else at)
    left, losses = SURE, log.losses[inside]
    for loss in dict.fromkeys(losses[np.isfinite(losses)].tolist()):
        left -= max(0, _count_digits(loss) - SHARED)
        if left <= 0:
            return hashlib.sha256(log.steps[inside].tobytes() + losses.tobytes()).hexdigest()
    return None


def _count_digits(loss: float) -> int:
    """Count the significant digits of a number; single precision has seven, however it is written.

    Example:
        >>> [_count_digits(one) for one in (3.25, 0.0125, 3.2512345671234, float(np.float32(3.2)))]
        [3, 3, 14, 7]
    """
    digits = len(repr(loss).partition("e")[0].replace(".", "").lstrip("-0"))
    with np.errstate(over="ignore"):
        single = abs(float(np.float32(loss)) - loss) <= 1e-10 * abs(loss)
    return min(digits, 7) if single else digits


def check_request(asked: JudgeRequest) -> None:
    """Refuse numbers that mean nothing.

    Raises:
        UserError: one does.
    """
    if asked.judged.at is not None and not math.isfinite(asked.judged.at):
        raise UserError(f"--at is {asked.judged.at:g}; expected a step, or leave it out")
    if asked.judged.last < 1:
        raise UserError(f"--last is {asked.judged.last}; expected 1 or more readings")
    check_margin(asked.margin)
    target = asked.judged.target
    if target is not None and not 0 < target < math.inf:
        raise UserError(f"--target-loss is {target:g}; expected a finite loss above 0")
    check_confidence(asked.confidence)
