"""What is said of models that answered the same questions: verdicts, and what to know beside."""

from collections.abc import Iterator, Sequence

from layerlab.evaluation.paired.folders import AnsweredModel
from layerlab.evaluation.paired.pair_questions import QuestionPairs
from layerlab.experiments.statistics.differences import Level
from layerlab.records.json_values import Record

# What a test is over: one task, all questions of a suite, or its tasks.
TASK, SUITE, TASKS = "task", "all questions", "mean of tasks"
LISTED = 6


def say_row(row: Record, level: Level) -> str:
    """Return the verdict of a test in a sentence, with its scale."""
    arm, against, word = row["arm"], row["against"], row["verdict"]
    where = _where(row)
    if word == "no verdict":
        return (
            f"no verdict on {arm} against {against} {where}: {_name_unit(row)} is the only one, "
            "and tells nothing of chance."
        )
    if word == "identical":
        count = row["n"]
        return f"{arm} scores as {against} at each of {count:,} questions {where}."
    evidence = _evidence(row, level)
    if word == "not distinguishable":
        size = format_size(row, row["difference"], sign=True)
        return (
            f"{arm} is not distinguishable from {against} {where}: {size} ({evidence})"
            f"{_describe_edge(row, level)}{_describe_power(row, level)}; {_scale(row)}."
        )
    size = format_size(row, abs(row["difference"]))
    return f"{arm} is {word} than {against} {where} by {size} ({evidence}); {_scale(row)}."


def describe_pairs(
    models: Sequence[AnsweredModel],
    pairs: Sequence[QuestionPairs],
    unscored: Sequence[str],
    alone: bool,
) -> list[str]:
    """Return what a reader has to know beside the verdicts.

    Args:
        pairs: of every task and model.
        unscored: tasks that score no question by itself.
        alone: whether clusters were declined.
    """
    return list(dict.fromkeys(_describe(models, pairs, unscored, alone)))


def _describe(
    models: Sequence[AnsweredModel],
    pairs: Sequence[QuestionPairs],
    unscored: Sequence[str],
    alone: bool,
) -> Iterator[str]:
    yield (
        "each name is one model: a verdict is about these models and questions like these, not "
        "about what another training seed would give"
    )
    for one in models:
        if one.again:
            count, tasks = len(one.again), list_names(one.again)
            yield f"{one.name} has several dates of {count} tasks ({tasks}): the latest counts"
    for name in dict.fromkeys(one.document for one in pairs if one.document):
        tasks = list_names([one.task for one in pairs if one.document == name])
        yield (
            f"questions that share their {name} are one cluster, in {tasks}; --cluster none takes "
            "each by itself"
        )
    if alone:
        yield "each question was taken by itself, also where several are about one document"
    if unscored:
        tasks = list_names(unscored)
        yield f"left out, as no metric scores each question: {tasks}"
    if lower := [one.task for one in pairs if not one.share]:
        tasks = list_names(lower)
        yield f"not in the means over tasks, as their scores are no shares: {tasks}"
    if unlike := {one.task: one.unlike for one in pairs if one.unlike}:
        count, tasks = sum(unlike.values()), list_names(list(unlike))
        yield f"prompts differ at {count:,} questions of {tasks}, which was allowed"
    if left := {one.task: one.left for one in pairs if one.left}:
        count, tasks = sum(left.values()), list_names(list(left))
        yield f"{count:,} questions of {tasks} were asked of one model only, and do not count"


def format_size(row: Record, value: float, *, sign: bool = False) -> str:
    """Format a difference: in percentage points where scores are shares.

    Example:
        >>> format_size({"share": True}, 0.01234, sign=True), format_size({"share": False}, 2.5)
        ('+1.23 points', '2.5')
    """
    if row["share"]:
        points = f"{100 * value:+.2f}" if sign else f"{100 * value:.2f}"
        return f"{points} points"
    return f"{value:+.4g}" if sign else f"{value:.4g}"


def is_beyond(row: Record) -> bool:
    """Judge whether what can be detected is more than shares can differ by."""
    return bool(row["share"] and row["detectable"] and max(row["detectable"]) > 1)


def list_names(names: Sequence[str]) -> str:
    """List the first names, and say how many more there are."""
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:LISTED])
    return f"{shown} and {len(names) - LISTED} more" if len(names) > LISTED else shown


def _where(row: Record) -> str:
    task, tasks = row["task"], row["tasks"]
    if row["scope"] == SUITE:
        return f"over all questions of {tasks} tasks"
    return f"in the mean of {tasks} tasks" if row["scope"] == TASKS else f"in {task}"


def _evidence(row: Record, level: Level) -> str:
    told = []
    if row["low"] is not None:
        percent = f"{100 * level.confidence:g} %"
        high = format_size(row, row["high"], sign=True)
        low = format_size(row, row["low"], sign=True).removesuffix(" points")
        told.append(f"{percent} interval {low} to {high}")
    test, tests, holm = row["test"], level.comparisons, row["holm"]
    told.append(
        f"{test} p = {holm:.2g} after Holm's correction for {tests} tests"
        if tests > 1
        else f"{test} p = {holm:.2g}"
    )
    if row["gained"] is not None:
        gained, lost = row["gained"], row["lost"]
        told.append(f"{gained:,} questions right that were wrong and {lost:,} the other way")
    return ", ".join(told)


def _describe_edge(row: Record, level: Level) -> str:
    """Say why an interval that leaves 0 out is no verdict."""
    if row["low"] is None or row["low"] <= 0 <= row["high"]:
        return ""
    if row["p"] < level.alpha:
        tests = level.comparisons
        return f"; the interval alone leaves 0 out, but not after the correction for {tests} tests"
    return "; the interval leaves 0 out, but is an approximation, and the test is exact"


def _describe_power(row: Record, level: Level) -> str:
    if row["detectable"] is None:
        return ""
    percent = f"{100 * level.power:g} %"
    if is_beyond(row):
        return f"; so few find no difference at all with a probability of {percent}"
    least = format_size(row, max(row["detectable"]))
    return f"; a difference of {least} would be found with a probability of {percent}"


def _scale(row: Record) -> str:
    count, units = row["n"], row["units"]
    if row["scope"] == TASKS:
        return f"unit of replication: a task, {units:,} of them with {count:,} questions"
    if row["documents"]:
        unit = _name_unit(row)
        return f"unit of replication: {unit}, {units:,} of them with {count:,} questions"
    return f"unit of replication: a question, {count:,} of them"


def _name_unit(row: Record) -> str:
    if row["scope"] == TASKS:
        return "a task"
    return f"a cluster of one {' or '.join(row['documents'])}" if row["documents"] else "a question"
