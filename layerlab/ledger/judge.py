"""Judges the runs of an idea as it was written down, once."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Literal

from layerlab.errors import UserError
from layerlab.experiments.analysis.verdict import number
from layerlab.experiments.judge_logs import (
    JudgeRequest,
    digest_readings,
    find_copies,
    find_shared,
    weigh_pair,
)
from layerlab.experiments.log_values import JudgedStep, find_end
from layerlab.experiments.statistics.multiple_comparisons import Evidence
from layerlab.ledger.campaign import (
    DIGITS,
    Campaign,
    CampaignTerms,
    IdeaTrial,
    IdeaVerdict,
    IdeaWord,
    replay,
)
from layerlab.ledger.chain import append_line, hold_ledger, read_chain
from layerlab.ledger.declare import list_seeds
from layerlab.ledger.fixed_reading import fix_reading
from layerlab.logs.training_log import LogColumns, TrainingLog
from layerlab.records.json_values import json_text
from layerlab.records.run import RunRecord
from layerlab.validation import short_repr


def judge_trial(
    folder: Path, idea: str, logs: Sequence[TrainingLog], columns: LogColumns
) -> IdeaVerdict:
    """Judge the last trial of an idea, and write the verdict down.

    The same runs again give the verdict that was written down.

    Args:
        columns: by which the logs were read, which is written down too.

    Raises:
        UserError: the idea is not there, runs are missing or were not declared, or the trial was
            judged with other runs.
    """
    campaign = replay(read_chain(folder))
    trial = campaign.find(idea)[-1]
    kept = _pick_runs(campaign, trial, logs)
    judged, read = fix_reading(campaign, trial, kept, columns)
    _refuse_copies(campaign, trial, logs, judged.at)
    found = replace(_judge(campaign, trial, kept, judged), read=read)
    with hold_ledger(folder):
        chain = read_chain(folder)
        now = replay(chain).find(idea)[-1]
        if now.seeds != trial.seeds:
            raise UserError(
                f"a confirmation of {short_repr(idea)} was written down while this ran; judge again"
            )
        if now.verdict is not None:
            _refuse_others(now, now.verdict, found)
            return now.verdict
        content = {
            "kind": "verdict",
            "verdict": found.to_dict(),
            "logs": list(dict.fromkeys(json_text(one.place) for one in kept)),
            "read": {name: one for name, one in asdict(columns).items() if one is not None},
            "readings": [
                [one.arm, _spell(one), digest]
                for one in kept
                if (digest := digest_readings(one, found.step)) is not None
            ],
            # Of these it may be known how runs fared: of ideas to come, too.
            "seen": sorted({seed for one in logs if (seed := _number(one)) is not None}),
        }
        append_line(chain, content)
    return found


def _refuse_others(trial: IdeaTrial, earlier: IdeaVerdict, found: IdeaVerdict) -> None:
    if earlier.runs != found.runs:
        raise UserError(
            f"{short_repr(trial.idea)} with seeds {list_seeds(trial.seeds)} was judged with other "
            f"runs, and is {earlier.verdict}, which stays; for more evidence write down fresh "
            "seeds: layerlab ledger add FOLDER IDEA --confirm --seeds"
        )


def _pick_runs(
    campaign: Campaign, trial: IdeaTrial, logs: Sequence[TrainingLog]
) -> list[TrainingLog]:
    """Return the runs that a trial is about: of the idea and the baseline, with its seeds.

    Raises:
        UserError: some are missing, or the idea has runs that were never declared.
    """
    base, idea = campaign.terms.baseline, trial.idea
    declared = {str(seed) for one in campaign.find(idea) for seed in one.seeds}
    wanted = [str(seed) for seed in trial.seeds]
    for name in (base, idea):
        own = [one for one in logs if one.arm == name]
        if not own:
            arms = ", ".join(dict.fromkeys(short_repr(one.arm) for one in logs))
            which = "the baseline " if name == base else ""
            raise UserError(
                f"{which}{short_repr(name)} has no run in these logs, which have {arms}; give its "
                "logs too, or name the column of arms: --arm COLUMN"
            )
        unknown = [one for one in own if one.seed is None]
        if unknown:
            raise UserError(
                f"nothing tells the seed of the run of {short_repr(name)} in {unknown[0].place}; "
                "name its column: --seed COLUMN"
            )
        other = [one for one in own if name == idea and _spell(one) not in declared]
        if other:
            seeds = ", ".join(dict.fromkeys(str(one.seed) for one in other))
            raise UserError(
                f"{short_repr(name)} has runs with seeds that were not written down before: "
                f"{seeds} ({other[0].place}); leave them out: the seeds are "
                f"{list_seeds(trial.seeds)}"
            )
        ended = {_spell(one) for one in own if one.finished is not False}
        missing = [seed for seed in wanted if seed not in ended]
        if missing:
            raise UserError(
                f"{short_repr(name)} has no run with seed {', '.join(missing)} in these logs; the "
                f"trial of {short_repr(idea)} has seeds {list_seeds(trial.seeds)}, and is judged "
                "when all of them are there and have finished"
            )
    # The baseline first, as it stands first in a comparison.
    return [
        one for name in (base, idea) for one in logs if one.arm == name and _spell(one) in wanted
    ]


def _refuse_copies(
    campaign: Campaign, trial: IdeaTrial, logs: Sequence[TrainingLog], at: float | None
) -> None:
    """Refuse runs that have the readings of another one: what they say, one run has said.

    Args:
        at: step up to which they are compared; the last one where it is None.

    Raises:
        UserError: a run that a trial is about has.
    """
    names = (campaign.terms.baseline, trial.idea)
    wanted = [str(seed) for seed in trial.seeds]
    own = [one for one in logs if one.arm in names]
    for one, other in (*find_copies(own, at), *find_shared(own, at)):
        if {_spell(one), _spell(other)}.intersection(wanted):
            raise UserError(
                f"{one.name} ({one.place}) has the same readings as {other.name} ({other.place}), "
                "so that they are no two runs: a log was copied, or the seed was not used; give "
                f"the log of each seed ({list_seeds(trial.seeds)}), or run it anew"
            )
    known: dict[tuple[str, float | None], dict[str, None]] = {}
    for (_, digest, step), seed in campaign.readings.items():
        known.setdefault((digest, step), {})[seed] = None
    for one, step in product(own, {step for _, step in known}):
        seeds = known.get((digest_readings(one, step) or "", step), {})
        # Of an idea that changes nothing both arms have them, at one seed.
        if seeds and _spell(one) in wanted and _spell(one) not in seeds:
            seed = next(iter(seeds))
            raise UserError(
                f"{one.name} ({one.place}) has the same readings as seed {seed}, which this ledger "
                "judged before: a log was copied, or the seed was not used; run it anew"
            )


def _spell(log: TrainingLog) -> str:
    """Return the seed of a run as it was declared: 07 is 7."""
    number = _number(log)
    return log.seed or "" if number is None else str(number)


def _number(log: TrainingLog) -> int | None:
    """Return the seed of a run as a number, if an idea could be written down with it."""
    seed = log.seed or ""
    whole = seed.isascii() and seed.isdigit() and len(seed) <= DIGITS
    return int(seed) if whole else None


@dataclass(frozen=True)
class _Test:
    """One-sided p: that the idea is no better, and that it is no worse."""

    better: float
    worse: float

    @classmethod
    def of(cls, evidence: Evidence) -> "_Test":
        p, side = evidence.at(0.0)
        if not side:
            return cls(1.0, 1.0)
        ends = p / 2, 1 - p / 2
        return cls(*ends) if (side > 0) is evidence.higher else cls(*reversed(ends))


def _judge(
    campaign: Campaign, trial: IdeaTrial, logs: Sequence[TrainingLog], judged: JudgedStep
) -> IdeaVerdict:
    terms = campaign.terms
    asked = JudgeRequest(judged=judged, baseline=terms.baseline, higher=terms.better == "higher")
    evidence, records, remarks = weigh_pair(logs, asked)
    test, found = _Test.of(evidence), evidence.found
    if judged.target is not None and found.identical:
        raise UserError(
            f"all runs come to {judged.target:g} at the same step, which tells nothing of "
            f"{short_repr(trial.idea)}; write an idea of another name down with a lower --measure"
        )
    word: IdeaWord = "undecided"
    if test.worse <= terms.alpha or (found.identical and not any(evidence.lost)):
        word = "refuted"
    elif trial.stage == "confirmation" and test.better <= trial.level:
        word = "adopted"
    # What a confirmation did not decide may be tried again, at a level of its own.
    again = word == "undecided" and test.better <= max(trial.level, terms.alpha)
    following: Literal["confirm", "nothing"] = "confirm" if again else "nothing"
    return IdeaVerdict(
        idea=trial.idea,
        stage=trial.stage,
        verdict=word,
        said=_say(trial, terms, word, following, evidence, test),
        level=trial.level,
        p=test.better,
        difference=found.mean,
        low=found.low,
        high=found.high,
        seeds=trial.seeds,
        next=following,
        remarks=(
            *remarks,
            *_describe_confirmation(following, judged),
            *_describe_early(trial, logs),
        ),
        runs=_hash_runs(records),
        step=find_end(logs, judged),
    )


def _say(
    trial: IdeaTrial,
    terms: CampaignTerms,
    word: IdeaWord,
    following: str,
    evidence: Evidence,
    test: _Test,
) -> str:
    found, measure = evidence.found, terms.loss if evidence.higher else trial.measure
    mean = "no difference" if found.mean is None else f"{number(found.mean, sign=True)}"
    interval = f", 95 % {number(found.low or 0, sign=True)} to {number(found.high or 0, sign=True)}"
    facts = (
        f"{measure} {mean} to {terms.baseline} over {found.n} seeds"
        f"{interval if found.interval else ''}; p = {test.better:.2g}"
    )
    if any(evidence.lost):
        facts += (
            f"; {evidence.lost[0]} of {evidence.ended[0]} runs without a number against "
            f"{evidence.lost[1]} of {evidence.ended[1]}"
        )
    if word == "adopted":
        why = f"p is at or below {trial.level:.2g}, the level of this confirmation"
    elif word == "refuted":
        why = "it is the same at every seed" if found.identical else "it is worse"
    elif found.flat and found.mean:
        why = "the same difference at every seed tells nothing of chance"
    elif trial.stage == "screening" and following == "confirm":
        why = "it looks better; confirm it with seeds that nothing had"
    elif trial.stage == "screening":
        why = f"p is above {trial.level:.2g}, and a confirmation is hardly worth its runs"
    else:
        why = f"p is above {trial.level:.2g}, the level of this confirmation"
    return f"{trial.idea} is {word}: {why} ({facts})"


def _describe_confirmation(following: str, judged: JudgedStep) -> list[str]:
    """Return a remark on what the step of the first runs decides."""
    if following != "confirm" or judged.at is not None:
        return []
    return ["its other runs are judged at this step and by this loss, too"]


def _describe_early(trial: IdeaTrial, logs: Sequence[TrainingLog]) -> list[str]:
    """Return a remark on logs that were there before the trial was written down.

    The baseline's first runs may be: they serve many ideas. For a confirmation they may not, as
    its seeds could be those at which the baseline is known to have fared badly.
    """
    declared = datetime.fromisoformat(trial.time).timestamp()
    early = []
    for one in logs:
        changed = Path(one.place).stat().st_mtime if Path(one.place).is_file() else declared
        # A second: the ledger tells no smaller times.
        ours = one.arm == trial.idea or trial.stage == "confirmation"
        if ours and changed < declared - 1:
            early.append(f"{one.place} ({datetime.fromtimestamp(changed, UTC):%Y-%m-%d %H:%M} UTC)")
    if not early:
        return []
    places = ", ".join(dict.fromkeys(early))
    return [f"logs that were last changed before the trial was written down: {places}"]


def _hash_runs(records: Sequence[RunRecord]) -> str:
    """Return a digest of the numbers that were judged."""
    numbers = sorted((one.arm, one.seed, one.result) for one in records)
    return hashlib.sha256(json.dumps(numbers, default=dict).encode()).hexdigest()
