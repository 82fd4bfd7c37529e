"""The index of a folder as a function: every run, comparison and report that it holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError
from layerlab.records.index.entry import Entry
from layerlab.records.index.search import find_entries
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.pages.runs import MARK, PAGE, render
from layerlab.system.files import check_file, check_link, write_file
from layerlab.system.own_page import is_own_page
from layerlab.validation import short_repr

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class RunIndex:
    """Entries of a folder, newest first.

    Attributes:
        folder: that was searched.
        entries: runs, comparisons, reports, evaluations, adaptations and studies.
        remarks: on what was not looked into.
    """

    folder: Path
    entries: tuple[Entry, ...]
    remarks: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Return how many entries there are."""
        return len(self.entries)

    def table(self, most: int | None = None) -> "RenderableType":
        """Return what a terminal shows; times are in UTC.

        Args:
            most: entries that are shown, the newest; all of them where it is left out.
        """
        from layerlab.console.run_index import render_index

        return render_index(self.entries, self.remarks, self.folder, most)

    def to_dict(self) -> dict[str, Any]:
        """Return the index as plain values."""
        return {
            "folder": str(self.folder),
            "entries": [one.to_dict() for one in self.entries],
            "remarks": list(self.remarks),
        }

    def save(self, place: str | PathLike[str], lang: str = ENGLISH) -> Path:
        """Write the index as one page, whose links are relative to where it lies.

        Args:
            place: an HTML file, or a folder, in which it is runs.html.
            lang: of the page.

        Returns:
            The page.

        Raises:
            UserError: it cannot be written, or something else than an index is there.
        """
        page = check_page(place, lang)
        write_file(page, render(self.to_dict(), page.absolute().parent, lang))
        return page


def list_runs(folder: str | PathLike[str] = ".") -> RunIndex:
    """List everything that layerlab wrote into a folder and below, newest first.

    Nothing is loaded or computed; a link inside the folder is not followed.

    Args:
        folder: that is searched.

    Raises:
        UserError: there is no such folder.
    """
    root = Path(folder)
    entries, remarks = find_entries(root)
    return RunIndex(root, tuple(entries), tuple(remarks))


def check_page(path: str | PathLike[str], lang: str = ENGLISH) -> Path:
    """Return the file that a page is written to.

    Raises:
        UserError: there is no page in this language, or a file is there that is no index.
    """
    language(lang)
    page = Path(path)
    if page.suffix.lower() not in {".html", ".htm"} or page.is_dir():
        page = page / PAGE
    if page == Path(path):
        check_file(page)
    elif page.parent.is_dir():
        check_link(page, page.parent)
    if page.exists() and not is_own_page(page, MARK):
        raise UserError(
            f"{short_repr(str(page))} is there and is no page of layerlab runs; "
            "name another file: type for example layerlab runs --html runs.html"
        )
    return page
