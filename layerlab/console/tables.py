"""Text and tables for a terminal; what came from outside is never markup, nor steers it."""

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

# A column of words asks for no more than this: longer ones go on in the next line.
WORDS = 16
# What stands before the content of a line: spaces, or a heading and two spaces at least.
_LEAD = re.compile(r"(?: *\S+(?: \S+){0,3} {2,})| *")
GAP = 2


def printable(given: str, most: int | None = 2000) -> str:
    r"""Return a text on one line, without control characters.

    Args:
        most: characters of the text that are kept; None keeps all.

    Example:
        >>> printable("a\x1b[31m\nb"), printable("a\tbcd", 3)
        ('a [31m b', 'a b')
    """
    return "".join(one if one.isprintable() else " " for one in given[:most])


def say(text: str, *, err: bool = False) -> None:
    """Print lines without control characters.

    Args:
        err: on standard error.
    """
    for line in text.split("\n"):
        print(printable(line, None), file=sys.stderr if err else sys.stdout, flush=True)


def note_printer(visible: bool) -> "Callable[[str], None]":
    """Return what prints a note on standard error, or what prints nothing."""
    return partial(say, err=True) if visible else lambda text: None


def wrap_lines(text: str, width: int) -> str:
    """Wrap lines between words; what goes on stands below where the line's content begins.

    A word that is longer, such as a path, stays whole, so that it can be copied.

    Example:
        >>> print(wrap_lines("keep    the first and the last", 20))
        keep    the first
                and the last
    """
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * _LEAD.match(line).end(),  # type: ignore[union-attr]
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def say_wrapped(text: str) -> None:
    """Print lines without control characters, wrapped at the terminal's width."""
    say(wrap_lines(text, shutil.get_terminal_size().columns))


def show(content: "RenderableType | Callable[[int], RenderableType]", *, wrap: bool = True) -> None:
    """Print anything rich can draw; control characters other than styles are removed.

    Args:
        content: drawn as it is, or what draws it for a width in characters.
        wrap: at the terminal's width.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    drawn = content(console.width) if callable(content) else content
    console.print(_Steady(drawn), soft_wrap=not wrap)


def show_json(content: Any, indent: int = 1) -> None:
    """Print JSON with control characters escaped.

    Args:
        content: a text is JSON already.
    """
    if not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False, indent=indent)
    say("\n".join(_escape(line) for line in content.rstrip("\n").split("\n")))


def show_result(
    found: Any,
    as_json: bool,
    drawn: "RenderableType | Callable[[int], RenderableType]",
    *lines: str,
    indent: int = 1,
) -> None:
    """Print a result as JSON, or what a reader sees of it.

    Args:
        found: JSON values, or what has them as `to_dict`.
        drawn: as for `show`; a text is wrapped.
        lines: that follow it.
    """
    if as_json:
        show_json(found.to_dict() if hasattr(found, "to_dict") else found, indent)
        return
    say_wrapped(drawn) if isinstance(drawn, str) else show(drawn)
    for line in lines:
        say(line)


def _escape(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)


class _Steady:
    """Something drawn whose control characters, styles left aside, are removed."""

    def __init__(self, content: "RenderableType") -> None:
        self.content = content

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> Iterable["Segment"]:
        from rich.segment import Segment

        for text, style, control in console.render(self.content, options):
            kept = "\n".join(printable(line, None) for line in text.split("\n"))
            yield Segment(text if control else kept, style, control)


def plain(given: str, style: str = "") -> "Text":
    """Return text on one line, without markup and escape sequences."""
    from rich.text import Text

    return Text(" ".join(printable(given, None).split()), style=style)


def grid(
    headings: Sequence[str], rows: Iterable[Sequence["str | Text"]], wrapped: Collection[str] = ()
) -> "Table":
    """Return a table with text aligned to the left and numbers to the right.

    Args:
        wrapped: headings of columns that may go on in the next line.
    """
    from rich.table import Table

    found = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for name in headings:
        left = name in wrapped
        found.add_column(
            plain(name), justify="left" if left else "right", no_wrap=not left, overflow="fold"
        )
    for row in rows:
        found.add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in row))
    return found


def add_title(title: str, content: "Table") -> "Table":
    """Return a table below its name."""
    content.title, content.title_justify = plain(title, "bold"), "left"
    return content


def grids(
    headings: Sequence[str],
    rows: Iterable[Sequence["str | Text"]],
    wrapped: Collection[str],
    width: int,
) -> "Group":
    """Return the rows as one table, or several where the width is too small.

    Each repeats the first columns of words.

    No column vanishes: one that does not fit beside the others begins the next table.

    Args:
        wrapped: as for `grid`.
        width: of the terminal in characters.
    """
    from rich.console import Group
    from rich.text import Text

    content = [[plain(one) if isinstance(one, str) else one for one in row] for row in rows]
    wide = [
        _measure_width(name, [row[index] for row in content], name in wrapped)
        for index, name in enumerate(headings)
    ]
    first = len(list(takewhile(lambda name: name in wrapped, headings)))
    drawn: list[Table | Text] = []
    for places in _shares(wide, first, width + GAP):
        names = [headings[column] for column in places]
        drawn += [Text()] * bool(drawn)
        drawn.append(grid(names, ([row[column] for column in places] for row in content), wrapped))
    return Group(*drawn)


def _measure_width(heading: str, cells: Sequence["Text"], wrapped: bool) -> int:
    """Return the width of a column with the gap behind it."""
    widest = max(one.cell_len for one in (plain(heading), *cells))
    return GAP + (min(widest, WORDS) if wrapped else widest)


def _shares(wide: Sequence[int], first: int, width: int) -> list[list[int]]:
    """Return the columns of each table: the first ones, and as many of the others as fit."""
    repeated = list(range(first))
    left = width - sum(wide[:first])
    shares: list[list[int]] = [[]]
    room = left
    for index in range(first, len(wide)):
        if shares[-1] and wide[index] > room:
            shares.append([])
            room = left
        shares[-1].append(index)
        room -= wide[index]
    return [repeated + share for share in shares]
