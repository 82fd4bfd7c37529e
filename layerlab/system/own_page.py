"""Tells a page that layerlab wrote from other files, which are not replaced."""

import os
from collections.abc import Sequence
from pathlib import Path

from layerlab.errors import UserError
from layerlab.system.files import check_link, check_links, read_whole

# Stands at the head of every page, before the name of its command.
BRAND = "<b>layerlab</b>"


def is_own_page(file: Path, mark: str = BRAND) -> bool:
    """Return whether a file is a page that was written here.

    Args:
        mark: of pages of this kind, as HTML.

    Raises:
        UserError: it is a pipe or a device, or too large for a page.
    """
    try:
        return mark.encode() in read_whole(file)
    except OSError:
        return False


def mark_of(command: str) -> str:
    """Return the mark of a command's pages."""
    return f"{BRAND}<span> {command}</span>"


def check_own_files(folder: Path, command: str, names: Sequence[str], what: str) -> None:
    """Refuse a folder whose files of these names are not those of an earlier call.

    Args:
        command: that writes them.
        names: of all files that it writes, the page first.
        what: they are.

    Raises:
        UserError: it holds something that would be replaced, or a link that would be followed.
    """
    page, *_ = names
    if not is_own_page(folder / page, mark_of(command)):
        foreign = next((one for one in names if os.path.lexists(folder / one)), None)
        if foreign is not None:
            raise UserError(
                f"{folder} holds something other than {what}: {foreign}; move it away, or name "
                "another folder with --out"
            )
    check_own_links(folder, names)


def check_own_links(folder: Path, names: Sequence[str]) -> None:
    """Refuse links, pipes and devices at these names of a folder, and inside folders there.

    Raises:
        UserError: there is one.
    """
    for one in names:
        check_link(folder / one, folder)
        check_links(folder / one)
