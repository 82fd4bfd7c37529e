"""The commands that pages give under "How to repeat it", as a reader copies them."""

import html
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from layerlab.cli.app import app

COMMAND = re.compile(r'<div class="command">.*?<code>(.*?)</code>', re.DOTALL)


def repeated(page: str) -> list[str]:
    """The words of the one command of a page."""
    part = page.partition('<section id="repeat"')[2]
    texts = (html.unescape(re.sub(r"<[^>]*>", "", one)) for one in COMMAND.findall(part))
    (line,) = (one for one in texts if one.startswith("layerlab "))
    return shlex.split(line)


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """What the command line takes the words to be; one that it does not know is an error."""
    command: Any = typer.main.get_command(app)
    rest = list(words[1:])
    while hasattr(command, "commands"):
        _, command, rest = command.resolve_command(typer.Context(command), rest)
    given = command.make_context(command.name, rest).params
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    """Which of a list, a tuple, a path and its text it is depends on the version of typer."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
