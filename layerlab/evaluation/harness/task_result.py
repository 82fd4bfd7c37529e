"""Result of a task: the score of each question, and every metric of the task."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from layerlab.evaluation.harness.fewshot import Shots
from layerlab.evaluation.metrics.estimates import mark_accuracy, with_interval

# What a question of ours is worth by itself, where the score is one of all questions together.
ALONE = "alone"
# Of ours alone too: 1 where a question was left without an answer.
ABSTAINED = "abstained"
# Names of the metric that says what a question is worth, the first that a task has.
WORTHS = ("score", "acc")
# Where the tasks of our benchmarks mark their questions: only of those the columns are known.
OURS = "layerlab.evaluation."
CHOICES = "multiple_choice"
# What lm-eval calls tasks of whole texts.
ROLLING = "loglikelihood_rolling"
# Metrics that lay the likelihood of tokens on the words or bytes of their text.
PER_TEXT = ("word_perplexity", "byte_perplexity", "bits_per_byte")


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Result of a leaf task.

    Attributes:
        scores: of every question, by its place and hash; none where a question has none by itself.
        worth: name of the metric that those are of.
        ties: by metric and question, what a question is worth at which several options cannot be
            told from the likeliest: the share of right ones among them.
        abstained: share of questions without an answer: too long for the context, without a finite
            logit, or with nothing in what is written.
        metrics: every number that the engine gives for the task; None where questions without an
            answer would be in it, and of those by word or byte where the text does not come back
            from its tokens.
        chance: the score of guessing; None where there is nothing to choose from, or Python of
            the task's own marks what is chosen.
        guesses: pairs of a chance and how many questions leave it to whoever guesses.
        limited: tokens that an answer may have where the context allows fewer than the task.
        unsound: questions at which a logit was NaN or infinite.
        overlong: questions whose written answer is not marked to its end.
        near: questions whose written answer another batch could turn; None where none could.
        batch: prompts that were run at once.
        beyond: metrics that are larger than any number here.
        cut: by question, the examples left in a prompt that lost some; -1 where it does not fit.
        samples: every question with its prompt, answer and score.
    """

    scores: Mapping[str, float]
    abstained: float
    metrics: Mapping[str, float | None]
    shots: Shots
    chance: float | None = None
    guesses: Sequence[tuple[float, int]] = ()
    limited: int | None = None
    unsound: int = 0
    worth: str | None = None
    ties: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    overlong: int = 0
    near: int | None = None
    batch: int = 1
    beyond: Sequence[str] = ()
    cut: Mapping[str, int] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = field(repr=False, default=())


def is_ours(task: Any) -> bool:
    """Return whether a task is one of our benchmarks', also where lm-eval reads it from a file."""
    return str(getattr(task.config.process_results, "__module__", "")).startswith(OURS)


def merge_filters(samples: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one sample for each question, in order, with the metrics of all filters.

    Of several filters each metric is called `metric,filter`, as in lm-eval's tables.
    """
    samples = list(samples)
    several = len({one["filter"] for one in samples}) > 1
    found: dict[int, dict[str, Any]] = {}
    for one in samples:
        named = {f"{name},{one['filter']}" if several else name: name for name in one["metrics"]}
        values = {new: _plain(one[name]) for new, name in named.items()}
        merged = found.setdefault(one["doc_id"], {**one, "metrics": []})
        merged.update(values)
        merged["metrics"] += list(values)
    return [found[index] for index in sorted(found)]


def _plain(value: Any) -> Any:
    """Return a number of Python in place of one of numpy, which JSON does not know."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", 1) == 0 else value


def worth_name(sample: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return the name of the metric that says what a question is worth; None if none does."""
    names = list(names)
    known = [one for one in WORTHS if one in names]
    return next((one for one in (*known, *names) if is_number(sample[one])), None)


def is_number(value: Any) -> bool:
    """Return whether a value of a question is a finite number by itself.

    Example:
        >>> is_number(0.5), is_number((1, 0)), is_number(math.nan)
        (True, False, False)
    """
    return isinstance(value, int | float) and math.isfinite(value)


def is_mean(samples: Sequence[Mapping[str, Any]], name: str, value: float | None) -> bool:
    """Return whether a metric is the mean of what its questions are worth."""
    values = [one.get(name) for one in samples]
    if value is None or not values or not all(map(is_number, values)):
        return False
    return math.isclose(fmean(values), value, rel_tol=1e-9, abs_tol=1e-12)  # type: ignore[arg-type]


def count_chances(
    samples: Iterable[Mapping[str, Any]], *, ours: bool = False
) -> list[tuple[float, int]]:
    """Count how many questions leave which chance to whoever guesses, the least chance first.

    Args:
        ours: the questions are of our benchmarks, whose rows list all right options.
    """
    return sorted(Counter(_guess(one, ours) for one in samples).items())


def _guess(sample: Mapping[str, Any], ours: bool) -> float:
    """Return the chance that a random option is right; several may be."""
    right = sample["doc"]["gold"] if ours else sample["target"]
    options = len(sample["arguments"]) // (2 if "acc_mutual_info" in sample["metrics"] else 1)
    listed = isinstance(right, list)
    places = {one for one in right if not is_number(one) or 0 <= one < options} if listed else {0}
    return min(1.0, len(places) / options)


def metric_rows(found: TaskResult, higher: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Return every metric of a task with its standard error, where it is a mean over questions.

    Args:
        higher: whether more is better, by the name of each metric.
    """
    rows = []
    for name, value in found.metrics.items():
        row: dict[str, Any] = {"metric": name, "value": value}
        row["higher_is_better"] = higher.get(name.partition(",")[0])
        row |= dict.fromkeys(("error", "low", "high", "effective_n"))
        if is_mean(found.samples, name, value):
            worth = [one[name] for one in found.samples]
            mean = mark_accuracy(worth)
            row |= {"error": mean.error, **with_interval(mean)}
            row["share"] = all(0 <= one <= 1 for one in worth)
            row |= _count_ties(found, name, mean.value)
        rows.append(row)
    return rows


def _count_ties(found: TaskResult, name: str, value: float) -> dict[str, Any]:
    """Return how many questions of a metric are ties, and its mean where 1 / k counts of k."""
    ties = found.ties.get(name)
    if not ties:
        return {}
    scored = {str(one["doc_id"]): one[name] for one in found.samples}
    more = math.fsum(worth - scored[key.partition(":")[0]] for key, worth in ties.items())
    return {"tied": len(ties), "shared": value + more / len(found.samples)}


def normalized_scores(samples: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Score questions by the likelihood of each option per character, as lm-eval's acc_norm.

    None where all options of every question have the same length: acc says the same there.

    Example:
        >>> one = {"options": [" B", " AB"], "responses": [[-2.0, 0], [-3.0, 0]]}
        >>> normalized_scores([{**one, "doc": {"gold": [1]}}])
        [1.0]
    """
    lengths = [[max(1, len(option.lstrip())) for option in one["options"]] for one in samples]
    if all(len(set(inside)) < 2 for inside in lengths):
        return None
    found = []
    for one, long in zip(samples, lengths, strict=True):
        sums = [float(response[0]) for response in one["responses"]]
        if not all(map(math.isfinite, sums)):  # not asked, or without finite logits
            found.append(0.0)
            continue
        best = max(range(len(sums)), key=lambda index: sums[index] / long[index])
        found.append(float(best in one["doc"]["gold"]))
    return found
