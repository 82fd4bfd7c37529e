"""Judges models that answered the same questions, each against a baseline."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from layerlab.errors import UserError
from layerlab.evaluation.paired.answers import TaskAnswers
from layerlab.evaluation.paired.clusters import QUESTION, count_again, find_clusters
from layerlab.evaluation.paired.folders import AnsweredModel
from layerlab.evaluation.paired.pair_questions import (
    DOCUMENTS,
    NO_DOCUMENTS,
    QuestionPairs,
    check_documents,
    pair_questions,
    pick_tasks,
)
from layerlab.evaluation.paired.question_statistics import (
    QuestionTest,
    compare_questions,
    compare_tasks,
)
from layerlab.evaluation.paired.sentences import (
    GROUP,
    SUITE,
    TASK,
    TASKS,
    Omissions,
    describe_pairs,
    list_names,
    say_row,
)
from layerlab.experiments.statistics.differences import Level
from layerlab.experiments.statistics.multiple_comparisons import holm
from layerlab.records.json_values import json_values
from layerlab.validation import short_repr, suggest
from layerlab.version import VERSION

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class PairedRequest:
    """Request for a paired comparison of evaluations.

    Attributes:
        baseline: model that others are judged against; the first where it is None.
        metric: that is compared; each task's usual one where it is None.
        documents: fields of a question that say what document it is about.
        margin: within which two models count as alike, in units of the score, which is then
            tested too.
        allowed: what may differ: prompts, questions, tasks, marks.
        confidence: of the intervals.
        name: of the comparison.
    """

    baseline: str | None = None
    metric: str | None = None
    documents: Sequence[str] = ()
    margin: float | None = None
    allowed: Sequence[str] = ()
    confidence: float = 0.95
    name: str = "judge"


@dataclass(frozen=True, kw_only=True)
class _Contest:
    """A model against the baseline over one scope, with what decides its test."""

    arm: str
    against: str
    scope: str
    pairs: Sequence[QuestionPairs] = field(repr=False)
    name: str = ""

    def judge(self, level: Level) -> QuestionTest:
        """Test whether the two differ."""
        ours, theirs = self._values()
        if self.scope == TASKS:
            count = sum(len(one.keys) for one in self.pairs)
            return compare_tasks(ours.tolist(), theirs.tolist(), count, level)
        return compare_questions(ours, theirs, find_clusters(self.pairs), level)

    @property
    def same(self) -> bool:
        """Return whether both score the same at every question."""
        return all(np.array_equal(one.ours, one.theirs) for one in self.pairs)

    def scores(self) -> tuple[float, float]:
        """Return the mean score of the model and of the baseline."""
        ours, theirs = self._values()
        return float(ours.mean()), float(theirs.mean())

    @property
    def documents(self) -> list[str]:
        """Fields by which questions are clusters."""
        fields = list(dict.fromkeys(one.document for one in self.pairs if one.document))
        return [*fields, *([QUESTION] if count_again(self.pairs) else [])]

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what both score at each unit that is averaged: a question, or a task."""
        sides = [one.ours for one in self.pairs], [one.theirs for one in self.pairs]
        if self.scope == TASKS:
            ours, theirs = (np.array([one.mean() for one in each]) for each in sides)
            return ours, theirs
        return np.concatenate(sides[0]), np.concatenate(sides[1])


def judge_models(models: Sequence[AnsweredModel], asked: PairedRequest) -> dict[str, Any]:
    """Judge models by their answers: each against the baseline, question by question.

    Raises:
        UserError: questions or prompts are not the same, the baseline is none of the models, or no
            task has a score of each question.
    """
    base = _pick_baseline(models, asked.baseline)
    others = [one for one in models if one is not base]
    tasks = pick_tasks(models, asked.allowed)
    contests: list[_Contest] = []
    unscored: list[str] = []
    by_arm: dict[str, list[QuestionPairs]] = {one.name: [] for one in others}
    fields: dict[str, Sequence[str]] = {}
    for task in tasks:
        theirs = base.read(task, asked.documents or DOCUMENTS)
        fields[task] = theirs.fields
        found = [_pair(task, one, base, theirs, asked) for one in others]
        if None in found:
            unscored.append(task)
            continue
        for one, pair in zip(others, found, strict=True):
            assert pair is not None
            by_arm[one.name].append(pair)
    check_documents(fields, asked.documents)
    if not any(by_arm.values()):
        raise UserError(
            f"no task has a score of each question ({', '.join(unscored[:6])}); such metrics as "
            "perplexity and BLEU are of all questions together"
        )
    groups, left = _pick_groups(models, tasks, unscored, by_arm)
    for name, pairs in by_arm.items():
        contests += _list_contests(name, base.name, pairs, groups)
    return _tabulate(models, base, contests, left, asked)


