"""A variant of one's own to start from: a commented file that trains as it is."""

import os
import re
import shlex
import tempfile
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import Template

from layerlab.errors import UserError
from layerlab.variants.registry import parts, variants


def name_variant(file: Path) -> str:
    """Return what a variant is called that is declared in a file: `my-idea` in my_idea.py.

    Raises:
        UserError: the name of the file makes none.
    """
    name = "-".join(re.findall(r"[a-z0-9]+", file.stem.lower()))
    if file.suffix != ".py" or not name[:1].isalpha():
        raise UserError(
            f"cannot name a variant after {file}; expected a letter first and .py last: "
            "type layerlab variants --new my_idea.py"
        )
    return name


def write_template(path: str | PathLike[str]) -> Path:
    """Write a file with one part and one variant, named after the file.

    Raises:
        UserError: the file is there already, or its name makes no name of a variant, or that of one
            that there is.
    """
    file = Path(path)
    name = name_variant(file)
    words = name.split("-")
    for kind, known in (("a variant", variants()), ("an ffn part", parts("ffn"))):
        if name in known:
            raise UserError(f"{kind} called {name!r} is there already; give the file another name")
    text = (files("layerlab.variants") / "template.txt").read_text("utf-8")
    filled = Template(text).substitute(
        name=name,
        file=shlex.quote(file.name),
        title=" ".join(words).capitalize(),
        # A word alone may be one of Python's, or the name of what the file imports.
        kind="".join(word.capitalize() for word in [*words, "feed", "forward"]),
    )
    _place(file, filled)
    return file


def _place(file: Path, text: str) -> None:
    """Write a whole file or none, and never over another."""
    if not file.parent.is_dir():
        raise UserError(f"cannot write {file}: there is no folder {file.parent}; make it first")
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, prefix=f".{file.name}-"
        ) as out:
            out.write(text)
            out.flush()
            os.link(out.name, file)  # fails where a file is, which a rename would not
    except FileExistsError:
        raise UserError(f"{file} is there already; give another name, or move it away") from None
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}; name another folder") from error
