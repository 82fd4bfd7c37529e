"""A line on a terminal about work whose end is not known."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


@contextmanager
def show_status(wanted: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Show on standard error what is in progress, and its share where one is known.

    None is yielded where it is not wanted, or there is no terminal.
    """
    console = Console(stderr=True, highlight=False)
    if not wanted or not console.is_terminal:
        yield None
        return
    with console.status("") as status:
        yield lambda what, share: status.update(Text(f"{what} {share:.0%}" if share else what))
