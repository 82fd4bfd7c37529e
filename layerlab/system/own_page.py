"""Tells a page that layerlab wrote from other files, which are not replaced."""

from pathlib import Path

from layerlab.errors import UserError
from layerlab.system.files import read_whole

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


def check_own_files(folder: Path, command: str, page: str, numbers: str, what: str) -> None:
    """Refuse a folder whose page or numbers are not those of an earlier call.

    Args:
        command: that writes them.
        what: they are.

    Raises:
        UserError: it holds something that would be replaced.
    """
    if is_own_page(folder / page, mark_of(command)):
        return
    foreign = next((one for one in (page, numbers) if (folder / one).exists()), None)
    if foreign is not None:
        raise UserError(
            f"{folder} holds something other than {what}: {foreign}; move it away, or name "
            "another folder with --out"
        )
