"""Looks at every question of a task of lm-eval before it is asked: whether it can be marked at all.

lm-eval marks a question whose answer names none of its options as wrong, whatever a model says, and
reads a value that is missing as the word None. Here such questions are left out, and counted.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.items import describe_repeated, sum_up_alike
from layerlab.evaluation.lm_eval_tasks.engine import ConfigurableTask
from layerlab.evaluation.lm_eval_tasks.templates import NullError
from layerlab.validation import short_repr

# How a whole number is written, also where a column of numbers has a gap: pandas writes 1.0.
WHOLE = re.compile(r"[0-9]{1,9}(\.0*)?")
NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]+")
FEWEST = 10  # questions in which it is no chance that answers are texts of options
CHOOSING = ("multiple_choice", "generate_until")


def leave_out_unmarkable(task: Any) -> list[str]:
    """Let a task ask only questions that can be marked, and say in lines what it does not ask.

    Raises:
        UserError: no question can be marked, answers are counted from 1, or they are numbers among
            the options, which lm-eval reads as places.
    """
    documents = task.eval_docs
    found = [_look(task, one) for one in documents]
    faults = [one.fault for one in found]
    _refuse_count_from_one(found)
    _refuse_read_as_places(found)
    _refuse_all(faults)
    if any(one.loose for one in found):
        _read_places(task)
    kept = [index for index, fault in enumerate(faults) if not fault]
    if len(kept) < len(found):
        _keep(task, documents, kept)
    return [
        *_describe_faults(task.task_name, faults),
        *_describe_faults(task.task_name, _leave_out_examples(task, documents), examples=True),
        *describe_repeated(task.task_name, [found[index].key for index in kept]),
    ]


@contextmanager
def accept_first_question() -> Iterator[None]:
    """Let lm-eval make a task whose first question cannot be marked: it tries that one, and fails.

    What it learns of it is whether answers are lists, and options texts.
    """
    target, choice = ConfigurableTask.doc_to_target, ConfigurableTask.doc_to_choice

    def doc_to_target(self: Any, document: Any, *given: Any) -> Any:
        found = target(self, document, *given)
        return found if isinstance(found, list) else str(found)

    def doc_to_choice(self: Any, document: Any, *given: Any) -> list[str]:
        found = choice(self, document, *given)
        return [str(one) or "?" for one in found] if isinstance(found, list | tuple) else []

    ConfigurableTask.doc_to_target = doc_to_target
    ConfigurableTask.doc_to_choice = doc_to_choice
    try:
        yield
    finally:
        ConfigurableTask.doc_to_target, ConfigurableTask.doc_to_choice = target, choice


def marks_choices(task: Any) -> bool:
    """Return whether lm-eval itself marks what a task chooses, or writes, by its options."""
    unchanged = getattr(type(task), "process_results", None) is ConfigurableTask.process_results
    return unchanged and task.config.process_results is None


def find_place(answer: Any, choices: Sequence[Any]) -> int | None:
    """Return the place of the option that an answer names: its text or its place, counted from 0.

    A whole number with a point is a place, unless options are numbers themselves.

    Example:
        >>> [find_place(one, ["no", "yes"]) for one in (1, "yes", "1.0", 1.0, "yes ", -1, 2, None)]
        [1, 1, 1, 1, None, None, None, None]
    """
    if isinstance(answer, str):
        if answer in choices:
            return choices.index(answer)
        if not WHOLE.fullmatch(answer) or any(NUMBER.fullmatch(str(one)) for one in choices):
            return None
        answer = float(answer)
    if not isinstance(answer, int | float) or not 0 <= answer < len(choices):
        return None
    return int(answer) if answer == int(answer) else None


@dataclass(frozen=True)
class _Question:
    """A question as it would be asked.

    Attributes:
        fault: why it cannot be marked; empty if nothing is wrong.
        key: what is equal where a question stands there again.
        options: their number.
        answer: that should name one of them.
        index: of the one that lm-eval takes.
        text: an option that is written as the answer is, where lm-eval takes another one or none.
        written: whether an option is written as the answer is, which names a place.
    """

    fault: str = ""
    key: str = field(default="", repr=False)
    options: int = 0
    answer: Any = None
    index: int | None = None
    text: str | None = None
    written: bool = False

    @property
    def loose(self) -> bool:
        """Return whether the answer names a place in a way that lm-eval does not read."""
        return self.index is not None and not isinstance(self.answer, int)


def _look(task: Any, document: Any) -> _Question:
    """Look at one question; what goes wrong in another way is said when it is asked."""
    try:
        text, target = task.doc_to_text(document), task.doc_to_target(document)
        chosen = task.config.doc_to_choice is not None
        choices: Any = task.doc_to_choice(document) if chosen else None
    except NullError as error:
        return _Question(str(error))
    except Exception:
        return _Question()
    key = repr((text, target, choices))
    if text is None:
        return _Question("its text is null")
    if not marks_choices(task):
        return _Question(key=key)
    if not chosen or task.OUTPUT_TYPE not in CHOOSING:
        return _Question("its answer is null" if target is None else "", key=key)
    if fault := _describe_options(choices):
        return _Question(fault)
    answer = text if task.multiple_input else target
    listed = isinstance(answer, list)
    places = {find_place(one, choices) for one in (answer if listed else [answer])} - {None}
    # As the first question has it, lm-eval takes all answers for lists, or none.
    alike = task.multiple_input or listed == bool(task.multiple_target)
    named = (written := str(answer)) in choices
    # Options that are the places themselves, in another order, say nothing of what is meant.
    by_text = named and not listed and set(choices) != set(map(str, range(len(choices))))
    if not places or not alike:
        fault = f"its answer {short_repr(answer)} names none of its {len(choices)} options"
        other = written if by_text and not places else None
        return _Question(fault, options=len(choices), answer=answer, text=other)
    if listed or task.multiple_input or (isinstance(answer, str) and named):
        return _Question(key=key, options=len(choices))
    index = places.pop()
    other = written if by_text and choices[index] != written else None
    return _Question(
        key=key, options=len(choices), answer=answer, index=index, text=other, written=named
    )


def _describe_options(choices: Any) -> str:
    """Return what is wrong with options; empty where nothing is."""
    if not isinstance(choices, list | tuple):
        return f"its options are {short_repr(choices)}, and no list"
    for number, one in enumerate(choices, 1):
        if not isinstance(one, str):
            what = "null" if one is None else short_repr(one)
            return f"its option {number} is {what}, and no text"
    return "" if choices else "it has no options"


def _refuse_all(faults: Sequence[str]) -> None:
    if faults and all(faults):
        raise UserError(
            f"none of its {len(faults):,} questions can be marked, the first because {faults[0]}; "
            "give each a text, options, and the place of the right one, counted from 0, or its text"
        )


def _refuse_count_from_one(found: Iterable[_Question]) -> None:
    """Refuse answers of which some are one place too far and none is the first.

    Raises:
        UserError: they are so.
    """
    named = [one for one in found if one.options]
    beyond = [one for one in named if one.fault]
    firsts = any(one.index in (None, 0) for one in named if not one.fault)
    if beyond and not firsts and all(_is_next(one) for one in beyond):
        raise UserError(
            f"its answers are counted from 1 ({beyond[0].options} of {beyond[0].options} options, "
            "and never 0), and places of options from 0; subtract 1, for example doc_to_target: "
            '"{{answer|int - 1}}"'
        )


def _refuse_read_as_places(found: Sequence[_Question]) -> None:
    """Refuse numbers that are the text of an option, and of another than lm-eval takes.

    A number that is no text of an option is a place, and so are all others then.

    Raises:
        UserError: none is so, and one can be no place, or many would be another option's.
    """
    texts = [one.text for one in found if one.text is not None]
    beyond = any(one.fault and one.text is not None for one in found)
    if any(one.index is not None and not one.written for one in found):
        return
    if beyond or len(texts) >= FEWEST:
        raise UserError(
            f"its answers are texts of options, as {texts[0]} is, and lm-eval reads whole "
            "numbers as places; give the place, for example doc_to_target: "
            '"{{choices.index(answer)}}"'
        )


def _is_next(one: _Question) -> bool:
    """Return whether an answer is the place behind the last option."""
    written = one.answer
    integral = isinstance(written, int | float) or WHOLE.fullmatch(str(written)) is not None
    return integral and float(written) == one.options


def _read_places(task: Any) -> None:
    """Let a task give places of options where its answers are whole numbers with a point."""
    plain = task.doc_to_target

    def doc_to_target(document: Any, *given: Any) -> Any:
        answer = plain(document, *given)
        choices = task.doc_to_choice(document)
        if isinstance(answer, float | str) and answer not in choices:
            index = find_place(answer, choices)
            return answer if index is None else index
        return answer

    task.doc_to_target = doc_to_target


def _keep(task: Any, documents: Any, places: Sequence[int]) -> None:
    """Let a task ask these of its questions alone."""
    kept = (
        documents.select(places)
        if hasattr(documents, "select")
        else [documents[index] for index in places]
    )
    task.task_docs = kept
    setattr(task, "test_docs" if task.has_test_docs() else "validation_docs", lambda: kept)


def _leave_out_examples(task: Any, documents: Any) -> list[str]:
    """Leave examples out that name no right option; return what is wrong with each.

    Those that are questions too are told as such.
    """
    sampler, config = getattr(task, "sampler", None), task.config.fewshot_config
    names = ("doc_to_text", "doc_to_target", "doc_to_choice")
    if sampler is None or any(
        getattr(config, name, None) not in (None, getattr(task.config, name)) for name in names
    ):
        return []
    pool = list(sampler.fewshot_docs())
    faults = [_look(task, one).fault for one in pool]
    if not any(faults):
        return []
    sampler.replace_df([one for one, fault in zip(pool, faults, strict=True) if not fault])
    sampler.fewshot_indices = None
    asked = list(documents)
    return ["" if one in asked else fault for one, fault in zip(pool, faults, strict=True)]


def _describe_faults(name: str, faults: Sequence[str], *, examples: bool = False) -> Iterator[str]:
    """Return lines on questions that are left out, or on examples, which are shown."""
    many, lines = f"{len(faults):,}", []
    for number, fault in enumerate(faults, 1):
        head = f"example {number:,} of {many}" if examples else f"question {number:,} of {many}"
        if fault:
            lines.append(f"{head}: {fault}; it is left out")
    return (f"{name}: {line}" for line in sum_up_alike(lines))
