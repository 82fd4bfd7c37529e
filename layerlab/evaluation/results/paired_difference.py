"""Two runs over the same questions: paired differences, the domain's gain and what it cost.

A question that is hard is hard for both models, so the difference of each question varies less
than the scores do, and its standard error is that of the differences.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.benchmarks.suites import SPECIAL
from layerlab.evaluation.metrics.estimates import Mean, match_scores, paired_mean
from layerlab.evaluation.results.averages import GROUPS, Average, macro, official
from layerlab.evaluation.results.question_remarks import sentence_remarks, shared_scores, title_of
from layerlab.records.index.task_metrics import is_share
from layerlab.records.json_values import Record
from layerlab.validation import short_repr

# What two models of one name differ in, and a model evaluated again does not.
KNOWN_BY = ("model", "precision", "source")
# What lm-eval keeps of each question under the name of a metric of all of them.
PER_QUESTION = {"perplexity": "log-likelihood"}
DOMAIN, GENERAL, FORGETTING = "domain mean", "general mean", "forgetting"
# What a record has a hash of, in words.
MANNER: Mapping[str, str] = {
    "prompt": "another prompt",
    "description": "another description before the questions",
    "examples": "other examples, or drawn with another seed",
    "answers": "other settings of generation",
    "marking": "other filters or marks of answers",
    "template": "another chat template",
    "version": "another version of the task",
}


def paired_differences(
    ours: Sequence[Record], theirs: Sequence[Record], name: str
) -> list[dict[str, Any]]:
    """Return the differences of every benchmark, then of the means, averaged as the scores are.

        forgetting = general mean of theirs - general mean of ours

    Args:
        ours: results of tasks of one model.
        theirs: of the other, asked in the same way.
        name: what the other is called.

    The mean of a domain is over all benchmarks of the fields that were asked, finance or law or
    both; a mean that lacks some is incomplete, and has no value.

    Raises:
        UserError: the two have no question in common, nor a task that scores none by itself.
    """
    differences: dict[str, Mean] = {}
    rows: list[dict[str, Any]] = []
    for benchmark, parts in _pair(ours, theirs).items():
        average = official(benchmark, parts)
        differences[benchmark] = average.mean
        rows.append(_row(ours, name, BENCHMARKS[benchmark].title, average.mean, average.formula))
    rows += list(_of_tasks(ours, theirs, name))
    if not rows and not list_unscored(ours, theirs):
        raise UserError(
            f"this run and {short_repr(name)} have no question in common; evaluate both with the "
            "same --suite, --tasks, --scoring, --limit and data"
        )
    asked = {BENCHMARKS[one].group for one in differences}
    special = tuple(group for group in SPECIAL if group in asked)
    for title, groups in ((DOMAIN, special), (GENERAL, GROUPS)):
        if not asked & set(groups):
            continue
        wanted = [one.name for one in BENCHMARKS.values() if one.group in groups]
        average = macro(differences, wanted, "benchmarks")
        rows.append(_mean_row(ours, name, title, average, 1))
        if title == GENERAL:
            rows.append(_mean_row(ours, name, FORGETTING, average, -1))
    return rows


def differing(ours: Sequence[Record], theirs: Sequence[Record]) -> list[str]:
    """Describe how two runs were asked differently, in which case they do not compare."""
    found: dict[str, dict[str, None]] = {}
    apart: Counter[str] = Counter()
    for one, its in _both(ours, theirs):
        title = title_of(one)
        found.setdefault(title, {}).update(dict.fromkeys(_differing(one, its)))
        if _is_scored(one, its) and not match_scores(one["scores"], its["scores"])[0]:
            apart[title] += 1
    by_title = {title: "; ".join(ways) for title, ways in found.items() if ways}
    lines = [f"asked differently: {title}: {ways}" for title, ways in by_title.items()]
    bare = [
        f"asked differently: {title}: no question in common in {n} of its parts"
        for title, n in apart.items()
    ]
    return [*lines, *bare]


def _differing(one: Record, its: Record) -> Iterator[str]:
    """Yield in what a task was asked differently, and not what follows from that."""
    effects: set[str] = set()
    if one["scoring"] != its["scoring"]:
        yield f"scored by {one['scoring']} here, by {its['scoring']} there"
        effects |= {"prompt", "answers", "marking"}
    shots, asked = one["shots"]["asked"], its["shots"]["asked"]
    if shots != asked:
        one_only = f"{shots} example here, {asked} there"
        yield one_only if shots == 1 else f"{shots} examples here, {asked} there"
        effects |= {"examples", "cut"}
    for name, words, follows in (
        ("cot", "explained examples", "examples"),
        ("chat", "the chat template", "template"),
    ):
        if bool(one.get(name)) != bool(its.get(name)):
            yield f"{words} only here" if one.get(name) else f"{words} only there"
            effects.add(follows)
    ways, theirs = one.get("asked") or {}, its.get("asked") or {}
    for part, words in MANNER.items():
        if part not in effects and part in theirs and ways.get(part) not in (None, theirs[part]):
            yield words
    here, there = one.get("limited"), its.get("limited")
    if here and there and here != there:
        yield f"answers of at most {here} tokens here, {there} there"
    elif here != there:
        words = f"answers of at most {here or there} tokens"
        yield f"{words} only here" if here else f"{words} only there"
    size, other = one.get("batch", 1), its.get("batch", 1)  # earlier versions: as of one
    if size != other and (one.get("near") or its.get("near")):
        yield f"answers written in batches of {size} here, of {other} there"
    if "cut" not in effects and (cut := _count_otherwise_cut(one, its)):
        yield f"questions with other examples left out, or not asked, for want of context: {cut:,}"


def _count_otherwise_cut(one: Record, its: Record) -> int:
    """Count the questions of both runs whose prompts lost other numbers of examples."""
    ours, theirs = one.get("cut") or {}, its.get("cut") or {}
    same = one["scores"].keys() & its["scores"].keys()
    return sum(ours.get(key) != theirs.get(key) for key in same)


def list_untold(ours: Sequence[Record], theirs: Sequence[Record]) -> list[str]:
    """Say of which tasks it is not known whether both runs asked them in the same way."""
    titles = dict.fromkeys(
        title_of(one)
        for one, its in _both(ours, theirs)
        if one.get("asked") and not its.get("asked")
    )
    names = ", ".join(titles)
    return [
        f"whether {names} was asked in the same way is not known: the earlier result does not say "
        "by which prompts, examples and settings; evaluate that model again"
    ] * bool(titles)


def list_unscored(ours: Sequence[Record], theirs: Sequence[Record]) -> list[str]:
    """Say which tasks score no question by itself, such as those that read whole texts."""
    found = (title_of(one) for one, its in _both(ours, theirs) if not _is_scored(one, its))
    return [f"{title}: no question has a score of its own to compare" for title in found]


def _is_scored(one: Record, its: Record) -> bool:
    return bool(one["scores"] or its["scores"])


def _both(ours: Sequence[Record], theirs: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    other = {one["task"]: one for one in theirs}
    return ((one, other[one["task"]]) for one in ours if one["task"] in other)


def costs(
    arms: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what each precision costs against the model as it was loaded."""
    found: list[dict[str, Any]] = []
    plain: Mapping[str, Any] = {}
    for arm in arms:
        if "perplexity" not in arm:
            continue
        found.append({"arm": arm["arm"], **arm["perplexity"]})
        if not arm["precision"]:
            plain = arm
            continue
        ours, theirs = _of(records, arm["arm"]), _of(records, plain["arm"])
        rows = paired_differences(ours, theirs, str(plain["arm"]))
        found += [row for row in rows if row["title"] != "forgetting"]
    return found


