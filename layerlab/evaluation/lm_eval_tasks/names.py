"""lm-eval's own tasks by name: only the files that matter are read, not all 14,000 of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.declarations import NAME, find_declaring_files
from layerlab.evaluation.lm_eval_tasks.engine import TaskIndex
from layerlab.system.logs import hush
from layerlab.validation import short_repr

# Lists of a task, what stands in them, and by what that is known.
NAMED = {
    "task": ("tasks", "group", "task"),
    "metric_list": ("metrics", "metric"),
    "filter_list": ("filters", "name"),
}


def find_entries(names: Iterable[str]) -> dict[str, Any]:
    """Find the tasks, groups and tags of these names, and all that those are made of.

    Args:
        names: of lm-eval's own.

    Returns:
        Entries as `TaskManager.task_index` has them; a name that there is not is not in it.
    """
    found: dict[str, Any] = {}
    wanted, past = {name for name in names if NAME.fullmatch(name)}, set[str]()
    while wanted := wanted - past:
        places = find_declaring_files(frozenset(wanted))
        with hush():
            index = TaskIndex.build(sorted({path.parent for path in places}))
        found = {**index, **found}
        past |= wanted
        wanted = {one for name in wanted for one in _children(found.get(name))}
    return found


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


def check_names(config: Mapping[str, Any], what: str) -> None:
    """Refuse two tasks, metrics or filters of one name: lm-eval would keep the last alone.

    Raises:
        UserError: a task, or a group's task, declares them.

    Example:
        >>> check_names({"group": "a", "task": ["b", {"task": "c"}, "b"]}, "the file a.yaml")
    """
    for part, (called, *keys) in NAMED.items():
        listed, earlier = config.get(part), dict[str, Mapping[str, Any]]()
        inside = (
            [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
        )
        for one in inside:
            for name in (one[key] for key in keys if isinstance(one.get(key), str)):
                if earlier.setdefault(name, one) != one:
                    raise UserError(
                        f"{what} declares two {called} called {short_repr(name)}, of which lm-eval "
                        "keeps the last; leave one out, or give it another name"
                    )
            if part == "task":
                check_names(one, what)
