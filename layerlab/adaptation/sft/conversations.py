"""Reads conversations in three common forms."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from layerlab.data.sources import rows
from layerlab.errors import UserError
from layerlab.records.parse import json_of, literal_of
from layerlab.validation import short_repr

SYSTEM, USER, ASSISTANT = ROLES = ("system", "user", "assistant")
# What sharegpt files call the roles.
CALLED = {
    "human": USER,
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bot": ASSISTANT,
}
# Columns that say where a row is from; nothing of them is learned.
ABOUT = frozenset(
    ("id", "idx", "index", "source", "type", "category", "task", "dataset", "lang", "language")
)
FORMS = {
    "messages": ({"messages"}, set[str]()),
    "sharegpt": ({"conversations"}, {"system"}),
    "alpaca": ({"output"}, {"instruction", "input", "system", "history"}),
}


@dataclass(frozen=True)
class Turn:
    """One message of a conversation.

    Attributes:
        role: system, user or assistant.
    """

    role: str
    text: str


@dataclass(frozen=True)
class Conversation:
    """Turns in their order, at least one of them the assistant's.

    Attributes:
        location: the file and the line, for errors.
    """

    turns: tuple[Turn, ...]
    location: str = "a conversation"

    def messages(self) -> list[dict[str, str]]:
        """Return the messages as chat templates read them."""
        return [{"role": turn.role, "content": turn.text} for turn in self.turns]


def conversations(given: str, *, ignore: Iterable[str] = ()) -> Iterator[Conversation]:
    """Read a file or a folder of .jsonl, .json or .parquet.

    A row is `messages` (role, content), sharegpt's `conversations` (from, value), or alpaca's
    `instruction`, `input` and `output`, with `system` and `history` where they are there. Columns
    that only say where a row is from (`id`, `source`, ...) are left out.

    Args:
        ignore: further columns to leave out.

    Raises:
        UserError: there is no row, or one is bad: it is named with its file and line.
    """
    ignored, read = ABOUT | set(ignore), False
    for location, row in rows(given):
        read = True
        yield conversation({key: row[key] for key in row if key not in ignored}, location)
    if not read:
        raise UserError(f"{given} holds no row; expected conversations, one on each line")


def conversation(row: Mapping[str, Any], location: str = "a row") -> Conversation:
    """Return one row as a conversation.

    Raises:
        UserError: its keys or roles are not known, a text is empty, or no assistant speaks.

    Example:
        >>> conversation({"instruction": "2 + 2?", "output": "4"}).turns[1]
        Turn(role='assistant', text='4')
    """
    form = _form(row, location)
    found = {"messages": _of_messages, "sharegpt": _of_sharegpt, "alpaca": _of_alpaca}[form](
        row, location
    )
    return check_conversation(Conversation(tuple(found), location))


def check_conversation(given: Conversation) -> Conversation:
    """Return the same conversation if there is something to learn from it.

    Raises:
        UserError: a turn is empty, the system speaks late, or no assistant speaks.
    """
    for number, turn in enumerate(given.turns, 1):
        if turn.role not in ROLES:
            raise UserError(
                f"{given.location}: turn {number} has the role {short_repr(turn.role)}; expected "
                f"{', '.join(ROLES)}"
            )
        if not turn.text.strip():
            raise UserError(
                f"{given.location}: turn {number} ({turn.role}) is empty; leave that row out"
            )
        if turn.role == SYSTEM and number > 1:
            raise UserError(
                f"{given.location}: turn {number} is the system's; only the first turn can be"
            )
    if all(turn.role != ASSISTANT for turn in given.turns):
        raise UserError(
            f"{given.location} has no turn of the assistant, so nothing can be learned from it; "
            "leave that row out"
        )
    return given


def _form(row: Mapping[str, Any], location: str) -> str:
    keys = {key for key, value in row.items() if value is not None}
    form = next((name for name, (needed, _) in FORMS.items() if needed <= keys), None)
    if form is None:
        raise UserError(
            f"{location} has the keys {short_repr(sorted(keys))}; expected messages, or "
            "conversations, or instruction, input and output"
        )
    needed, allowed = FORMS[form]
    if unknown := sorted(keys - needed - allowed):
        raise UserError(
            f"{location} has the unknown key {short_repr(unknown[0])} beside "
            f"{', '.join(sorted(needed))}; remove it, or name it in ignore"
        )
    return form


def _of_messages(row: Mapping[str, Any], location: str) -> Iterator[Turn]:
    for number, one in enumerate(_list(row["messages"], "messages", location), 1):
        yield _turn(one, ("role", "content"), f"{location}: turn {number}")


def _of_sharegpt(row: Mapping[str, Any], location: str) -> Iterator[Turn]:
    yield from _system(row, location)
    for number, one in enumerate(_list(row["conversations"], "conversations", location), 1):
        turn = _turn(one, ("from", "value"), f"{location}: turn {number}")
        yield Turn(CALLED.get(turn.role, turn.role), turn.text)


def _of_alpaca(row: Mapping[str, Any], location: str) -> Iterator[Turn]:
    yield from _system(row, location)
    for pair in _history(row.get("history"), location):
        yield from (Turn(role, text) for role, text in zip((USER, ASSISTANT), pair, strict=True))
    asked = [_text(row.get(key), key, location) for key in ("instruction", "input")]
    yield Turn(USER, "\n".join(one for one in asked if one.strip()))
    yield Turn(ASSISTANT, _text(row["output"], "output", location))


def _system(row: Mapping[str, Any], location: str) -> Iterator[Turn]:
    text = _text(row.get("system"), "system", location)
    if text.strip():
        yield Turn(SYSTEM, text)


def _history(given: Any, location: str) -> list[list[str]]:
    """Return the earlier questions and answers.

    Some files write the list as a text.
    """
    if isinstance(given, str):
        given = _literal(given.strip() or "[]")
    pairs = [] if given is None else given
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(one, str) for one in pair)
        for pair in pairs
    ):
        raise UserError(
            f"{location}: history is {short_repr(given)}; expected a list of pairs of question and "
            "answer"
        )
    return [list(pair) for pair in pairs]


def _literal(text: str) -> Any:
    for read in (json_of, literal_of):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _turn(given: Any, names: tuple[str, str], location: str) -> Turn:
    if not isinstance(given, Mapping):
        raise UserError(f"{location} is {short_repr(given)}; expected {names[0]} and {names[1]}")
    held = {key for key, value in given.items() if value is not None}
    if held != set(names):
        raise UserError(
            f"{location} has the keys {short_repr(sorted(held))}; expected {names[0]} and "
            f"{names[1]} alone"
        )
    return Turn(
        _text(given[names[0]], names[0], location), _text(given[names[1]], names[1], location)
    )


def _list(given: Any, name: str, location: str) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise UserError(f"{location}: {name} is {short_repr(given)}; expected a list of turns")
    return given


def _text(given: Any, name: str, location: str) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise UserError(f"{location}: {name} is {short_repr(given)}; expected a text")
    return given
