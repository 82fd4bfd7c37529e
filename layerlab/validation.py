"""Which values an option takes, declared once: it checks, and it says so in words."""

import difflib
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

KINDS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    int | None: "None or a whole number",
    str | None: "None or a text",
    str | int | None: "None, a text or a whole number",
}


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """The values that one option takes.

    Attributes:
        kind: their type; a whole number also stands for a float.
        choices: all of them, where they can be listed.
        above: every number is larger than this.
        least: the smallest number.
        most: the largest number.
    """

    kind: type | UnionType
    choices: tuple[Any, ...] = ()
    above: int | float | None = None
    least: int | float | None = None
    most: int | float | None = None

    def __contains__(self, value: Any) -> bool:
        if not self._is_kind(value) or (self.choices and value not in self.choices):
            return False
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            (isinstance(value, int) or abs(value) <= sys.float_info.max)
            and (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
        )

    def __str__(self) -> str:
        if self.choices:
            return " or ".join(map(repr, self.choices))
        limits = {"above": self.above, "at least": self.least, "at most": self.most}
        text = " and ".join(
            f"{word} {limit}" for word, limit in limits.items() if limit is not None
        )
        kind = KINDS.get(self.kind) or getattr(self.kind, "__name__", str(self.kind))
        return f"{kind} {text}".rstrip()

    def _is_kind(self, value: Any) -> bool:
        if self.kind is not bool and isinstance(value, bool):
            return False
        if self.kind is float and isinstance(value, int):
            return abs(value) <= sys.float_info.max
        return isinstance(value, self.kind)


def suggest(given: object, known: Iterable[str]) -> str:
    """Return the question whether the nearest of the known names was meant; empty if none is near.

    Example:
        >>> suggest("lama", ["gpt2", "llama"]), suggest("x", ["gpt2", "llama"])
        ("did you mean 'llama'? ", '')
    """
    near = difflib.get_close_matches(str(given), list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def find_twice(names: Iterable[str]) -> str | None:
    """Return the first name that stands there a second time.

    Example:
        >>> find_twice(["a", "b", "a"])
        'a'
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def short_repr(value: Any) -> str:
    """Return a value as an error repeats it: on one line, and not longer than a reader takes in.

    Example:
        >>> short_repr("silu"), len(short_repr("x" * 1000)) <= 64
        ("'silu'", True)
    """
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no whole number of more than 4300 digits
        text = "a number of thousands of digits"
    except RecursionError:
        text = "a value that is nested too deeply to show"
    return text if len(text) <= 64 else f"{text[:40]}...{text[-20:]}"


def expand_home(given: str | os.PathLike[str]) -> Path:
    """Return a path with its ~ as a folder; that of nobody stays, and leads to no file.

    Example:
        >>> expand_home("~nobody-here/text.txt").name
        'text.txt'
    """
    return Path(os.path.expanduser(given))  # noqa: PTH111 - Path.expanduser raises RuntimeError


def join_words(words: Iterable[str]) -> str:
    r"""Return words as a shell reads them, what nobody sees in them, as colours, by its code.

    Example:
        >>> print(join_words(["a b", "red" + chr(27)]))
        'a b' $'red\x1b'
    """
    return " ".join(
        shlex.quote(one) if one.isprintable() else f"$'{''.join(map(_escape, one))}'"
        for one in words
    )


def _escape(sign: str) -> str:
    if sign.isprintable():
        return f"\\{sign}" if sign in "\\'" else sign
    return "".join(f"\\x{one:02x}" for one in os.fsencode(sign))
