"""Names that lm-eval's own task files declare, found without importing lm-eval."""

import difflib
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from io import FileIO
from pathlib import Path

from layerlab.errors import UserError
from layerlab.validation import short_repr

# A line that declares a name, or lists it: as a tag, or as a member of a group.
HEAD = re.compile(rb"^[ \t]*(?:-[ \t]*)?(?:task|group|tag)[ \t]*:[ \t]*[\"']?([\w.:+-]+)", re.M)
NAME = re.compile(r"[\w.:+-]+")
LISTED = re.compile(rb"^[ \t]*-[ \t]*[\"']?([\w.:+-]+)[\"']?[ \t]*$", re.M)


def find_declaring_files(names: frozenset[str]) -> set[Path]:
    """Return the files in which one of the names is declared or listed, in brackets or not."""
    index = _index_names()
    found = {path for name in names for path in index.get(name, ())}
    for name in names - index.keys():  # a tag in brackets
        word = rb"(?<![\w./+-])" + re.escape(name.encode()) + rb"(?![\w./+-])"
        pattern = re.compile(rb"^[ \t]*(?:task|group|tag)[ \t]*:[ \t]*\[[^\]]*" + word, re.M)
        found |= {path for path, text in _texts().items() if pattern.search(text)}
    return {Path(path) for path in found}


def check_name(name: str) -> None:
    """Refuse a name that stands in none of lm-eval's task files.

    Raises:
        UserError: it stands in none.
    """
    here = NAME.fullmatch(name) and any(name.encode() in text for text in _texts().values())
    if not here or not find_declaring_files(frozenset({name})):
        raise refuse_name(name)


def refuse_name(name: str) -> UserError:
    """Return the error that a name is none of lm-eval's, with the nearest that is."""
    heads = (word for text in _texts().values() for word in HEAD.findall(text))
    known = sorted({word.decode("utf-8", "replace") for word in heads})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}, " if near else "expected a name that lm-eval ls tasks lists, "
    return UserError(
        f"lm-eval has no task, group or tag {short_repr(name)}; {hint}or a task file such as "
        "my_task.yaml"
    )


@cache
def _index_names() -> dict[str, set[str]]:
    """Return in which files each name is declared or listed."""
    found: dict[str, set[str]] = {}
    for path, text in _texts().items():
        for word in (*HEAD.findall(text), *LISTED.findall(text)):
            found.setdefault(word.decode("utf-8", "replace"), set()).add(path)
    return found


@cache
def _texts() -> dict[str, bytes]:
    """Read every task file of lm-eval, 7 MB, without parsing one."""
    package = find_spec("lm_eval")  # that of lm_eval.tasks would import it
    assert package is not None, "without lm-eval nobody asks for its names"
    home = Path(str(package.origin)).parent / "tasks"
    return {path: _read(path) for path in _files(str(home))}


def _files(folder: str) -> Iterator[str]:
    """Yield the task files in a folder and those inside.

    Without pathlib, which takes half a second more for all of them, as it does to read them.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            elif "yaml" in entry.name and entry.is_file():
                yield entry.path


def _read(path: str) -> bytes:
    with FileIO(path) as file:
        return file.readall()