def _pair(
    task: str,
    model: AnsweredModel,
    base: AnsweredModel,
    theirs: TaskAnswers,
    asked: PairedRequest,
) -> QuestionPairs | None:
    ours = model.read(task, ())  # of what a question is about, the baseline's answers tell
    return pair_questions(
        task,
        (model.name, ours),
        (base.name, theirs),
        metric=asked.metric,
        documents=asked.documents,
        allowed=asked.allowed,
    )


def _pick_baseline(models: Sequence[AnsweredModel], wanted: str | None) -> AnsweredModel:
    if wanted is None:
        return models[0]
    for one in models:
        if wanted in (one.name, one.given):
            return one
    names = [one.name for one in models]
    raise UserError(
        f"the baseline {short_repr(wanted)} is none of these evaluations; "
        f"{suggest(wanted, names)}expected one of {', '.join(map(short_repr, names))}"
    )


def _pick_groups(
    models: Sequence[AnsweredModel],
    tasks: Collection[str],
    unscored: Sequence[str],
    by_arm: Mapping[str, Sequence[QuestionPairs]],
) -> tuple[dict[str, frozenset[str]], Omissions]:
    """Return the groups of which every task is compared, and what is left out.

    Args:
        tasks: that all models were asked.
    """
    groups: dict[str, frozenset[str]] = {}
    left = Omissions(unscored=unscored)
    unlike = {one.task for pairs in by_arm.values() for one in pairs if not one.share}
    for one in models:
        for name, own in one.groups.items():
            if groups.setdefault(name, own) != own:
                left.otherwise.append(name)
    for name, own in [*groups.items()]:
        reasons = (
            (left.unanswered, own - set(tasks)),
            (left.unmarked, own & set(unscored)),
            (left.unlike, own & unlike),
        )
        why = next(((name, lacking) for name, lacking in reasons if lacking), None)
        if why is not None and name not in left.otherwise and len(own) > 1:
            why[0].append(f"{name} ({list_names(sorted(why[1]))})")
        if why is not None or name in left.otherwise:
            del groups[name]
    return groups, left


def _list_contests(
    arm: str,
    against: str,
    pairs: Sequence[QuestionPairs],
    groups: Mapping[str, Collection[str]],
) -> Iterator[_Contest]:
    """Yield the tests of a model: over all questions, tasks, each group, and of each task."""
    shares = [one for one in pairs if one.share]
    if len(shares) > 1:
        yield _Contest(arm=arm, against=against, scope=SUITE, pairs=shares)
        yield _Contest(arm=arm, against=against, scope=TASKS, pairs=shares)
    seen = {frozenset(one.task for one in shares)}
    for name, tasks in groups.items():
        inside = [one for one in pairs if one.task in tasks]
        members = frozenset(one.task for one in inside)
        if len(inside) > 1 and members not in seen:  # another name of the same is no other test
            seen.add(members)
            yield _Contest(arm=arm, against=against, scope=GROUP, pairs=inside, name=name)
    for one in pairs:
        yield _Contest(arm=arm, against=against, scope=TASK, pairs=[one])


def _tabulate(
    models: Sequence[AnsweredModel],
    base: AnsweredModel,
    contests: Sequence[_Contest],
    left: Omissions,
    asked: PairedRequest,
) -> dict[str, Any]:
    level = Level(confidence=asked.confidence)
    raw = [_list_ps(one.judge(level), asked.margin) for one in contests]
    level = replace(level, comparisons=sum(map(len, raw)))
    corrected = iter(holm([p for each in raw for p in each]))
    rows = [
        _row(one, one.judge(level), [next(corrected) for _ in each], level, asked.margin)
        for one, each in zip(contests, raw, strict=True)
    ]
    pairs = [one.pairs[0] for one in contests if one.scope == TASK]
    flipped = [flip for one in contests if one.scope == TASK for flip in _list_flips(one)]
    content = {
        "schema": SCHEMA,
        "kind": "paired evaluations",
        "layerlab": VERSION,
        "name": asked.name,
        "baseline": base.name,
        "models": [
            {"name": one.name, "folder": str(one.folder), "tasks": len(one.tasks)} for one in models
        ],
        "confidence": level.confidence,
        "power": level.power,
        "tests": level.comparisons,
        "rows": rows,
        "flipped": flipped,
        "remarks": describe_pairs(models, pairs, left, NO_DOCUMENTS in asked.documents),
    }
    found: dict[str, Any] = json_values(content)
    return found


