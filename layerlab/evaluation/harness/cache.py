"""Finished tasks and the answers so far to another: a run that was interrupted goes on there."""

import hashlib
import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from layerlab.errors import UserError
from layerlab.evaluation.harness.fewshot import Shots
from layerlab.evaluation.harness.task_result import TaskResult
from layerlab.evaluation.lm_eval_tasks.chat_prompts import limit_template
from layerlab.records.file_digests import hash_sources
from layerlab.records.parse import explain, json_of, read_json, seal, unseal
from layerlab.system.files import write_file
from layerlab.system.untrusted.python_file import hash_definition
from layerlab.system.write_errors import explain_write

if TYPE_CHECKING:
    from layerlab.loading.trial import TrialRun

LEAVES, SAMPLES = "leaves", "samples"
# All that makes a score of an output; what a task asks is in the task itself.
SCORERS = (
    *("metrics/*.py", "lawbench/*.py", "lawbench/*.toml", "tasks/*.py", "lm_eval_tasks/*.py"),
    *(f"harness/{name}.py" for name in ("lm", "prefix_cache", "fewshot", "run", "low_precision")),
    *(
        f"harness/{name}.py"
        for name in ("model_checks", "run_task", "task_result", "leaf", "settle")
    ),
    *("../loading/generation.py", "../loading/batching.py", "../loading/trial.py"),
    *("../tokenization/round_trip.py", "../data/normal_form.py"),
)
# All that computes a model of ours, and all that emulates a number format.
BUILDERS = ("../blocks/**/*.py", "../variants/**/*.py", "../model/**/*.py")
ROUNDERS = (
    *("../numerics/emulation/**/*.py", "../numerics/formats/**/*.py"),
    "../numerics/formats/*.cpp",
)
_FOLDER = Path(__file__).parents[1]
# It cuts Chinese into words, and another version of it into others.
SEGMENTER = "jieba"
# What a tokenizer does beside its rules.
SETTINGS = (
    *("clean_up_tokenization_spaces", "split_special_tokens", "add_bos_token", "add_eos_token"),
    *("add_prefix_space", "padding_side", "truncation_side"),
)
# Answers of a batch, and the rows of it that something is known of, by what that is.
LoggedAnswers = tuple[list[Any], Mapping[str, list[Any]]]
TRIED = "The cat, 12 of 3.5; what then?\nÉté \u4e2d\u6587"  # by which uses are compared
_BROUGHT = "transformers_modules"


def key(**parts: str) -> str:
    """Return a hash of all that a task's result depends on: model, task, options, versions.

    Example:
        >>> key(model="a", task="b") == key(task="b", model="a")
        True
    """
    content = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(content.encode("utf-8"), digest_size=12).hexdigest()


@cache
def scorer(folder: Path = _FOLDER) -> str:
    """Return a hash of the code that scores, since other code would be another measure.

    Args:
        folder: of this package.

    Example:
        >>> scorer() == scorer()
        True
    """
    try:
        installed = version(SEGMENTER)
    except PackageNotFoundError:
        installed = "none"
    return f"{hash_sources(folder, SCORERS)} {SEGMENTER} {installed}"


@cache
def builder(folder: Path = _FOLDER) -> str:
    """Return a hash of the code that computes models of ours, whose weights do not tell of it."""
    return hash_sources(folder, BUILDERS)


@cache
def rounder(folder: Path = _FOLDER) -> str:
    """Return a hash of the code that emulates number formats."""
    return hash_sources(folder, ROUNDERS)


def hash_code(one: Any) -> str:
    """Return a hash of the Python that a model or tokenizer brings along; empty where none is.

    transformers keeps what it imports of a folder or of the Hub in a folder of its own, file beside
    file: whatever lies there may take part. A model of ours may be made of parts whose files import
    others.
    """
    kind = type(one)
    if parse := getattr(getattr(one, "config", None), "parse_spec", None):
        from layerlab.variants.registry import code_beside  # late: it takes torch

        beside = code_beside(parse())
        return json.dumps(beside, sort_keys=True) if beside else ""
    if kind.__module__.partition(".")[0] != _BROUGHT:
        # A class that its user has registered with transformers.
        written = hash_definition(kind)
        return json.dumps(written, sort_keys=True) if written else ""
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(inspect.getfile(kind)).parent.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def describe_settings(tokenizer: Any) -> str:
    """Return what a tokenizer does beside its rules."""
    return str({name: getattr(tokenizer, name, None) for name in SETTINGS})


def describe_tokenizer(tokenizer: Any) -> str:
    """Return all that a tokenizer is known by: its settings and its rules."""
    settings = describe_settings(tokenizer)
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        return settings + str(backend.to_str())
    from layerlab.loading.weights.hash import describe_rules  # late: it takes torch

    return f"{settings} {tokenizer!r} {json.dumps(describe_rules(tokenizer), sort_keys=True)}"


