"""Sentences on models that answered the same questions: verdicts, and what to know beside."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from layerlab.evaluation.harness.task_result import ALONE
from layerlab.evaluation.paired.clusters import QUESTION, count_again
from layerlab.evaluation.paired.folders import AnsweredModel
from layerlab.evaluation.paired.one_model import describe_settings
from layerlab.evaluation.paired.pair_questions import QuestionPairs
from layerlab.evaluation.results.question_remarks import describe_sentences
from layerlab.experiments.statistics.differences import Level
from layerlab.records.json_values import Record

# What a test is over: one task, all questions of a suite or of a group of tasks, or its tasks.
TASK, SUITE, GROUP, TASKS = "task", "all questions", "group", "mean of tasks"
LISTED = 6


@dataclass(frozen=True, kw_only=True)
class Omissions:
    """Tasks and groups asked of all and not judged, by why they are not.

    Attributes:
        unscored: tasks that score no question by itself.
        otherwise: groups that have other tasks in one model than in another.
        unanswered: groups with tasks that not all models have answers to, which stand behind them.
        unmarked: with tasks that score no question by itself.
        unlike: with tasks whose scores are no shares.
    """

    unscored: Sequence[str] = ()
    otherwise: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)


def say_row(row: Record, level: Level) -> str:
    """Return the verdict of a test in a sentence, with its scale."""
    parts = [
        *(_say_verdict(row, level), _where(row), _describe_flips(row), _describe_margin(row)),
        _describe_scale(row),
    ]
    return "; ".join(part for part in parts if part) + "."


def _say_verdict(row: Record, level: Level) -> str:
    arm, baseline, word = row["arm"], row["against"], row["verdict"]
    if word == "identical":
        return f"{arm} and {baseline} have the same score at every question"
    if word == "no verdict" and row["units"] < 2:
        unit = _name_unit(row)
        return f"no verdict on {arm} against {baseline}: {unit} tells nothing of chance"
    unit = "percentage points" if row["share"] else "units of the metric"
    if word == "no verdict":
        size = format_size(row, row["difference"], sign=True)
        return (
            f"no verdict on {arm} against {baseline}: the difference is the same at every unit, "
            f"{size} {unit}, which tells nothing of chance"
        )
    evidence = _describe_evidence(row, level)
    if word != "not distinguishable":
        size = format_size(row, abs(row["difference"]))
        return f"{arm} is {word} than {baseline} by {size} {unit} ({evidence})"
    size = format_size(row, row["difference"], sign=True)
    return (
        f"{arm} is not distinguishable from {baseline} by these questions: {size} {unit} "
        f"({evidence})" + _describe_edge(row, level) + _describe_power(row, level)
    )


def describe_pairs(
    models: Sequence[AnsweredModel],
    pairs: Sequence[QuestionPairs],
    left: Omissions,
    alone: bool,
) -> list[str]:
    """Return what a reader has to know beside the verdicts.

    Args:
        pairs: of every task and model.
        left: what is not judged.
        alone: whether clusters were declined.
    """
    return list(dict.fromkeys(_describe(models, pairs, left, alone)))


def _describe(
    models: Sequence[AnsweredModel],
    pairs: Sequence[QuestionPairs],
    left: Omissions,
    alone: bool,
) -> Iterator[str]:
    yield (
        "each name is one model: a verdict is about these models and questions like these, not "
        "about what another training seed would give"
    )
    yield from _describe_metrics(pairs)
    yield from _describe_repeats(models)
    yield from _describe_units(pairs)
    if alone:
        yield "each question was taken by itself, also where several are about one document"
    yield from _describe_left(models, left)
    yield from _describe_scores(pairs)
    yield from _describe_settings(models)
    yield from _describe_allowed(pairs)
    yield from _describe_unanswered(models, pairs)
    if odd := {one.task: one.left for one in pairs if one.left}:
        count, tasks = sum(odd.values()), list_names(list(odd))
        yield f"questions that were asked of one model only, and do not count: {count:,} of {tasks}"


def _describe_metrics(pairs: Sequence[QuestionPairs]) -> Iterator[str]:
    for metric, others in dict.fromkeys((one.metric, tuple(one.others)) for one in pairs):
        if others:
            alike = [one.task for one in pairs if (one.metric, *one.others) == (metric, *others)]
            yield (
                f"compared by {metric}, and not by {list_names(others)} (--metric): "
                f"{list_names(alike)}"
            )
    for task in dict.fromkeys(one.task for one in pairs if one.metric == ALONE):
        yield describe_sentences(task)


def _describe_repeats(models: Sequence[AnsweredModel]) -> Iterator[str]:
    for one in models:
        if one.again:
            tasks = list_names(one.again)
            yield f"{one.name} has several dates of {tasks}: the latest counts"
        if one.unlike:
            yield f"{one.name} was asked its tasks with other settings of {list_names(one.unlike)}"


def _describe_units(pairs: Sequence[QuestionPairs]) -> Iterator[str]:
    by_task = {pair.task: pair for pair in pairs}
    for pair in by_task.values():
        if pair.bare:
            yield (
                f"{pair.bare:,} of {len(pair.keys):,} questions of {pair.task} have no "
                f"{pair.document}, and each of them stands by itself"
            )
    if again := count_again(list(by_task.values())):
        yield (
            f"{again:,} questions are asked again, in another task or in the same: all answers to "
            "a question are one unit of replication"
        )
    for name in dict.fromkeys(one.document for one in pairs if one.document):
        tasks = list_names([one.task for one in pairs if one.document == name])
        yield (
            f"questions that share their {name} are one cluster (--cluster none takes each by "
            f"itself): {tasks}"
        )


def _describe_scores(pairs: Sequence[QuestionPairs]) -> Iterator[str]:
    if lower := [one.task for one in pairs if not one.share]:
        tasks = list_names(lower)
        yield f"not in the means over tasks, as their scores are no shares: {tasks}"
    if mixed := [one.task for one in pairs if one.mixed]:
        yield (
            "asked by lm-eval and by layerlab evaluate: questions, prompts, options and right "
            "answers are the same; settings, which each tells in its own way, were not compared: "
            f"{list_names(mixed)}"
        )


def _describe_settings(models: Sequence[AnsweredModel]) -> Iterator[str]:
    if remarks := describe_settings([one.settings for one in models]):
        yield f"models were loaded or asked with other settings of {', '.join(remarks)}"
    if len({one.settings.get("max_length", "") for one in models} - {""}) > 1:
        yield "prompts that are longer than a model's max_length were cut by lm-eval"


def _describe_allowed(pairs: Sequence[QuestionPairs]) -> Iterator[str]:
    for marks in dict.fromkeys(tuple(one.marks) for one in pairs if one.marks):
        tasks = list_names([one.task for one in pairs if tuple(one.marks) == marks])
        yield f"answers that were marked with other {list_names(marks)} were allowed: {tasks}"
    if unlike := {one.task: one.unlike for one in pairs if one.unlike}:
        count, tasks = sum(unlike.values()), list_names(list(unlike))
        yield f"other prompts at {count:,} questions were allowed: {tasks}"


def _describe_unanswered(
    models: Sequence[AnsweredModel], pairs: Sequence[QuestionPairs]
) -> Iterator[str]:
    for name in (one.name for one in models):
        if unfit := {one.task: one.unfit[name] for one in pairs if one.unfit.get(name)}:
            count, tasks = sum(unfit.values()), list_names(list(unfit))
            yield (
                f"questions that do not fit into the context of {name}, were not asked of it, and "
                f"do not count: {count:,} of {tasks}"
            )
        if lost := {one.task: one.unsound[name] for one in pairs if one.unsound.get(name)}:
            count, tasks = sum(lost.values()), list_names(list(lost))
            yield (
                f"questions at which logits of {name} are NaN or infinite, and which count as they "
                f"were scored: {count:,} of {tasks}"
            )
        for most in sorted({one.limited.get(name) or 0 for one in pairs} - {0}):
            tasks = list_names([one.task for one in pairs if one.limited.get(name) == most])
            yield (
                f"answers of {name} could have no more than {most:,} tokens, for want of context, "
                f"and those of another more: {tasks}"
            )


def _describe_left(models: Sequence[AnsweredModel], left: Omissions) -> Iterator[str]:
    for one in models:
        if one.missing:
            tasks = list_names(one.missing)
            yield f"{one.name} has no answers to tasks that its results tell of: {tasks}"
    if left.unscored:
        tasks = list_names(left.unscored)
        yield f"left out, as no metric scores each question: {tasks}"
    if left.otherwise:
        groups = list_names(left.otherwise)
        yield f"groups left out, as they have other tasks in one model than in another: {groups}"
    if left.unanswered:
        groups = list_names(left.unanswered)
        yield f"groups left out, as not all models have answers to tasks of them: {groups}"
    if left.unmarked:
        groups = list_names(left.unmarked)
        yield f"groups left out, as no metric scores each question of tasks of them: {groups}"
    if left.unlike:
        groups = list_names(left.unlike)
        yield f"groups left out, as the scores of tasks of them are no shares: {groups}"


def format_size(row: Record, value: float, *, sign: bool = False) -> str:
    """Format a difference: in percentage points where scores are shares.

    Example:
        >>> format_size({"share": True}, 0.01234, sign=True), format_size({"share": False}, 2.5)
        ('+1.23', '2.5')
    """
    style = ".2f" if row["share"] else ".4g"
    return format(100 * value if row["share"] else value, f"+{style}" if sign else style)


def is_beyond(row: Record) -> bool:
    """Return whether what can be detected is more than shares can differ by."""
    return bool(row["share"] and row["detectable"] and max(row["detectable"]) > 1)


def list_names(names: Sequence[str]) -> str:
    """List the first names, and say how many more there are."""
    names = list(dict.fromkeys(names))
    some = ", ".join(names[:LISTED])
    return f"{some} and {len(names) - LISTED} more" if len(names) > LISTED else some


def _where(row: Record) -> str:
    task, tasks = row["task"], row["tasks"]
    if row["scope"] == SUITE:
        return f"over all questions of {tasks} tasks together"
    if row["scope"] == GROUP:
        return f"over all questions of the {tasks} tasks of {task}"
    return f"in the mean of {tasks} tasks" if row["scope"] == TASKS else f"over the task {task}"


def _describe_evidence(row: Record, level: Level) -> str:
    parts = []
    if row["low"] is not None:
        percent = f"{100 * level.confidence:g} %"
        low, high = (format_size(row, row[end], sign=True) for end in ("low", "high"))
        parts.append(f"{percent} interval {low} to {high}")
    holm, tests = row["holm"], level.comparisons
    parts.append(f"p = {holm:.2g}")
    if tests > 1:
        parts[-1] += f" after Holm's correction for {tests} tests"
    return ", ".join([*parts, row["test"]])


def _describe_flips(row: Record) -> str:
    if not row["gained"] and not row["lost"]:
        return ""
    gained, lost = row["gained"], row["lost"]
    return f"{gained:,} questions were gained and {lost:,} lost"


def _describe_margin(row: Record) -> str:
    if row["within"] is None:
        return ""
    size = format_size(row, row["margin"])
    unit = "percentage points" if row["share"] else "units of the metric"
    word = "is not decided" if row["within"] == "not decided" else row["within"]
    p = f"{row['within_p']:.2g}"
    return f"that they are within {size} {unit} of each other {word} (p = {p} of that)"


def _describe_edge(row: Record, level: Level) -> str:
    """Say why an interval that leaves 0 out is no verdict."""
    if row["low"] is None or row["low"] <= 0 <= row["high"]:
        return ""
    if row["p"] < level.alpha:
        return (
            "; the interval alone leaves 0 out, but not after the correction for "
            f"{level.comparisons} tests"
        )
    return "; the interval leaves 0 out, but is an approximation, and the test is exact"


def _describe_power(row: Record, level: Level) -> str:
    if row["detectable"] is None:
        return ""
    percent = f"{100 * level.power:g} %"
    if is_beyond(row):
        return f"; so few find no difference at all with a probability of {percent}"
    least = format_size(row, max(row["detectable"]))
    return f"; a difference of {least} would be found with a probability of {percent}"


def _describe_scale(row: Record) -> str:
    count, units, fields = row["n"], row["units"], " or ".join(row["documents"])
    if row["scope"] == TASKS:
        return f"unit of replication: a task, of which there are {units:,} with {count:,} questions"
    if fields == QUESTION:
        return (
            f"unit of replication: a question, of which there are {units:,} that are asked "
            f"{count:,} times"
        )
    if fields:
        return (
            f"unit of replication: the questions of one {fields}, of which there are {units:,} "
            f"with {count:,} questions"
        )
    return f"unit of replication: a question, of which there are {units:,}"


def _name_unit(row: Record) -> str:
    fields = " or ".join(row["documents"])
    return f"one {fields}" if fields else "one question"
