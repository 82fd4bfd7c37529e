"""Resolves a recipe's relative paths: from the working folder, or beside the recipe."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab.validation import expand_home

HUB = "hf:"
SUITE = "suite:"
DOCUMENTATION = "python-docs"
# Where they lie in the data folder: texts whose documents end in a blank line, or an archive whose
# files are documents.
KEPT = {
    "brown": "brown/brown.txt.gz",
    "wiki-zh": "zh-general/cn_wiki_sample.txt",
    "law-zh": "zh-law-statutes/statutes.tar.gz",
}


def nearby(content: Any, folder: Path) -> Any:
    """Return a recipe's settings as read, with its texts written from the working folder.

    A path stays what it is where it leads to something; so a recipe that is used from its own
    folder keeps every word. One that leads to something from the recipe alone becomes relative to
    the working folder, and names no folder of a machine.

    Args:
        content: tables, lists and values; a `text` in a table is that of a source, a `suite:` of
            `measures`, or of a claim's `measure`, may be of tasks' files, and what a command is to
            `run` has files in it too.
        folder: that the recipe lies in.
    """
    if isinstance(content, Mapping):
        return {key: _near(key, value, folder) for key, value in content.items()}
    return [nearby(one, folder) for one in content] if isinstance(content, list) else content


def _near(key: str, value: Any, folder: Path) -> Any:
    if key == "text" and isinstance(value, str):
        return _write(value, folder)
    if key == "measures" and isinstance(value, list):
        return [_near("measure", one, folder) for one in value]
    if key == "measure" and isinstance(value, str):
        return _write_suite(value, folder)
    if key == "run" and isinstance(value, list):
        return [_write_file(one, folder) if isinstance(one, str) else one for one in value]
    return nearby(value, folder)


def _write_suite(measure: str, folder: Path) -> str:
    """Write the files of a suite's tasks, between commas; other measures have none."""
    if not measure.startswith(SUITE):
        return measure
    parts = measure.removeprefix(SUITE).split(",")
    return SUITE + ",".join(_write_file(word.strip(), folder) for word in parts)


def _write_file(word: str, folder: Path) -> str:
    """Write a word that is a file; a program is found elsewhere."""
    return _write(word, folder) if Path(word).suffix else word


def _write(text: str, folder: Path) -> str:
    if text in (DOCUMENTATION, *KEPT) or text.startswith(HUB):
        return text
    path = expand_home(text)
    near = folder / path
    return text if is_there(path) or not is_there(near) else os.path.relpath(near)


def is_there(path: Path) -> bool:
    """Return whether a path leads to something; what is too long for one does not.

    Example:
        >>> is_there(Path("x" * 9999))
        False
    """
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