def describe_uses(tokenizer: Any, *, chat: bool) -> str:
    """Return what a tokenizer makes of a text, since a method of it may be its user's own.

    Args:
        chat: whether its template puts the questions.

    Raises:
        UserError: the template takes too much.
    """
    uses: dict[str, Callable[[], Any]] = {
        "ids": lambda: tokenizer(TRIED)["input_ids"],
        "encode": lambda: tokenizer.encode(TRIED, add_special_tokens=False),
        "decode": lambda: tokenizer.decode(tokenizer.encode(TRIED)),
    }
    if chat:
        uses["chat"] = limit_template(tokenizer, [{"role": "user", "content": TRIED}])
    return str({name: _try(use) for name, use in uses.items()})


def _try(use: Callable[[], Any]) -> Any:
    try:
        return use()
    except Exception as error:  # as of a template for other turns; whoever needs it tells
        return type(error).__name__


class ResultCache:
    """The folder of a run; without one nothing is kept.

    Args:
        folder: of results; made when the first task is finished.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def load(self, name: str) -> dict[str, Any] | None:
        """Load what was kept under a key, or None where nothing is there as a whole.

        Raises:
            UserError: it is there, and cannot be read or is not what was written.
        """
        if self.folder is None:
            return None
        path = self.locate(name)
        if not path.is_file() or not self._samples(name).is_file():
            return None
        try:
            return unseal(read_json(path), self._samples(name).read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}; delete it and type it again") from None

    def save(
        self, name: str, record: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]
    ) -> None:
        """Keep a task and its samples; the samples come first, so that a record is always whole."""
        if self.folder is None:
            return
        lines = (json.dumps(one, ensure_ascii=False, default=str) for one in samples)
        written = write_file(self._samples(name), "".join(f"{line}\n" for line in lines))
        kept = seal(record, written.read_bytes())
        write_file(self.locate(name), json.dumps(kept, ensure_ascii=False))
        self._log(name).unlink(missing_ok=True)

    def open_log(self, name: str, trial: "TrialRun | None", seed: int) -> "AnswerLog":
        """Return the log of a task's answers, with those that it holds.

        Args:
            trial: of the model that is asked.
            seed: of answers that are sampled.
        """
        return AnswerLog(None if self.folder is None else self._log(name), trial, seed)

    def samples(self, name: str) -> list[dict[str, Any]]:
        """Read the questions of a kept task with their answers and scores.

        Raises:
            ValueError: a line is none.
        """
        lines = self._samples(name).read_text("utf-8").split("\n")
        return [json_of(line) for line in lines if line]

    def locate(self, name: str) -> Path:
        """Return the file of a kept task."""
        assert self.folder is not None
        return self.folder / LEAVES / f"{name}.json"

    def _log(self, name: str) -> Path:
        return self.locate(name).with_suffix(".jsonl")

    def _samples(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / SAMPLES / f"{name}.jsonl"


class AnswerLog:
    """The answers to a task that is not finished, a line for each batch, as they come.

    A line that is not whole, as the one that a run was killed in, is asked again. What a model
    draws for a batch hangs on the batch and the seed alone, not on what was asked before.

    Args:
        path: of the file; without one nothing is kept.
        trial: of the model that is asked. Answers of another model are dropped.
        seed: of answers that are sampled.

    Attributes:
        seconds: that the answers took which were there before.
        other: whether there were some of another model.
    """

    def __init__(
        self, path: Path | None = None, trial: "TrialRun | None" = None, seed: int = 0
    ) -> None:
        from layerlab.loading.trial import is_same_trial  # late: it takes torch

        self.seconds = 0.0
        self._path, self._seed = path, seed
        self._asked = Counter[str]()
        head, *lines = _read_log(path) or [{}]
        self.other = "trial" in head and not is_same_trial(head["trial"], trial)
        same = "trial" in head and not self.other
        self._kept = {str(one["asked"]): one for one in lines} if same else {}
        self._head = None if same else {"trial": trial}

    def answer(self, batch: Any, ask: Callable[[], LoggedAnswers]) -> LoggedAnswers:
        """Return the answers to a batch: those of the log, or else of the model.

        Args:
            batch: all that is asked.
            ask: asks it of the model.
        """
        from layerlab.system.rng import draw_with_seed  # late: it takes torch

        digest = key(batch=json.dumps(batch, default=str))
        self._asked[digest] += 1  # the same may be asked again, for another sample
        name = f"{digest} {self._asked[digest]}"
        if (kept := self._kept.pop(name, None)) is not None:
            self.seconds += kept["seconds"]
            return kept["answers"], kept["named"]
        start = time.monotonic()
        with draw_with_seed(int(key(asked=name, seed=str(self._seed))[:16], 16)):
            answers, named = ask()
        seconds = time.monotonic() - start
        if self._path is not None:
            line = {"asked": name, "answers": answers, "named": named, "seconds": seconds}
            self._write(line, self._path)
        return answers, named

    def _write(self, line: Mapping[str, Any], path: Path) -> None:
        if self._head is not None:
            write_file(path, json.dumps(seal(self._head)))
            self._head = None
        with explain_write(path), path.open("ab") as file:
            # The line before may have been cut off.
            file.write(f"\n{json.dumps(seal(line))}".encode())


def _read_log(path: Path | None) -> list[dict[str, Any]]:
    """Return the lines of a log that are whole."""
    if path is None or not path.is_file():
        return []
    found = []
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError):
                found.append(unseal(json_of(line.strip())))
    return found


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
    near: KeptCount | None
    batch: KeptCount
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
