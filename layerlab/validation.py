"""Values that an option or an argument takes, declared once: checked, and said in errors."""

import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from signal import SIGINT
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from layerlab.errors import UserError

# An option in an error: within a command, said in Python beside it, or alone with a word behind it.
OPTION = re.compile(
    r"layerlab [a-z]+ [^;:,`]*"
    r"|--[a-z-]+(?: [^\s(]+)? \(in Python ([^)]*)\)"
    r"|--([a-z][a-z-]*)(?: ('[^']*'|\"[^\"]*\"|[^\s'\"]*[^\s'\",;:.)]))?"
)
# Behind "type" a word is the value of the option before it, other than these.
WORDS = frozenset("alone and as for if in is of or out that to what which with".split())
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


@cache
def check_arguments(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a public function that takes no argument but of the kind that it declares.

    Its errors name arguments, not options of the command line; numbers of numpy become Python's.

    Args:
        function: what checks the values themselves.
        name: under which it is public, with its package.
    """
    declared = signature(function)
    kinds = {
        one.name: one.annotation
        for one in declared.parameters.values()
        if one.kind is not Parameter.VAR_KEYWORD
    }

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        args, options = tuple(map(_plain, args)), {k: _plain(one) for k, one in options.items()}
        try:
            given = declared.bind(*args, **options).arguments
        except TypeError:  # as Python tells it
            return function(*args, **options)
        for argument, value in given.items():
            kind = kinds.get(argument, Any)
            if not _fits(value, kind):
                expected = " or ".join(dict.fromkeys(_words(kind)))
                raise UserError(
                    f"{argument} is {short_repr(value)}; expected {expected}: type help({name})"
                )
        try:
            return function(*args, **options)
        except UserError as error:
            error.args = (say_in_python(str(error), kinds), *error.args[1:])
            raise
        except SystemExit as stop:  # which would end an interactive session
            if stop.code != 128 + SIGINT:
                raise
            raise KeyboardInterrupt("what is finished is kept: the same call goes on") from None

    call.__module__, _, call.__qualname__ = name.rpartition(".")
    return call


def say_in_python(text: str, kinds: Mapping[str, Any]) -> str:
    """Return an error with the options that stand for arguments written as Python takes them.

    Args:
        kinds: the annotations of the arguments by name.

    Example:
        >>> say_in_python("type --seed 3, or leave --arms out", {"seed": int, "arms": str})
        'type seed=3, or leave arms= out'
    """
    return OPTION.sub(partial(_write_argument, kinds), text)


def _write_argument(kinds: Mapping[str, Any], found: re.Match[str]) -> str:
    python, option, word = found.groups()
    name = (option or "").replace("-", "_")
    if python or name not in kinds:
        return python or found[0]
    kind, behind = kinds[name], "" if word is None else f" {word}"
    bare = f"{name}=" if found.start() else name
    typed = re.search(r"\btype\b(?:(?!\bleave\b)[^;])*$", found.string[: found.start()])
    comma = "," if found.string.startswith(" --", found.end()) else ""
    if kind is bool:
        return f"{name}=True{behind}{comma}" if typed else bare + behind
    is_value = word is not None and (
        re.search(r"[\d='\"]|^[A-Z]+$", word) or (typed and word not in WORDS)
    )
    if word is None or not is_value:
        return bare + behind
    value = word[1:-1] if word[0] in "'\"" else word
    if _fits(1, kind) and re.fullmatch(r"[\d.e-]+", value):
        return f"{name}={value}{comma}"
    several = not _fits(value, kind) or ("," in value and "(" not in value and _fits([""], kind))
    return f"{name}={value.split(',') if several else value!r}{comma}"


def _plain(value: Any) -> Any:
    """Return a number of numpy as Python's; numbers of Python, and all else, as they are."""
    if not isinstance(value, Real) or isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated kind; of what is used up by reading, its type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    plain = origin or (NoneType if kind is None else kind)
    if plain in (Any, Parameter.empty) or not isinstance(plain, type):
        return True
    if not isinstance(value, plain):
        return False
    if isinstance(value, Mapping) and inner and not issubclass(plain, Mapping):
        return False  # nor is a table one of its names
    if isinstance(value, str | bytes | bytearray):
        return not inner  # a text is no list of its letters
    if not inner or not isinstance(value, Iterable) or isinstance(value, Iterator):
        return True
    return plain is os.PathLike or all(_fits(one, inner[0]) for one in value)


def _words(kind: Any) -> Iterator[str]:
    """Yield what an annotated kind is called, each part of a union by itself."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for one in inner:
            yield from _words(one)
    elif origin is Literal:
        yield from map(repr, inner)
    elif origin is Mapping:
        yield "a dict"
    elif origin is os.PathLike:
        yield "a path"
    elif isinstance(origin, type) and issubclass(origin, Iterable) and inner:
        yield f"a list of {' or '.join(f'{one[2:]}s' for one in dict.fromkeys(_words(inner[0])))}"
    elif kind is NoneType:
        yield "None"
    elif origin is Callable:
        yield "a function"
    else:
        yield KINDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"


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

    Raises:
        UserError: it is empty, as where a shell fills in a variable that is not set, or no path.

    Example:
        >>> expand_home("~nobody-here/text.txt").name
        'text.txt'
    """
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"the path is {short_repr(given)}; expected a text or a pathlib.Path")
    if not os.fspath(given):
        raise UserError("an empty path was given; name a file or a folder (. is this one)")
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