def differences(
    earlier: Mapping[str, Any],
    arms: Sequence[Mapping[str, Any]],
    records: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare every model of ours with the earlier one of its name, or with the only one.

    Of several models of one name it is that of the same folder.
    """
    found: list[dict[str, Any]] = []
    remarks: dict[str, None] = {}
    for arm in arms:
        name, other = str(arm["arm"]), _earlier(arm, earlier["arms"])
        ours = _of(records, name)
        theirs = _of([*earlier["subjects"], *earlier.get("tasks", ())], other)
        found += paired_differences(ours, theirs, f"{other}, earlier")
        remarks |= dict.fromkeys(
            [
                *differing(ours, theirs),
                *list_untold(ours, theirs),
                *list_unscored(ours, theirs),
                *sentence_remarks(one for one, _ in _both(ours, theirs)),
            ]
        )
    return found, list(remarks)


def _earlier(arm: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the earlier model that one is compared with."""
    name, there = str(arm["arm"]), [str(one["arm"]) for one in arms]
    same = [
        str(one["arm"])
        for one in arms
        if arm.get("source") and all(one.get(key) == arm.get(key) for key in KNOWN_BY)
    ]
    if name not in there and len(there) != 1 and len(same) != 1:
        raise UserError(
            f"--against holds {', '.join(map(short_repr, there))}, and none is called "
            f"{short_repr(name)}; give the results of a single model"
        )
    return same[0] if len(same) == 1 else name if name in there else there[0]


def _of(records: Sequence[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    return [one for one in records if one["arm"] == arm]


def _pair(ours: Sequence[Record], theirs: Sequence[Record]) -> dict[str, dict[str, Mean]]:
    """Return the mean differences over the questions of both runs, by benchmark and subject."""
    found: dict[str, dict[str, Mean]] = {}
    for one, its in _both(ours, theirs):
        same = match_scores(shared_scores(one), shared_scores(its))
        if same[0] and "benchmark" in one:
            found.setdefault(one["benchmark"], {})[one["subject"]] = paired_mean(*same)
    return found


def _of_tasks(
    ours: Sequence[Record], theirs: Sequence[Record], name: str
) -> Iterator[dict[str, Any]]:
    """Yield the differences of tasks of lm-eval, in the metric that each is known by."""
    for one, its in _both(ours, theirs):
        same = match_scores(shared_scores(one), shared_scores(its))
        if same[0] and "benchmark" not in one:
            share = _counts_shares(one) and _counts_shares(its)
            task, worth = str(one["task"]), str(one["worth"])
            worth = PER_QUESTION.get(worth.partition(",")[0], worth)
            title = task if share else f"{task} ({worth} of each question)"
            row = _row(ours, name, title, paired_mean(*same), "mean of the questions")
            yield {**row, "share": share}


def _counts_shares(record: Record) -> bool:
    """Return whether questions are worth shares, whose differences are told in percent."""
    rows = (one for one in record["measured"] if one["metric"] == record.get("worth"))
    row: Record = next(rows, {})
    if row.get("low") is not None:
        return is_share(row)
    return all(0 <= score <= 1 for score in record["scores"].values())


def _mean_row(
    ours: Sequence[Record], name: str, title: str, average: Average, sign: int
) -> dict[str, Any]:
    """Return the row of a mean over benchmarks, of which none may be missing."""
    mean = average.mean
    turned = Mean(0.0 + sign * mean.value, mean.error, mean.n)
    formula = average.formula if sign > 0 else f"minus the {GENERAL}"
    row = _row(ours, name, title, turned, formula) | average.extent()
    return row if average.official else {**row, "difference": None, "error": None}


def _row(ours: Sequence[Record], name: str, title: str, mean: Mean, formula: str) -> dict[str, Any]:
    return {
        "arm": ours[0]["arm"],
        "against": name,
        "title": title,
        "difference": mean.value,
        "error": mean.error,
        "n": mean.n,
        "formula": formula,
    }
