"""Parses JSON, TOML, tables and values from outside; any fault is one kind of error."""

import ast
import csv
import hashlib
import io
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.system.files import read_whole
from layerlab.validation import find_twice, short_repr

if TYPE_CHECKING:
    from _csv import Reader

    from pydantic import ValidationError

DIGEST = "digest"
# A key of a hundred parts with points between them.
_DEEP = re.compile(r"(?<![\w-])[\w-]+(?:[ \t]*\.[ \t]*[\w-]+){100}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of an object, each key of which stands there once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = find_twice(name for name, _ in pairs)
        raise ValueError(f"it names the key {short_repr(twice)} twice")
    return found


# Levels of what is read. What walks through it calls itself, and since Python 3.14 the parser reads
# more of them than Python can call.
DEEPEST = 100
# Kept, since it takes as long to make one as to read a short row.
DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def json_of(text: str | bytes, **options: Any) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, nested too deeply, has a number of thousands of digits, or names
            a key twice, of which each reader takes another.

    Example:
        >>> json_of("[" * 200 + "]" * 200)
        Traceback (most recent call last):
        ValueError: it is nested too deeply
        >>> json_of('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: it names the key 'a' twice
    """
    try:
        if isinstance(text, str) and not options:
            found = DECODER.decode(text)
        else:
            found = json.loads(text, object_pairs_hook=_unique, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    openings = text.count("[") + text.count("{") if isinstance(text, str) else len(text)
    if openings > DEEPEST and _is_deeper(found):
        raise ValueError("it is nested too deeply")
    return found


def _is_deeper(found: Any) -> bool:
    """Return whether there are more than `DEEPEST` levels of tables and lists."""
    level = [found] if isinstance(found, dict | list) else []
    for _ in range(DEEPEST):
        inside = (one.values() if type(one) is dict else one for one in level)
        level = [one for each in inside for one in each if type(one) is dict or type(one) is list]
    return bool(level)


def check_text(found: Any) -> Any:
    r"""Return parsed JSON unchanged, if every text in it is valid Unicode.

    Raises:
        ValueError: one holds half of a surrogate pair, which JSON can name and UTF-8 cannot hold.

    Example:
        >>> check_text(json_of(r'{"a": ["\ud83d"]}'))
        Traceback (most recent call last):
        ValueError: it holds half of a surrogate pair ('\ud83d'), which is no text
    """
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(
            f"it holds half of a surrogate pair ({half!r}), which is no text"
        ) from None
    return found


def csv_of(text: str) -> "Reader":
    """Parse the records of a table of comma-separated cells, each as long as it likes.

    Iterating raises csv.Error at a record that is none.

    Example:
        >>> [len(cell) for cell in next(csv_of("a," + "b" * 200_000))]
        [1, 200000]
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # 131,072 unless told
    return csv.reader(io.StringIO(text, newline=""), strict=True)


def toml_of(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: as for JSON.

    Example:
        >>> toml_of("a = " + "[" * 9999)
        Traceback (most recent call last):
        ValueError: it is nested too deeply
        >>> toml_of("a" + ".a" * 1500 + " = 1")
        Traceback (most recent call last):
        ValueError: it is nested too deeply
    """
    if _DEEP.search(text):  # which tomllib follows for minutes, part by part
        raise ValueError("it is nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def quote_toml(text: str) -> str:
    r"""Quote a text for TOML; invisible characters are escaped.

    Example:
        >>> print(quote_toml("a\N{RIGHT-TO-LEFT OVERRIDE}b"))
        "a\u202eb"
    """
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(one if one.isprintable() else _escape(ord(one)) for one in quoted)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def read_json(path: Path, **options: Any) -> Any:
    """Read a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: as for its text.
        UserError: it is a device, a pipe or a socket, or too large.
    """
    return json_of(read_whole(path).decode(), **options)


def find_table(path: Path) -> dict[str, Any]:
    """Return the table that a JSON file holds; an empty one where it cannot be read as one."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def literal_of(text: str) -> Any:
    """Parse a Python literal.

    Raises:
        ValueError: it is none.

    Example:
        >>> literal_of("{[]}")
        Traceback (most recent call last):
        ValueError: it is no value of Python's
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("it is no value of Python's") from None


def seal(content: Mapping[str, Any], *beside: bytes) -> dict[str, Any]:
    """Return a table with a digest over all of it.

    Args:
        beside: what else the digest covers, such as the files that the table tells of.
    """
    plain = json.loads(json.dumps(content, default=str))
    return {**plain, DIGEST: digest_of(plain, *map(_sha256, beside))}


def unseal(content: Any, *beside: bytes) -> dict[str, Any]:
    """Check the digest of a sealed table, and return it without.

    Whoever can write it can also seal it anew.

    Raises:
        ValueError: it is not what was sealed.

    Example:
        >>> unseal(seal({"n": 1}))
        {'n': 1}
        >>> unseal({**seal({"n": 1}), "n": 2})
        Traceback (most recent call last):
        ValueError: it is not what was written, or is of an earlier version
    """
    if not isinstance(content, dict) or content.get(DIGEST) != digest_of(
        content, *map(_sha256, beside)
    ):
        raise ValueError("it is not what was written, or is of an earlier version")
    return {name: value for name, value in content.items() if name != DIGEST}


def check_digest(content: Any) -> Any:
    """Check the digest of a table, where it has one, and return it without.

    Files of earlier versions have none, and are believed.

    Raises:
        ValueError: it is no table, or not what was sealed.

    Example:
        >>> check_digest({"n": 1}), check_digest(seal({"n": 2}))
        ({'n': 1}, {'n': 2})
    """
    if not isinstance(content, dict):
        raise ValueError("it holds no table")
    return unseal(content) if content.get(DIGEST) else content


def get_table(content: Any, key: str) -> Mapping[str, Any]:
    """Return a table inside a table; an empty one where there is none.

    Example:
        >>> get_table({"train": {"seed": 1}}, "train"), get_table({"train": 3}, "train")
        ({'seed': 1}, {})
        >>> get_table([], "train")
        {}
    """
    found = content.get(key) if isinstance(content, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def digest_of(content: Mapping[str, Any], *beside: bytes) -> str:
    """Return the digest of a table, its digest entry left out, and of the files beside it.

    Args:
        beside: SHA-256 of each file.
    """
    own = {name: value for name, value in content.items() if name != DIGEST}
    hasher = hashlib.sha256(json.dumps(own, sort_keys=True).encode())
    for one in beside:
        hasher.update(one)
    return hasher.hexdigest()


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def explain(error: "ValidationError") -> str:
    """Describe the first fault of a table in a few words."""
    one = error.errors()[0]
    key = ".".join(str(part) for part in one["loc"])
    message = one["msg"].removeprefix("Value error, ")
    if one["type"] == "missing":
        return f"it has no {key}"
    if one["type"] == "model_type" and not key:
        return "it is no table"
    return f"its {key} is {short_repr(one['input'])}: {message}" if key else message


def one_line(error: BaseException) -> str:
    """Return an error's message as one line of at most 200 characters."""
    message = " ".join(str(error).split())
    # The text of these is a name or a number, and says nothing alone.
    short = isinstance(error, LookupError | ArithmeticError | AttributeError | TypeError)
    name = type(error).__name__
    return (f"{name}: {message}" if short else message or name)[:200]
