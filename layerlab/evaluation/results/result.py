"""Result of an evaluation: tables of scores, written as JSON and CSV, shown in a terminal."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console, RenderableType

from layerlab.errors import UserError
from layerlab.evaluation.results.folder import (
    KINDS,
    PAGE,
    PARTS,
    RESULTS,
    TABLES,
    list_earlier_tables,
)
from layerlab.evaluation.results.lm_eval_tasks import expand_metrics
from layerlab.evaluation.results.table import render_table
from layerlab.records.parse import explain, read_json, seal, unseal
from layerlab.system.csv_text import csv_of
from layerlab.system.files import check_links, write_files
from layerlab.validation import short_repr

STRICT = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
# Of a row what stands in no table: of single questions, and hashes.
BY_QUESTION = {"scores", "ties", "cut", "asked"}
# What is no number where no logit of a model is one.
_OF_LOST = {"score", "error", "low", "high", "effective_n", "value", "shared"}
_NESTED = {"metrics", "acc_norm"}
ScoreValue = Annotated[float, Field(ge=-1e12, le=1e12)]


class AskedArm(BaseModel):
    """A model that was asked."""

    model_config = STRICT
    arm: str


class Score(AskedArm):
    """The score of a model in a benchmark."""

    benchmark: str
    score: ScoreValue


class AskedShots(BaseModel):
    """Examples that were asked for."""

    model_config = STRICT
    asked: int


class TaskScores(AskedArm):
    """Scores of a task, question by question."""

    task: str
    scoring: str
    shots: AskedShots
    scores: dict[str, ScoreValue]
    worth: str | None = None
    ties: dict[str, dict[str, ScoreValue]] = {}
    cut: dict[str, int] = {}
    asked: dict[str, str] = {}


class SubjectScore(Score, TaskScores):
    """Score of a part of a benchmark."""


class LmEvalScore(TaskScores):
    """Score of a task of lm-eval."""

    score: float | None  # a perplexity by word has no bound
    measured: list[dict[str, Any]]


class StoredScores(BaseModel):
    """The content of results.json; more may stand there."""

    model_config = STRICT
    arms: list[AskedArm] = Field(min_length=1)
    benchmarks: list[Score]
    subjects: list[SubjectScore]
    tasks: list[LmEvalScore] = []


@dataclass(frozen=True)
class EvaluationResult:
    """Scores of one or several models.

    Attributes:
        content: all of it, as results.json keeps it.
        folder: where it is written; None where nowhere.
    """

    content: Mapping[str, Any] = field(repr=False)
    folder: Path | None = None

    def frame(self, kind: str = "benchmarks") -> pd.DataFrame:
        """Return one table of the result.

        Args:
            kind: "benchmarks", "subjects", "groups" (means of the source's headings), "sections"
                (levels and kinds inside a benchmark), "tasks" (of lm-eval, a row for each metric),
                "task_groups", "precision", "compared" or "published".

        Raises:
            UserError: there is no such table.
        """
        if kind not in KINDS:
            raise UserError(f"there is no table {short_repr(kind)}; expected {', '.join(KINDS)}")
        rows = self.content.get(kind, ())
        return pd.DataFrame(map(_flat, expand_metrics(rows) if kind == "tasks" else rows))

    def score(self, benchmark: str, arm: str | None = None) -> float:
        """Return the score of a benchmark, from 0 to 1, or of a task of lm-eval.

        Args:
            benchmark: its name.
            arm: which of several models; the first if left out.

        Raises:
            UserError: it was not asked, or no logit was a number.
        """
        rows = [*self.content["benchmarks"], *self.content.get("tasks", ())]
        names = [str(row.get("benchmark", row.get("task"))) for row in rows]
        for name, row in zip(names, rows, strict=True):
            if name == benchmark and arm in (None, row["arm"]) and row["score"] is not None:
                if row.get("lost"):
                    raise UserError(
                        f"{name} has no score: all logits of {row['arm']} are NaN or infinite; "
                        "mend the model, or evaluate it in another dtype"
                    )
                return float(row["score"])
        asked = dict.fromkeys(names)
        raise UserError(
            f"{short_repr(benchmark)} was not asked; asked were {', '.join(asked) or 'none'}"
        )

    def table(self, width: int = 100, *, subjects: bool = False) -> RenderableType:
        """Return what a terminal shows of the result.

        Args:
            width: of the terminal in characters.
            subjects: show every subject as well.
        """
        return render_table(self.content, width, subjects=subjects)

    def summary(self, width: int = 100, *, subjects: bool = False) -> str:
        """Return the terminal's table as plain text."""
        console = Console(width=width, markup=False, highlight=False, color_system=None)
        with console.capture() as caught:
            console.print(self.table(width, subjects=subjects))
        return caught.get()

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        return deepcopy(dict(self.content))

    def save(self, folder: Path, page: str | None = None) -> "EvaluationResult":
        """Write results.json, tables/*.csv and a page, in place of those of an earlier evaluation.

        All are written or none.

        Args:
            page: that shows this result; without one an earlier page goes, too.

        Raises:
            UserError: they cannot be written there, or would replace something else.
        """
        check_links(folder)
        earlier = {f"{TABLES}/{kind}.csv": None for kind in list_earlier_tables(folder)}
        tables = [kind for kind in KINDS if self.content.get(kind)]
        written = {f"{TABLES}/{kind}.csv": csv_of(self.frame(kind)) for kind in tables}
        # First: a folder that is cut off here is known by it.
        text = json.dumps(seal(self.content), ensure_ascii=False, indent=1)
        write_files(folder, {RESULTS: text + "\n", **earlier, **written, PAGE: page})
        return EvaluationResult(self.content, folder)

    def __str__(self) -> str:
        return self.summary()


def load_result(path: str | PathLike[str]) -> EvaluationResult:
    """Read a results.json, or the folder that holds one.

    Raises:
        UserError: there is none, or it is of something else.
    """
    given = Path(path)
    file = given / RESULTS if given.is_dir() else given
    try:
        content = read_json(file)
    except OSError as error:
        raise UserError(
            f"cannot read {file}: {error.strerror}; give the results.json of an evaluation"
        ) from None
    except ValueError as error:
        raise UserError(f"{file} is not whole JSON: {error}; evaluate again") from None
    if not isinstance(content, dict) or not set(content) >= PARTS:
        raise UserError(
            f"{file} holds no scores of layerlab evaluate; give the results.json of an evaluation"
        )
    try:
        content = unseal(content)
        StoredScores.model_validate(content)
    except ValueError as error:
        why = explain(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"cannot read {file}: {why}; evaluate again") from None
    return EvaluationResult(content, file.parent)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a row: nested values get a name each, those of single questions are left out."""
    found: dict[str, Any] = {}
    lost = bool(row.get("lost"))
    for name, value in row.items():
        if name in BY_QUESTION:
            continue
        if lost and name in _OF_LOST:
            found[name] = None
        elif isinstance(value, Mapping):
            blank = lost and name in _NESTED
            found.update(
                {f"{name}_{inner}": None if blank else one for inner, one in value.items()}
            )
        elif isinstance(value, list | tuple):
            found[name] = "; ".join(map(str, value))
        else:
            found[name] = value
    return found
