"""Pairs the answers of two models question by question, and refuses what does not compare."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from layerlab.errors import UserError
from layerlab.evaluation.harness.task_result import ABSTAINED, ALONE, WORTHS
from layerlab.evaluation.paired.answers import ASKED, SETTINGS, ModelAnswer, TaskAnswers
from layerlab.evaluation.paired.folders import AnsweredModel
from layerlab.logs.directions import is_higher_better, split_direction
from layerlab.validation import short_repr, suggest

# Fields in which benchmarks keep what several questions are about.
DOCUMENTS = (
    *("idx.paragraph", "passage_id", "story_id", "document_id", "passage", "article", "story"),
    *("paragraph", "context", "document"),
)
NO_DOCUMENTS = "none"
ALLOWED = ("prompts", "questions", "tasks", "marks")
# Whether more is better of metrics that only our benchmarks have.
_HIGHER = {ALONE: True, ABSTAINED: False}
# Of `ASKED`, what nobody may allow: the question, and its right answer.
_NEVER = (0, 3)


@dataclass(frozen=True, kw_only=True)
class QuestionPairs:
    """The questions of a task with the scores of two models.

    Attributes:
        metric: that is compared.
        others: metrics that score each question as well, where nobody named one.
        higher: whether more of it is better.
        keys: of the questions.
        ours: score of each.
        theirs: of the baseline.
        document: field that says which document a question is about; None where each stands by
            itself.
        bare: questions without that field, each of which stands by itself.
        asked: digest of each question, by which it is known where it is asked again; empty where
            clusters were declined, or nothing tells questions apart.
        answers: of both to each.
        unlike: questions whose prompts are not the same, which was allowed.
        left: questions that only one has, which was allowed.
        unfit: by name, questions that did not fit into the context of a model: of neither they
            count.
        unsound: by name, questions at which logits were no numbers.
        limited: by name, tokens that answers could have where the context allowed fewer than the
            task; empty where it is the same for both.
        mixed: whether two programs asked, so that settings were not compared.
        marks: settings by which answers were marked otherwise, which was allowed.
    """

    task: str
    metric: str
    higher: bool
    keys: Sequence[str]
    ours: np.ndarray
    theirs: np.ndarray
    document: str | None
    answers: Sequence[tuple[ModelAnswer, ModelAnswer]] = field(repr=False)
    others: Sequence[str] = ()
    bare: int = 0
    asked: Sequence[str] = ()
    unlike: int = 0
    left: int = 0
    unfit: Mapping[str, int] = field(default_factory=dict)
    unsound: Mapping[str, int] = field(default_factory=dict)
    limited: Mapping[str, int | None] = field(default_factory=dict)
    mixed: bool = False
    marks: Sequence[str] = ()

    @property
    def binary(self) -> bool:
        """Return whether each answer is right or wrong, and nothing between."""
        return bool(np.isin(self.ours, (0, 1)).all() and np.isin(self.theirs, (0, 1)).all())

    @property
    def share(self) -> bool:
        """Return whether scores are shares, more of which is better."""
        both = np.concatenate([self.ours, self.theirs])
        return self.higher and bool(((both >= 0) & (both <= 1)).all())


def pick_tasks(models: Sequence[AnsweredModel], allowed: Sequence[str]) -> list[str]:
    """Return the tasks that all models were asked.

    Raises:
        UserError: there is none, or some have one that others have not, or that results tell of
            and no answers are there to.
    """
    for word in allowed:
        if word not in ALLOWED:
            raise UserError(
                f"--allow is {short_repr(word)}; {suggest(word, ALLOWED)}expected, of evaluations, "
                f"{', '.join(ALLOWED)}"
            )
    shared = set.intersection(*(set(one.tasks) for one in models))
    if not shared:
        tasks = "; ".join(f"{one.name} has {_list(one.tasks)}" for one in models)
        raise UserError(f"no task was asked of all: {tasks}; name evaluations of the same tasks")
    for one in models:
        if "tasks" not in allowed and one.missing:
            raise UserError(
                f"{one.folder} holds no answers to {_list(one.missing)}, of which the results "
                "there tell; copy them too, or type --allow tasks to compare the tasks that all "
                "have"
            )
        if "tasks" not in allowed and (more := sorted(set(one.tasks) - shared)):
            raise UserError(
                f"{one.name} was asked {_list(more)}, and not all others were; type --allow tasks "
                "to compare the tasks that all have"
            )
    return sorted(shared)


def pair_questions(
    task: str,
    ours: tuple[str, TaskAnswers],
    theirs: tuple[str, TaskAnswers],
    *,
    metric: str | None = None,
    documents: Sequence[str] = (),
    allowed: Sequence[str] = (),
) -> QuestionPairs | None:
    """Pair the answers to a task; None where no metric scores each question.

    Args:
        ours: name and answers of a model.
        theirs: of the baseline.
        metric: that is compared; the usual one where it is None. `=lower` or `=higher` behind it
            says what is better.
        documents: fields that a user names; the usual ones where there are none.
        allowed: of `ALLOWED`.

    Raises:
        UserError: questions or prompts are not the same, or a score is not finite.
    """
    (name, one), (other, its) = ours, theirs
    keys = [key for key in its.answers if key in one.answers]
    left = len(one.answers.keys() ^ its.answers.keys())
    if left and ("questions" not in allowed or not keys):
        _refuse_set(task, ours, theirs)
    unlike = _count_unlike(task, keys, ours, theirs, allowed)
    marks = _list_marks(task, ours, theirs, allowed)
    unfit = {who: _count(keys, each, "fits") for who, each in (ours, theirs)}
    keys = [key for key in keys if one.answers[key].fits and its.answers[key].fits]
    unsound = {who: _count(keys, each, "sound") for who, each in (ours, theirs)}
    _refuse_lost(task, len(keys), unfit, unsound)
    pairs = [(one.answers[key], its.answers[key]) for key in keys]
    wanted, direction = (None, None) if metric is None else split_direction(metric, "--metric")
    metrics = _rank_metrics(pairs)
    if wanted is None and not metrics:
        return None
    found = metrics[0] if wanted is None else _find_metric(task, metrics, wanted)
    for key, both in zip(keys, pairs, strict=True):
        for who, answer in zip((name, other), both, strict=True):
            if not math.isfinite(answer.scores[found]):
                raise UserError(
                    f"{found} of question {key} of {task} is {answer.scores[found]} in {who}; "
                    "evaluate again, or name another --metric"
                )
    document = _pick_document([answer for _, answer in pairs], documents)
    questions = [] if NO_DOCUMENTS in documents else [answer.asked[0] for _, answer in pairs]
    scores = np.array([[answer.scores[found] for answer in both] for both in pairs])
    if direction is None and found.partition(",")[0] == "perplexity" and (scores <= 0).all():
        direction = True  # lm-eval keeps the log-likelihood of each question under this name
    return QuestionPairs(
        task=task,
        metric=found,
        others=metrics[1:] if wanted is None else (),
        higher=_is_higher(task, found, direction, ours, theirs),
        keys=keys,
        ours=scores[:, 0],
        theirs=scores[:, 1],
        document=document,
        bare=sum(document not in answer.documents for _, answer in pairs) if document else 0,
        asked=questions if len(set(questions)) > 1 else (),
        answers=pairs,
        unlike=unlike,
        left=left,
        unfit=unfit,
        unsound=unsound,
        limited={name: one.limited, other: its.limited} if one.limited != its.limited else {},
        mixed=one.program != its.program,
        marks=marks,
    )


def check_documents(fields: Mapping[str, Sequence[str]], documents: Sequence[str]) -> None:
    """Refuse names of fields that no task has, and one beside the word for none.

    Args:
        fields: of the questions of each task.

    Raises:
        UserError: one is in none.
    """
    if NO_DOCUMENTS in documents and len(documents) > 1:
        raise UserError(
            f"--cluster {NO_DOCUMENTS} takes each question by itself, and the others name what "
            "questions share; leave one of both out"
        )
    known = {name for each in fields.values() for name in each}
    for one in documents:
        if one != NO_DOCUMENTS and one.partition(".")[0] not in known:
            raise UserError(
                f"no question has a field {short_repr(one)}, which --cluster names; "
                f"{suggest(one, known)}expected one of {_list(sorted(known))}"
            )


def _refuse_set(task: str, ours: tuple[str, TaskAnswers], theirs: tuple[str, TaskAnswers]) -> None:
    (name, one), (other, its) = ours, theirs
    key = next(iter(one.answers.keys() ^ its.answers.keys()), "")
    who, lacks = (name, other) if key in one.answers else (other, name)
    count = len(one.answers.keys() ^ its.answers.keys())
    raise UserError(
        f"question {key} of {task} was asked of {who} and not of {lacks}, and so it is with "
        f"{count:,} in all; evaluate both with the same --limit, or type --allow questions"
    )


def _count_unlike(
    task: str,
    keys: Sequence[str],
    ours: tuple[str, TaskAnswers],
    theirs: tuple[str, TaskAnswers],
    allowed: Sequence[str],
) -> int:
    """Count the questions whose prompts or options are not the same, where that is allowed.

    Raises:
        UserError: it is not, or a question or its right answer is another.
    """
    (name, one), (other, its) = ours, theirs
    unlike: dict[str, list[int]] = {}
    compared = len(ASKED) if one.program == its.program else SETTINGS
    for key in keys:
        sides = (one.answers[key].asked, its.answers[key].asked)
        both = zip(*(each[:compared] for each in sides), strict=True)
        if places := [at for at, (mine, other_one) in enumerate(both) if mine != other_one]:
            unlike[key] = places
    never = _NEVER if "prompts" in allowed else range(len(ASKED))
    kept = {key: [at for at in places if at in never] for key, places in unlike.items()}
    refused = [(key, places[0]) for key, places in kept.items() if places]
    if refused:
        key, at = refused[0]
        raise UserError(
            f"{name} and {other} were not asked the same in question {key} of {task}: {ASKED[at]}; "
            f"so it is with {len(refused):,} of {len(keys):,} questions of the task: evaluate both "
            "in the same way, or type --allow prompts where only prompts and options differ"
        )
    return len(unlike)


def _list_marks(
    task: str,
    ours: tuple[str, TaskAnswers],
    theirs: tuple[str, TaskAnswers],
    allowed: Sequence[str],
) -> list[str]:
    """Return the settings by which answers were marked in other ways, where that is allowed.

    Raises:
        UserError: it is not.
    """
    (name, one), (other, its) = ours, theirs
    both = sorted(one.marking.keys() & its.marking.keys())
    unlike = [part for part in both if one.marking[part] != its.marking[part]]
    if unlike and "marks" not in allowed:
        values = [short_repr(each.marking[unlike[0]]) for each in (one, its)]
        way = f"is {values[0]} and {values[1]}" if values[0] != values[1] else "is another"
        raise UserError(
            f"answers of {name} and {other} to {task} were not marked in the same way: {unlike[0]} "
            f"{way}; evaluate both with one version of the task, or type --allow marks"
        )
    return unlike


def _count(keys: Sequence[str], side: TaskAnswers, what: str) -> int:
    """Count the answers of a model that lack a property."""
    return sum(not getattr(side.answers[key], what) for key in keys)


def _refuse_lost(
    task: str, count: int, unfit: Mapping[str, int], unsound: Mapping[str, int]
) -> None:
    """Refuse a task at which a model has no answer.

    Raises:
        UserError: no question is left, or no logit of a model is a number.
    """
    if not count:
        who = max(unfit, key=lambda name: unfit[name])
        raise UserError(
            f"no question of {task} was asked of both: {unfit[who]:,} do not fit into the context "
            f"of {who}; evaluate both again without the task, or with fewer --shots"
        )
    for who, lost in unsound.items():
        if lost == count:
            raise UserError(
                f"{who} has no answer to {task}: its logits are NaN or infinite at all {count:,} "
                "questions; mend the model, or evaluate it again in another --dtype"
            )


def _rank_metrics(pairs: Sequence[tuple[ModelAnswer, ModelAnswer]]) -> list[str]:
    """Return the metrics that score every question of both, the usual first, else by their names.

    In what order a file has them says nothing.
    """
    metrics = (
        name
        for name in pairs[0][0].scores
        if all(name in answer.scores for both in pairs for answer in both)
    )
    return sorted(metrics, key=_rank_metric)


def _rank_metric(name: str) -> tuple[bool, bool, str]:
    """Rank a metric: that no answer was given says least."""
    bare = name.partition(",")[0]
    return bare == ABSTAINED, bare not in (*WORTHS, ALONE), name


def _find_metric(task: str, metrics: Sequence[str], wanted: str) -> str:
    if wanted in metrics:
        return wanted
    raise UserError(
        f"{task} has no {short_repr(wanted)} of each question, which --metric names; "
        f"{suggest(wanted, metrics)}expected one of {_list(metrics)}"
    )


def _is_higher(
    task: str,
    metric: str,
    direction: bool | None,
    ours: tuple[str, TaskAnswers],
    theirs: tuple[str, TaskAnswers],
) -> bool:
    """Return whether more is better: as is known, else as the results of both say, else its name.

    Raises:
        UserError: nobody says it, or two say otherwise.
    """
    if direction is not None:
        return direction
    name = metric.partition(",")[0]
    by_run = {
        who: one.higher.get(metric, one.higher.get(name))
        for who, one in (theirs, ours)
        if {metric, name} & one.higher.keys()
    }
    if len(set(by_run.values())) > 1:
        words = ", ".join(f"{'higher' if one else 'lower'} in {who}" for who, one in by_run.items())
        raise UserError(
            f"what is better of {metric} of {task} is {words}, as their results say; evaluate both "
            f"in the same way, or type --metric {metric}=lower or {metric}=higher"
        )
    usual = _HIGHER[name] if name in _HIGHER else is_higher_better(name)
    found = next(iter(by_run.values()), usual)
    if found is None:
        raise UserError(
            f"whether more of {metric} of {task} is better is said nowhere: no results of lm-eval "
            f"lie beside its answers; type --metric {metric}=lower or {metric}=higher"
        )
    return found


def _pick_document(answers: Sequence[ModelAnswer], wanted: Sequence[str]) -> str | None:
    """Return the first field of which some questions share what stands in it."""
    if NO_DOCUMENTS in wanted:
        return None
    for name in wanted or DOCUMENTS:
        found = [one for answer in answers if (one := answer.documents.get(name)) is not None]
        count = len(set(found))
        # The same in all questions is no document, unless somebody says so.
        if count < len(found) and (count > 1 or wanted or len(found) < len(answers)):
            return name
    return None


def _list(names: Sequence[str]) -> str:
    some = ", ".join(names[:6]) or "none"
    return f"{some} and {len(names) - 6} more" if len(names) > 6 else some
