"""A kept result of a task, believed only where it follows from its own scores."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from layerlab.evaluation.harness.fewshot import Shots
from layerlab.evaluation.harness.task_result import TaskResult
from layerlab.records.parse import explain

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
KeptCount = Annotated[int, Field(ge=0, le=10**9)]
Worth = Annotated[float, Field(ge=-1e12, le=1e12)]
KeptShare = Annotated[float, Field(ge=0, le=1)]


class KeptShots(BaseModel):
    """Numbers of examples, as `Shots` has them."""

    model_config = STRICT
    asked: KeptCount
    mean: Annotated[float, Field(ge=0, le=1e9)]
    least: KeptCount
    shortened: KeptCount
    unfit: KeptCount


class KeptTask(BaseModel):
    """A part of a kept result that does not follow from the rest of it."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
    scores: dict[str, Worth]
    abstained: KeptShare
    metrics: dict[str, float | None]  # a perplexity by word has no bound
    shots: KeptShots
    chance: KeptShare | None
    guesses: list[list[float]]
    limited: KeptCount | None
    unsound: KeptCount
    worth: str | None
    ties: dict[str, dict[str, KeptShare]]
    overlong: KeptCount
    beyond: list[str] = []
    cut: dict[str, Annotated[int, Field(ge=-1, le=10**9)]]
    seconds: Annotated[float, Field(ge=0, le=1e9)]


def rebuild_result(
    kept: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]
) -> tuple[TaskResult, float]:
    """Rebuild what a task came to, and how many seconds it took.

    Raises:
        ValueError: a part is missing, or of another kind.
    """
    try:
        found = KeptTask.model_validate(dict(kept))
    except ValidationError as error:
        raise ValueError(explain(error)) from None
    parts = found.model_dump(exclude={"seconds", "shots"})
    parts["guesses"] = [(chance, int(count)) for chance, count in found.guesses]
    shots = Shots(**found.shots.model_dump())
    return TaskResult(**parts, shots=shots, samples=samples), found.seconds
