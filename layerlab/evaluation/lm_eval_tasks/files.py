"""Task files of lm-eval, read as data: functions that they name stay names, and nothing runs.

lm-eval imports the module of a function while it reads the file. Here a file is read with what it
includes, and what is handed to lm-eval is what was read and checked.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from layerlab.data.bounded_yaml import NODES, BoundedLoader, check_repeats
from layerlab.errors import UserError
from layerlab.records.parse import check_text
from layerlab.system.files import check_regular
from layerlab.validation import expand_home

ENDINGS = (".yaml", ".yml")
LARGEST = 1 << 20  # bytes; the longest of lm-eval's own has 80,000
DEPTH = 16  # of files that include one another


class Code(str):
    """The name of a function, as `!function` gives it."""


class _Loader(BoundedLoader):
    """YAML as data, with functions as their names."""


_Loader.add_constructor(
    "!function",
    lambda loader, node: Code(loader.construct_scalar(node)),
)


def read_task_file(path: Path) -> dict[str, Any]:
    """Read a task file with the files that it includes; its own lines go before theirs.

    Raises:
        UserError: it cannot be read, includes itself, or is no task.
    """
    found = _read(path, ())
    if not isinstance(found.get("group", found.get("task")), str):
        raise UserError(f"{path} is no task of lm-eval; expected a line task: NAME, or group: NAME")
    return found


def _read(path: Path, outer: tuple[Path, ...]) -> dict[str, Any]:
    file = expand_home(path).resolve()
    if file in outer or len(outer) >= DEPTH:
        raise UserError(
            f"{outer[0]} includes {path} again, or more than {DEPTH} files; break that chain"
        )
    content = _parse(path)
    included = content.pop("include", ())
    merged: dict[str, Any] = {}
    for one in [included] if isinstance(included, str) else included or ():
        if not isinstance(one, str):
            raise UserError(f"{path} includes {one!r}; expected the name of a file")
        base = _read(file.parent / one, (*outer, file))
        base.pop("task_list", None)  # as lm-eval does: it is the included file's alone
        merged |= base
    return merged | content


def _parse(path: Path) -> dict[str, Any]:
    check_regular(path)
    try:
        with expand_home(path).open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise UserError(f"{path} has more than 1 MiB; expected a task file of lm-eval")
        content = yaml.load(raw, Loader=_Loader)
        check_repeats(content)
        for _, value in values(content):
            if isinstance(value, str):
                check_text(value)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; name a task file of lm-eval"
        ) from None
    except UserError:
        raise
    except Exception as error:  # PyYAML lets pass whatever a value of a wrong kind brings about
        message = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} is no YAML of a task: {message[:200]}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no settings; expected a task file of lm-eval")
    return content


def values(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value inside of a configuration with its path; at most `NODES` of them."""
    waiting, seen = [(path, content)], 0
    while waiting and seen < NODES:
        name, value = waiting.pop()
        seen += 1
        yield name, value
        if isinstance(value, Mapping):
            waiting += [(f"{name}.{key}".lstrip("."), one) for key, one in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(name, one) for one in value]
