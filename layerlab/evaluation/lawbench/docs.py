"""LawBench as lm-eval asks for it: the documents of a task, and the scores of one output.

The tasks of lm-eval (`evaluation/tasks/configs.py`) name these functions.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.evaluation.lawbench.rows import read_scored_rows
from layerlab.evaluation.lawbench.tasks import TASKS
from layerlab.evaluation.metrics.edit_f import edit_count


def documents(subject: str, shots: int = 0, folder: str | None = None, **_: Any) -> dict[str, Any]:
    """Return the scored rows of a task as the split `test`.

    Args:
        subject: the number of the task.
        shots: 0 or 1; `lm-eval run --metadata '{"shots": 1}'` gives it too.
        folder: the data folder; LAYERLAB_DATA where none is given.
    """
    from datasets import Dataset

    found = read_scored_rows(subject, shots=shots, folder=Path(folder) if folder else None)
    for why, count in Counter(found.left_out.values()).items():
        logging.getLogger(__name__).info("LawBench %s: %d rows left out: %s", subject, count, why)
    return {"test": Dataset.from_list([dict(row) for row in found.kept])}


def marks(doc: Mapping[str, str], results: Sequence[str]) -> dict[str, float]:
    """Return the score of one output, and 1 where it held no answer."""
    mark = TASKS[doc["subject"]].score(results[0], doc)
    return {"score": mark.score, "abstained": float(mark.abstained)}


def correction_marks(doc: Mapping[str, str], results: Sequence[str]) -> dict[str, Any]:
    """Return the counts of a sentence's edits, and the score of that sentence alone.

    One F is taken of the edits of all sentences together.
    """
    count = edit_count(doc["question"].split("\n")[0], results[0], doc["answer"])
    found = marks(doc, results)
    return {**found, "score": list(count), "alone": found["score"]}
