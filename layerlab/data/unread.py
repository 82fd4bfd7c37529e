"""Warnings of files in a folder of texts that are not read, lest a part pass for the whole."""

import logging
import os
from collections.abc import Collection
from pathlib import Path

from layerlab.console.tables import printable

NAMED = 3
# What lies beside texts and is none, by the beginning of its name.
BESIDE = (".", "_", "readme", "license", "licence", "changelog", "notice", "source")
_LOG = logging.getLogger("layerlab")


def describe_unread(root: Path, read: Collection[Path], expected: str) -> tuple[str, ...]:
    """Describe in a sentence what of a folder is passed over; nothing where nothing is.

    Links to other folders are not followed, and count as one thing that is not read.

    Args:
        read: its files that are read.
        expected: the endings of those.
    """
    if not root.is_dir():
        return ()
    known, left = set(read), list[str]()
    for folder, inside, files in os.walk(root):
        inside[:] = [name for name in inside if not name.startswith(".")]
        links = [name for name in inside if Path(folder, name).is_symlink()]
        for name in (*files, *links):
            path = Path(folder, name)
            if path not in known and not name.lower().startswith(BESIDE):
                left.append(path.relative_to(root).as_posix())
    if not left:
        return ()
    named = ", ".join(printable(name) for name in sorted(left)[:NAMED])
    more = f" and {len(left) - NAMED:,} more" if len(left) > NAMED else ""
    return (f"not read in {printable(root.name)}: {named}{more}; read are {expected}",)


def warn_of_unread(root: Path, read: Collection[Path], expected: str) -> None:
    """Warn of what `describe_unread` describes."""
    for warning in describe_unread(root, read, expected):
        _LOG.warning("%s", warning)
