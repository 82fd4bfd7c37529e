"""Values of strict JSON, made of what a program has: no tuple, no NaN, no numpy scalar."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
Record: TypeAlias = Mapping[str, Any]


def json_values(content: Any, *, infinities: bool = True) -> Any:
    """Return content as dicts with texts for keys, lists, texts and finite numbers.

    Args:
        infinities: write them as the texts Infinity and -Infinity; else they are None, as NaN is.

    Example:
        >>> json_values({1: (math.nan, -math.inf)})
        {'1': [None, '-Infinity']}
    """
    if content is None or isinstance(content, bool):
        return content
    if isinstance(content, float):
        return float(content) if math.isfinite(content) else _spell(content, infinities)
    if isinstance(content, str):
        return json_text(content)
    if isinstance(content, int):
        return int(content)
    if isinstance(content, Mapping):
        return {
            json_text(str(key)): json_values(one, infinities=infinities)
            for key, one in content.items()
        }
    if isinstance(content, list | tuple | set | frozenset):
        return [json_values(one, infinities=infinities) for one in content]
    if hasattr(content, "tolist"):  # of numpy
        return json_values(content.tolist(), infinities=infinities)
    return json_text(str(content))


def json_text(text: str) -> str:
    """Return the text with lone surrogates spelled out, since UTF-8 cannot hold them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _spell(number: float, infinities: bool) -> str | None:
    if math.isnan(number) or not infinities:
        return None
    return "Infinity" if number > 0 else "-Infinity"
