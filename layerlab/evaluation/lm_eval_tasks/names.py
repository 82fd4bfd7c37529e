"""lm-eval's own tasks by name: only the files that matter are read, not all 14,000 of them."""

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.engine import HOME, TaskIndex
from layerlab.system.logs import hush
from layerlab.validation import short_repr

# A line that declares a name, or lists it: as a tag, or as a member of a group.
HEAD = re.compile(rb"^[ \t]*(?:-[ \t]*)?(?:task|group|tag)[ \t]*:[ \t]*[\"']?([\w.:+-]+)", re.M)
NAME = re.compile(r"[\w.:+-]+")
LISTED = re.compile(rb"^[ \t]*-[ \t]*[\"']?([\w.:+-]+)[\"']?[ \t]*$", re.M)


def find_entries(names: Iterable[str]) -> dict[str, Any]:
    """Find the tasks, groups and tags of these names, and all that those are made of.

    Args:
        names: of lm-eval's own.

    Returns:
        Entries as `TaskManager.task_index` has them; a name that there is not is not in it.
    """
    found: dict[str, Any] = {}
    wanted, looked = {name for name in names if NAME.fullmatch(name)}, set[str]()
    while wanted := wanted - looked:
        places = _declaring(frozenset(wanted))
        with hush():
            index = TaskIndex.build(sorted({path.parent for path in places}))
        found = {**index, **found}
        looked |= wanted
        wanted = {one for name in wanted for one in _children(found.get(name))}
    return found


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


def _children(entry: Any) -> list[str]:
    """Return the names that a group or tag consists of."""
    if entry is None:
        return []
    return [*member_names(entry.cfg or {}), *sorted(entry.tags)]


def member_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the tasks and groups that a group consists of.

    Example:
        >>> member_names({"group": "a", "task": ["b", {"group": "c", "task": ["d"]}]})
        ['b', 'c', 'd']
    """
    listed = config.get("task")
    found: list[str] = []
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, Mapping):
            found += [str(one[key]) for key in ("group", "task") if isinstance(one.get(key), str)]
            found += member_names(one)
        elif isinstance(one, str):
            found.append(one)
    return found


def _declaring(names: frozenset[str]) -> set[Path]:
    """Return the files in which one of the names is declared or listed, in brackets or not."""
    known = _declared()
    found = {path for name in names for path in known.get(name, ())}
    for name in names - known.keys():  # a tag in brackets
        word = rb"(?<![\w./+-])" + re.escape(name.encode()) + rb"(?![\w./+-])"
        whole = re.compile(rb"^[ \t]*(?:task|group|tag)[ \t]*:[ \t]*\[[^\]]*" + word, re.M)
        found |= {path for path, text in _texts().items() if whole.search(text)}
    return found


@cache
def _declared() -> dict[str, set[Path]]:
    """Return in which files each name is declared or listed."""
    found: dict[str, set[Path]] = {}
    for path, text in _texts().items():
        for word in (*HEAD.findall(text), *LISTED.findall(text)):
            found.setdefault(word.decode("utf-8", "replace"), set()).add(path)
    return found


@cache
def _texts() -> dict[Path, bytes]:
    """Read every task file of lm-eval, 7 MB, without parsing one."""
    files = (path for path in sorted(HOME.rglob("*")) if "yaml" in path.name and path.is_file())
    return {path: path.read_bytes() for path in files}
