"""Renumbers the special tokens in a model's settings."""

from collections.abc import Callable, Mapping
from typing import Any

# Beside all that are called something_token_id.
LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")


def renumber(model: Any, numbers: Mapping[int, int]) -> tuple[str, ...]:
    """Give the ids in a model's settings their new numbers.

    An id whose token is gone becomes None, or leaves its list.

    Args:
        numbers: the new id of every token that is left.

    Returns:
        What changed, in words.
    """
    config = model.config
    homes = {
        "config": config,
        "config of the text model": config.get_text_config(),
        "generation_config": getattr(model, "generation_config", None),
    }
    told: list[str] = []
    seen: list[Any] = []
    for home, settings in homes.items():
        if settings is None or any(settings is one for one in seen):
            continue
        seen.append(settings)
        for name, value in list(vars(settings).items()):
            if not _is_id(name) or value is None:
                continue
            now = _move(value, numbers.get)
            if now != value:
                setattr(settings, name, now)
                told.append(f"{name} of the {home}: {value} is now {now}")
    return tuple(told)


def _is_id(name: str) -> bool:
    return not name.startswith("_") and (name.endswith("_token_id") or name in LISTS)


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
