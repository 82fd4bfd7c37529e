"""Tables that are kept to save work: believed only where they are what was written there.

The digest covers the name of the file, so that none stands for another.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import DamageWarning, UserError
from layerlab.records.parse import one_line, read_json, seal, unseal
from layerlab.system.files import check_link, write_file

Check = Callable[[dict[str, Any]], object]


def write_kept(file: Path, content: Mapping[str, Any]) -> None:
    """Write a table with a digest.

    Raises:
        UserError: it cannot be written, or is a link.
    """
    check_link(file, file.parent)
    write_file(file, json.dumps(seal(content, file.name.encode())))


def read_kept(file: Path, check: Check = lambda found: None) -> dict[str, Any] | None:
    """Read a table that was kept, or return None where there is none; one that is damaged is none.

    Args:
        check: raises a ValueError, a LookupError or a TypeError where the content does not fit.
    """
    if not file.exists():
        return None
    try:
        found = unseal(read_json(file), file.name.encode())
        check(found)
    # Of many kinds: a table that was sealed anew may hold anything.
    except (
        *(OSError, ValueError, LookupError, TypeError),
        *(AttributeError, ArithmeticError, UserError),
    ) as error:
        warn_of_damage(f"{file} does not count: {one_line(error)}")
        return None
    return found


def warn_of_damage(message: str) -> None:
    """Say in one line, once, that something kept is not what was written."""
    warnings.warn(message, DamageWarning, stacklevel=3)
