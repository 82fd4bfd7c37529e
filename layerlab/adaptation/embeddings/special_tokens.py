"""Renumbers the special tokens in a model's settings."""

from collections.abc import Callable, Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from layerlab.errors import UserError
from layerlab.loading.generation import make_savable

# Beside all that are called something_token_id.
LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")


def renumber(model: Any, numbers: Mapping[int, int]) -> tuple[str, ...]:
    """Give the ids in a model's settings their new numbers.

    An id whose token is gone becomes None, or leaves its list.

    Args:
        numbers: the new id of every token that is left.

    Returns:
        What changed, in words.

    Raises:
        UserError: a token is gone that a model of this family cannot be without.
    """
    changes: list[str] = []
    for home, settings, name, value in _list_settings(model):
        now = _move(value, numbers.get)
        if now != value:
            try:
                setattr(settings, name, now)
            except StrictDataclassError as error:
                raise UserError(
                    f"the new tokenizer lacks token {value} of the base, {name} of the {home}, "
                    f"and {type(settings).__name__} takes no model without one; expected a "
                    "tokenizer that keeps it"
                ) from error
            changes.append(f"{name} of the {home}: {value} is now {now}")
    if getattr(model, "generation_config", None) is not None:
        make_savable(model)
    return tuple(changes)


def list_ids(model: Any) -> set[int]:
    """Return all token ids that a model's settings name."""
    found: set[int] = set()

    def note(number: int) -> int:
        found.add(number)
        return number

    for *_, value in _list_settings(model):
        _move(value, note)
    return found


def _list_settings(model: Any) -> list[tuple[str, Any, str, Any]]:
    """Return each setting that names tokens: its home in words, the home, its name, its value."""
    homes = {
        "config": model.config,
        "config of the text model": model.config.get_text_config(),
        "generation_config": getattr(model, "generation_config", None),
    }
    alone = {id(settings): home for home, settings in reversed(homes.items())}
    return [
        (home, settings, name, value)
        for home, settings in homes.items()
        if settings is not None and alone[id(settings)] == home
        for name, value in vars(settings).items()
        if value is not None and not name.startswith("_")
        if name.endswith("_token_id") or name in LISTS
    ]


def _move(value: Any, number: Callable[[int], int | None]) -> Any:
    """Return a value with the new numbers; a list that loses all of its ids is None."""
    if isinstance(value, bool) or not isinstance(value, int | list | tuple):
        return value
    if isinstance(value, int):
        return number(value) if value >= 0 else value
    if value and all(isinstance(one, list | tuple) for one in value):
        # A sequence of which one token is gone can no longer come up.
        rows = [[number(one) for one in row] for row in value]
        return [row for row in rows if None not in row] or None
    kept = [now for one in value if (now := _move(one, number)) is not None]
    return kept or None