def _list_ps(found: QuestionTest, margin: float | None) -> list[float]:
    """Return p of no difference and, where a margin is asked for, of a difference at each end."""
    if found.p is None:
        return []
    ends = [] if margin is None else [found.found.p_at(-margin), found.found.p_at(margin)]
    return [found.p, *(one for one in ends if one is not None)]


def _judge_margin(
    found: QuestionTest, corrected: Sequence[float], level: Level, margin: float | None
) -> tuple[str | None, float | None]:
    """Return whether two models are surely within a margin, or surely not, and p of that."""
    mean = found.found.mean
    if margin is None or mean is None or len(corrected) != 3:
        return None, None
    inside = [p if side * (mean - side * margin) < 0 else 1.0 for side, p in _ends(corrected)]
    beyond = [p if side * (mean - side * margin) > 0 else 1.0 for side, p in _ends(corrected)]
    if min(beyond) < level.alpha:
        return "fails", min(beyond)
    return ("holds" if max(inside) < level.alpha else "not decided"), max(inside)


def _ends(corrected: Sequence[float]) -> Iterator[tuple[int, float]]:
    return zip((-1, 1), corrected[1:], strict=True)


def _row(
    contest: _Contest,
    found: QuestionTest,
    corrected: Sequence[float],
    level: Level,
    margin: float | None,
) -> dict[str, Any]:
    first, share = contest.pairs[0], all(p.share for p in contest.pairs)
    if share and margin is not None and margin >= 1:
        raise UserError(
            f"--margin is {margin:g}, and scores between 0 and 1 differ by no more than 1; "
            "a percentage point is 0.01"
        )
    within, within_p = _judge_margin(found, corrected, level, margin)
    interval = found.found.interval
    if interval and share:  # which differ by no more
        interval = max(-1.0, interval[0]), min(1.0, interval[1])
    score, against = contest.scores()
    gained, lost = (found.gained, found.lost) if first.higher else (found.lost, found.gained)
    row = {
        "arm": contest.arm,
        "against": contest.against,
        "scope": contest.scope,
        "task": {TASK: first.task, GROUP: contest.name}.get(contest.scope, contest.scope),
        "tasks": len(contest.pairs),
        "metric": ", ".join(dict.fromkeys(p.metric for p in contest.pairs)),
        "higher": first.higher,
        "share": share,
        "n": found.n,
        "units": found.units,
        "documents": [] if contest.scope == TASKS else contest.documents,
        "score": score,
        "against_score": against,
        "difference": found.difference,
        "low": interval[0] if interval else None,
        "high": interval[1] if interval else None,
        "p": found.p,
        "holm": corrected[0] if corrected else None,
        "detectable": found.detectable,
        "test": found.test,
        "margin": margin,
        "within": within,
        "within_p": within_p,
        "gained": gained,
        "lost": lost,
    }
    row["verdict"] = _word(row, level, same=contest.same)
    row["said"] = say_row(row, level)
    return row


def _word(row: dict[str, Any], level: Level, *, same: bool) -> str:
    if row["units"] >= 2 and same:
        return "identical"
    if row["holm"] is None:
        return "no verdict"
    if row["holm"] < level.alpha:
        return "better" if (row["difference"] > 0) == row["higher"] else "worse"
    return "not distinguishable"


def _list_flips(contest: _Contest) -> Iterator[dict[str, Any]]:
    """Yield the questions that one of two models has right and the other has not."""
    (pairs,) = contest.pairs
    if not pairs.binary:
        return
    for index in np.flatnonzero(pairs.ours != pairs.theirs).tolist():
        ours, theirs = pairs.answers[index]
        yield {
            "arm": contest.arm,
            "against": contest.against,
            "task": pairs.task,
            "question": pairs.keys[index],
            "right_now": bool(pairs.ours[index]) == pairs.higher,
            "text": theirs.text,
            "right": theirs.right,
            "said": ours.said,
            "against_said": theirs.said,
        }
