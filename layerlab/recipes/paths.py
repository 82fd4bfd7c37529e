"""Resolves a recipe's relative paths: from the working folder, or beside the recipe."""

import os
import re
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
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<!\.json)")


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


def file_name(given: str) -> str:
    """Return a text by its file name alone, without the folder.

    Example:
        >>> file_name("/data/corpus.txt"), file_name("hf:Salesforce/wikitext")
        ('corpus.txt', 'hf:Salesforce/wikitext')
    """
    return given if given.startswith(HUB) else Path(given).name or given


def drop_folders(recipe: Mapping[str, Any], *, absolute: bool = True) -> dict[str, Any]:
    """Return a recipe's settings with its texts, tokenizer and Python files by their names alone.

    What is in them decides a run, and not where they lie: digests tell.

    Args:
        absolute: of paths that do not begin at the working folder, too.

    Example:
        >>> drop_folders({"data": {"sources": [{"text": "a/b.txt"}], "tokenizer": "org/name"}})
        {'data': {'sources': [{'text': 'b.txt'}], 'tokenizer': 'org/name'}}
    """

    def name(given: str) -> str:
        return given if not absolute and expand_home(given).is_absolute() else file_name(given)

    found = {table: {**recipe[table]} for table in ("data", "model") if table in recipe}
    data, model = found.get("data", {}), found.get("model", {})
    for part in ("sources", "eval_sources"):
        if data.get(part):
            data[part] = [
                {**one, "text": name(one["text"])} if "text" in one else one for one in data[part]
            ]
    tokenizer = data.get("tokenizer")
    if isinstance(tokenizer, str) and not _HUB_NAME.fullmatch(tokenizer):
        data["tokenizer"] = name(tokenizer)
    if model.get("load"):
        model["load"] = [file_name(one) for one in model["load"]]
    return {**recipe, **found}


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
