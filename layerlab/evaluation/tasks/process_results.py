"""The functions that the task files name: load the questions, mark the answers.

Everything that lm-eval asks for is a column of the rows that `load` gives, so the files need no
templates. Metrics of every task are named `score`: a group can only average what all share.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.evaluation.benchmarks.items import LETTERS
from layerlab.evaluation.benchmarks.spec import Scoring
from layerlab.evaluation.metrics.matthews import matthews
from layerlab.evaluation.metrics.rouge import rouge
from layerlab.evaluation.metrics.segmentation import JIEBA, LATIN
from layerlab.evaluation.tasks.docs import COLUMNS, splits
from layerlab.evaluation.tasks.prompts import Manner
from layerlab.evaluation.tasks.scoring import by_letter, by_likelihood, by_value, likeliest, summary

if TYPE_CHECKING:
    from datasets import Dataset

TaskDoc = Mapping[str, Any]


def load(
    benchmark: str,
    subject: str,
    scoring: Scoring = "choice_ll",
    cot: bool = False,
    chat: bool = False,
    folder: str | None = None,
    **_: Any,
) -> dict[str, "Dataset"]:
    """Load the questions of a task and the examples to show before them.

    Args:
        benchmark: its name.
        subject: its name.
        scoring: how answers will be scored; `mean_nll` compares other texts.
        cot: whether the examples reason before they answer.
        chat: whether prompts go into a chat template, as `Manner` has it.
        folder: the data folder; LAYERLAB_DATA where none is given.
    """
    from datasets import Dataset, Features, Value

    lists = {"choices": [Value("string")], "gold": [Value("int64")]}
    # Told, because nothing can be told from a benchmark without examples.
    features = Features({**dict.fromkeys(COLUMNS, Value("string")), **lists})
    manner = Manner(scoring=scoring, cot=cot, chat=chat)
    found = splits(benchmark, subject, manner, Path(folder) if folder else None)
    # A benchmark without examples gets none, never some of its own questions.
    found.setdefault("dev", [])
    return {
        name: Dataset.from_dict(
            {column: [row[column] for row in rows] for column in COLUMNS}, features=features
        )
        for name, rows in found.items()
    }


def choice(document: TaskDoc, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Score 1 where the likeliest choice is right, else 0."""
    return {"score": by_likelihood(_likelihoods(results), document["gold"])}


def choice_and_matthews(document: TaskDoc, results: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Score a choice, and return its labels for a correlation of all answers."""
    pair = (document["gold"][0], likeliest(_likelihoods(results)))
    return {**choice(document, results), "mcc": pair}


def correlation(pairs: Sequence[tuple[int, int]]) -> float:
    """Return the Matthews correlation of the right choices and the likeliest ones."""
    right, likely = zip(*pairs, strict=True)
    return matthews(right, likely)


def letter(document: TaskDoc, results: Sequence[str]) -> dict[str, float]:
    """Judge whether a written answer names the right option."""
    return by_letter(results[0], _letters(document), document["letters"])


def reasoned_letter(document: TaskDoc, results: Sequence[str]) -> dict[str, float]:
    """Judge whether a written answer that reasons first ends in the right option."""
    return by_letter(results[0], _letters(document), document["letters"], reasoned=True)


def value(document: TaskDoc, results: Sequence[str]) -> dict[str, float]:
    """Judge whether a written answer is the right one."""
    return by_value(results[0], document["reply"])


def english_summary(document: TaskDoc, results: Sequence[str]) -> dict[str, float]:
    """Return the ROUGE-1 and ROUGE-L of a summary, over English words."""
    ours, theirs = summary(results[0]), document["reply"]
    return {
        "score": rouge(ours, theirs, kind="1", segment=LATIN, counted="every"),
        "rouge_l": rouge(ours, theirs, kind="L", segment=LATIN),
        "abstained": float(not ours),
    }


def chinese_summary(document: TaskDoc, results: Sequence[str]) -> dict[str, float]:
    """Return the ROUGE-1, ROUGE-2 and ROUGE-L of a summary, over the words that jieba finds."""
    ours, theirs = summary(results[0]), document["reply"]
    return {
        "score": rouge(ours, theirs, kind="1", segment=JIEBA),
        "rouge_2": rouge(ours, theirs, kind="2", segment=JIEBA),
        "rouge_l": rouge(ours, theirs, kind="L", segment=JIEBA),
        "abstained": float(not ours),
    }


def _likelihoods(results: Sequence[tuple[float, bool]]) -> list[float]:
    return [likelihood for likelihood, _ in results]


def _letters(document: TaskDoc) -> str:
    return LETTERS[: len(document["choices"])]
