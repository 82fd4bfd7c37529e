"""The questions of a task as lm-eval takes them: a row of texts for each.

A row is all that a task needs, so a YAML file only says which columns are what.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import find_benchmark
from layerlab.evaluation.benchmarks.items import Item, read_items
from layerlab.evaluation.benchmarks.spec import Benchmark, Subtask
from layerlab.evaluation.tasks.prompts import Manner, build_prompt

# What each column holds.
COLUMNS: Mapping[str, str] = {
    "header": "what stands once before the examples",
    "prompt": "what is asked",
    "choices": "what may follow",
    "gold": "places of the right choices",
    "target": "what follows in an example",
    "reply": "the right text where there are no choices",
    "letters": "the right choices, as letters",
    "question": "the question as the file has it",
    "place": "the file and line of the question",
}


def documents(
    benchmark: Benchmark,
    subtask: Subtask,
    split: str,
    manner: Manner | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Return the answered questions of a split, each with the columns of `COLUMNS`.

    Args:
        folder: the data folder; LAYERLAB_DATA where none is given.

    Raises:
        UserError: the split cannot be read, or an example has no explanation to show.
    """
    manner = manner or Manner()
    found = read_items(benchmark, subtask, split, folder)
    if manner.cot and split == benchmark.shots_split:
        _explain(found, benchmark)
    return [_document(one, benchmark, subtask, manner) for one in found]


def splits(
    benchmark: str, subject: str, manner: Manner, folder: Path | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return the scored split of a subject as `test`, and that of its examples as `dev`.

    Args:
        benchmark: its name.
        subject: its name.
        folder: the data folder; LAYERLAB_DATA where none is given.

    Raises:
        UserError: there is no such benchmark, a split cannot be read, or the benchmark has no
            explanations and is asked to show them.
    """
    one = find_benchmark(benchmark)
    if manner.cot and not one.explained:
        raise UserError(
            f"the examples of {one.title} come without explanations; leave --cot out, "
            "or name C-Eval or FinEval"
        )
    found = {"test": documents(one, one[subject], one.split, manner, folder)}
    if one.shots_split:
        found["dev"] = documents(one, one[subject], one.shots_split, manner, folder)
    return found


def _document(one: Item, benchmark: Benchmark, subtask: Subtask, manner: Manner) -> dict[str, Any]:
    prompt = build_prompt(one, benchmark, subtask, manner)
    begin: Callable[[str], str] = str.lstrip if manner.chat else str
    return {
        "header": prompt.header,
        "prompt": prompt.text,
        "choices": list(map(begin, prompt.choices)),
        "gold": list(one.right),
        "target": begin(prompt.target),
        "reply": one.reply,
        "letters": one.letters,
        "question": one.text,
        "place": one.line,
    }


def _explain(found: list[Item], benchmark: Benchmark) -> None:
    for one in found:
        if not one.explanation.strip():
            raise UserError(
                f"{one.location} has no explanation; leave --cot out, or copy the examples of "
                f"{benchmark.title} anew"
            )
