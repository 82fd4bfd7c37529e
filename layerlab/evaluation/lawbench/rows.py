"""The rows of LawBench: those that are scored, with their prompts, and those that are left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import LAWBENCH
from layerlab.evaluation.benchmarks.readers import FileRow, read_rows
from layerlab.evaluation.lawbench.references import Unreadable
from layerlab.evaluation.lawbench.tasks import TASKS, LawBenchTask
from layerlab.validation import short_repr

# The files with one example differ in their instruction, which holds it.
SPLITS = {0: "zero_shot", 1: "one_shot"}


@dataclass(frozen=True, kw_only=True)
class TaskRows:
    """The rows in the file of a task.

    Attributes:
        kept: rows to be answered: instruction, question, answer and the prompt of the first two.
        left_out: where the rows that are not scored stand, and why.
    """

    kept: tuple[Mapping[str, str], ...]
    left_out: Mapping[str, str]


def read_scored_rows(number: str, *, shots: int = 0, folder: Path | None = None) -> TaskRows:
    """Read the rows of one task, those that are scored and those that are left out.

    Args:
        number: of the task, as `1-1`.
        shots: examples in the prompt: 0 or 1, as the source has them.
        folder: the data folder; LAYERLAB_DATA where none is given.

    Raises:
        UserError: no such task or number of examples, no such file, or one of another form.
    """
    if number not in TASKS:
        raise UserError(
            f"LawBench has no task {short_repr(number)}; expected one of {', '.join(TASKS)}"
        )
    if shots not in SPLITS:
        raise UserError(
            f"LawBench has prompts with 0 and with 1 example, not with {short_repr(shots)}; "
            "type --shots 0 or --shots 1"
        )
    task, kept, left_out = TASKS[number], [], {}
    for row in read_rows(LAWBENCH, LAWBENCH[number], SPLITS[shots], folder):
        if why := task.exclusion_reason(row.text("answer")):
            left_out[row.location] = why
        else:
            kept.append(_document(task, row))
    if not kept:
        raise UserError(f"LawBench's {number} has no row that is scored; copy it anew")
    return TaskRows(kept=tuple(kept), left_out=left_out)


def _document(task: LawBenchTask, row: FileRow) -> Mapping[str, str]:
    instruction, question, answer = map(row.text, ("instruction", "question", "answer"))
    if not question.strip():
        raise UserError(f"{row.location} has an empty question; leave that row out")
    if not answer.strip() and not task.may_be_blank:
        raise UserError(f"{row.location} has no answer; leave that row out")
    try:
        task.read(answer)
    except Unreadable as expected:
        raise UserError(
            f"{row.location}: the answer {short_repr(answer)} is not worded as LawBench's "
            f"{task.number}; expected {expected}"
        ) from None
    return {
        "subject": task.number,
        "instruction": instruction,
        "question": question,
        "answer": answer,
        "prompt": f"{instruction}\n{question}",
    }
