"""Scores of a run's finished model beside its result, accepted only if they are of its weights."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from layerlab.errors import UserError
from layerlab.records.parse import explain, read_json, seal, unseal
from layerlab.records.result import STRICT
from layerlab.system.files import check_regular, write_file

SCORES = "scores.json"
SCHEMA = 1
LARGEST = 1e12
ScoreNumber = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class TaskPart(BaseModel):
    """A task, and its share of the whole score.

    Attributes:
        task: its name.
        weight: of its score; those of all parts add up to 1.
        score: of all its questions together.
        questions: the score of each, where it is the mean of them, by place and digest.
        abstained: the share of questions without an answer, which count as wrong.
    """

    model_config = STRICT
    task: str
    weight: Annotated[float, Field(ge=0, le=1)]
    score: ScoreNumber
    questions: dict[str, ScoreNumber] = {}
    abstained: Annotated[float, Field(ge=0, le=1)] = 0.0


class ModelScore(BaseModel):
    """The score of a model.

    Attributes:
        score: that is compared.
        asked: a digest of all that decides what was asked and how it was marked.
        seconds: that it took.
        parts: what the score is made of.
        remarks: on questions that were left out, or are odd.
        files: SHA-256 of each file of tasks, by its name.
    """

    model_config = STRICT
    score: ScoreNumber
    asked: str
    seconds: Annotated[float, Field(ge=0, le=LARGEST)]
    parts: list[TaskPart] = Field(min_length=1)
    remarks: list[str] = []
    files: dict[str, str] = {}

    @property
    def questions(self) -> tuple[Any, ...]:
        """Return what decides comparability: what was asked, and the weight of each task."""
        parts = [(part.task, part.weight, *sorted(part.questions)) for part in self.parts]
        return (self.asked, *parts)

    @model_validator(mode="after")
    def _check_sums(self) -> "ModelScore":
        for part in self.parts:
            worth = list(part.questions.values())
            if worth and not _alike(part.score, math.fsum(worth) / len(worth)):
                raise ValueError(f"the score of {part.task} is not the mean of its questions")
        if not _alike(1.0, math.fsum(part.weight for part in self.parts)):
            raise ValueError("its weights do not add up to 1")
        if not _alike(self.score, math.fsum(part.weight * part.score for part in self.parts)):
            raise ValueError("a score is not that of its parts")
        return self


class ScoreFile(BaseModel):
    """The content of scores.json.

    Attributes:
        run: whose model it is.
        weights: the hash of the weights.
        measures: by the key of the measure.
    """

    model_config = STRICT
    schema_version: int = Field(alias="schema", ge=1, le=SCHEMA)
    run: str
    weights: str
    measures: dict[str, ModelScore]


def read_scores(folder: Path, result: Mapping[str, Any] | None) -> dict[str, ModelScore]:
    """Read the scores of a run's model by measure; none where there are none, or no result.

    Raises:
        UserError: they are damaged, or of other weights than those of the result.
    """
    file = folder / SCORES
    if result is None:
        return {}
    try:
        check_regular(file)
        found = ScoreFile.model_validate(unseal(read_json(file)))
        for name in ("run", "weights"):
            if getattr(found, name) != result[name]:
                raise ValueError(f"its {name} is not that of the result")
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        why = explain(error)
    except (OSError, ValueError) as error:
        why = str(error)
    else:
        return found.measures
    line = " ".join(why.split())[:300]
    raise UserError(
        f"{file} is not believed: {line}; delete it and type layerlab compare again, which scores "
        "the model anew"
    )


def write_score(folder: Path, result: Mapping[str, Any], measure: str, score: ModelScore) -> None:
    """Write the score of a run's model beside those that are there.

    Raises:
        UserError: as `read_scores`, or it cannot be written.
    """
    measures = {**read_scores(folder, result), measure: score}
    content = {
        "schema": SCHEMA,
        "run": result["run"],
        "weights": result["weights"],
        "measures": {name: one.model_dump(mode="json") for name, one in measures.items()},
    }
    write_file(folder / SCORES, json.dumps(seal(content), ensure_ascii=False) + "\n")


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
