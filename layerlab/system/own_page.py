"""Tells a page that layerlab wrote from other files, which are not replaced."""

from pathlib import Path

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
