"""The answers of one model to the questions of a task, and how a line that holds one is read.

A line is one of lm-eval's `--log_samples` (`arguments`, `filtered_resps`, `filter`, `metrics`) or
one that `layerlab evaluate` keeps in samples/ (`prompt`, `options`, `responses`). What was asked is
told by digests of the content, so that files of any version compare.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.json_values import Record
from layerlab.records.parse import json_of, one_line
from layerlab.system.files import check_regular

# What a digest is of, in the order of `ModelAnswer.asked`, as it is said where two differ.
ASKED = (
    "it is another question",
    "its prompt is another",
    "its options are others",
    "its right answer is another",
    "its settings are others",
)
SETTINGS = 4  # which two programs tell in ways of their own
LM_EVAL, OWN = "lm-eval", "layerlab evaluate"
# Of a line, what is no metric; earlier versions of lm-eval list none.
BESIDE = {
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
    *("doc_hash", "prompt_hash", "target_hash", "prompt", "options", "responses"),
}
SHOWN, SAID = 240, 80  # characters of a question and of an answer


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """Answer of a model to one question.

    Attributes:
        asked: digests of the question, its prompt, its options, its right answer, its settings.
        scores: by metric, those that are numbers.
        documents: digests of what stands in the fields that questions may share.
        text: the end of the prompt.
        right: the right answer, as the task has it.
        said: the option that is likeliest, or what was written.
        fits: whether the question fitted into the context of the model, and was asked.
        sound: whether the logits were numbers.
    """

    asked: tuple[str, ...]
    scores: dict[str, float]
    documents: Mapping[str, str]
    text: str
    right: str
    said: str
    fits: bool = True
    sound: bool = True


@dataclass(frozen=True, kw_only=True)
class TaskAnswers:
    """All answers of a model to a task.

    Attributes:
        path: file that they stand in.
        answers: by the number of the question.
        higher: whether more is better, by metric, where that is known.
        fields: of the first question, for a message that lists them.
        program: that asked.
        limited: tokens that a written answer could have where the context allowed fewer than the
            task.
        marking: how answers were marked, as far as lm-eval tells it, by the names of settings.
    """

    path: Path
    answers: Mapping[str, ModelAnswer]
    higher: Mapping[str, bool] = field(default_factory=dict)
    fields: Sequence[str] = ()
    program: str = LM_EVAL
    limited: int | None = None
    marking: Mapping[str, str] = field(default_factory=dict)


def read_lines(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield the objects of a file, one a line, with their numbers.

    Raises:
        UserError: it cannot be read, or a line is no such object, as the last of a cut-off file.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parse(line, number, path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _parse(line: bytes, number: int, path: Path) -> Record:
    try:
        row = json_of(line.decode())
    except ValueError as error:
        raise UserError(
            f"line {number} of {path} is cut off or damaged: {one_line(error)}; evaluate again"
        ) from None
    if not isinstance(row, dict) or "doc_id" not in row:
        raise UserError(
            f"line {number} of {path} has no 'doc_id'; expected a line that lm-eval writes with "
            "--log_samples"
        )
    return row


@contextmanager
def explain_line(number: int, path: Path) -> Iterator[None]:
    """Say in one line that a line of a file is of no form that is known.

    Raises:
        UserError: it is.
    """
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"line {number} of {path} is not what an evaluation writes: {one_line(error)}"
        ) from None


def read_samples(
    path: Path, documents: Sequence[str], higher: Mapping[str, bool] | None = None
) -> TaskAnswers:
    """Read the file that lm-eval writes of one task.

    Args:
        documents: fields of a question that others may share, a point between names inside names.
        higher: whether more is better, by metric.

    Raises:
        UserError: as for `read_lines`, or it holds nothing, or a question twice.
    """
    found: dict[str, ModelAnswer] = {}
    marks: dict[str, dict[tuple[str, str], float]] = {}
    fields: list[str] = []
    for number, row in read_lines(path):
        key, way = str(row["doc_id"]), str(row.get("filter", "none"))
        own = marks.setdefault(key, {})
        if (way in {one for _, one in own}) or (key in found and not own):
            raise UserError(
                f"line {number} of {path} holds question {key} a second time; keep one answer to "
                "each question"
            )
        with explain_line(number, path):
            own |= {(name, way): value for name, value in _metrics(row).items()}
            if key not in found:
                fields = fields or _names(row.get("doc"))
                found[key] = parse_answer(row, documents)
    if not found:
        raise UserError(f"{path} holds no answer; evaluate again")
    ways = sorted({way for own in marks.values() for _, way in own})
    several = len(ways) > 1
    for key, own in marks.items():
        named = {(f"{name},{way}" if several else name): one for (name, way), one in own.items()}
        found[key].scores.update(named)
    marking = {"filter": ", ".join(ways)} if ways else {}
    return TaskAnswers(
        path=path, answers=found, higher=higher or {}, fields=fields, marking=marking
    )


def parse_answer(row: Record, documents: Sequence[str], settings: str = "") -> ModelAnswer:
    """Return the answer of a line, without its scores.

    Args:
        settings: what is known, beside the line, of how an answer was made and marked.
    """
    doc = row.get("doc")
    prompt, options, beside = _requests(row)
    target = row.get("target")
    sums = _find_sums(row, options)
    sound = not sums or not (any(map(math.isnan, sums)) or max(sums) == -math.inf)
    parts = (_dump(doc), prompt, _dump(options), str(target), _dump([beside, settings]))
    return ModelAnswer(
        asked=tuple(map(_digest, parts)),
        scores={},
        documents={name: _digest(one) for name in documents if (one := _inside(doc, name))},
        text=_end(prompt),
        right=_right(target, options),
        said=_cut(_find_reply(row, options, sums), SAID) if sound else "NaN",
        sound=sound,
    )


def _metrics(row: Record) -> dict[str, float]:
    names = row.get("metrics")
    listed: Iterable[str] = names if isinstance(names, list) else row.keys() - BESIDE
    return {
        name: float(value) for name in listed if isinstance(value := row.get(name), int | float)
    }


def _requests(row: Record) -> tuple[str, list[str], Any]:
    """Return the prompt, the options, and with what settings an answer was written."""
    if "prompt" in row:
        return str(row["prompt"]), [str(one) for one in row.get("options") or ()], ""
    given = row.get("arguments")
    requests = list(given.values()) if isinstance(given, dict) else given or [[""]]
    each = [list(one.values()) if isinstance(one, dict) else list(one) for one in requests]
    prompt = str(each[0][0]) if each[0] else ""
    if len(each) > 1:
        return prompt, [str(one[-1]) for one in each], ""
    return prompt, [], each[0][1:]


def _find_sums(row: Record, options: Sequence[str]) -> list[float]:
    """Return the log-likelihood of each option, or of what follows; of what is written none."""
    answers = [one for one in _replies(row) if options or isinstance(one, list)]
    try:
        return [float(one[0]) for one in answers][: len(options) or None]
    except (TypeError, ValueError, IndexError):
        return []


def _find_reply(row: Record, options: Sequence[str], sums: Sequence[float]) -> str:
    if not options:
        return str(_replies(row)[0])
    return options[sums.index(max(sums))].strip() if sums else ""


def _replies(row: Record) -> list[Any]:
    return row.get("filtered_resps", row.get("responses")) or [""]


def _right(target: Any, options: Sequence[str]) -> str:
    text = str(target)
    named = text.isdecimal() and int(text) < len(options)
    return _cut(options[int(text)] if named else text, SAID)


def _inside(doc: Any, name: str) -> str:
    """Return what stands in a field of a question, as text; empty where nothing does."""
    for part in name.split("."):
        doc = doc.get(part) if isinstance(doc, Mapping) else None
    return "" if doc is None else _dump(doc) if isinstance(doc, dict | list) else str(doc).strip()


def _names(doc: Any) -> list[str]:
    return [str(name) for name in doc] if isinstance(doc, Mapping) else []


def _end(text: str) -> str:
    joined = " ".join(text[-2 * SHOWN :].split())
    return joined if len(joined) <= SHOWN and len(text) <= 2 * SHOWN else f"...{joined[-SHOWN:]}"


def _cut(text: str, most: int) -> str:
    joined = " ".join(text[: 4 * most].split())
    return joined if len(joined) <= most else f"{joined[:most]}..."


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _digest(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=12).hexdigest()
