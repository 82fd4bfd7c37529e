"""What commands refuse before they import torch: an error comes within a second.

Names are looked up in `layerlab.known_names`. Files of the user's own may declare more, which only
running them tells: with them, names are checked later.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from layerlab.known_names import MEASURES


def check_loads(files: Iterable[Path] | None) -> None:
    """Refuse files of `--load` that are not there, or are no Python files."""
    from layerlab.system.python_file import read_python_file

    for file in files or ():
        read_python_file(file)


def check_measures(names: str | None, files: Sequence[Path] | None) -> None:
    """Refuse measures that there are not, or that are named twice."""
    from layerlab.measures.naming import check_once, parse_names

    if names is not None and not files:
        check_once(parse_names(names, MEASURES))


def check_formats(given: str | None) -> None:
    """Refuse number formats that there are not."""
    from layerlab.numerics.formats.formats import find

    for name in (given or "").split(","):
        if name.strip():
            find(name.strip())


def check_policy(file: Path | None) -> None:
    """Refuse a mixed-precision policy that cannot be read."""
    from layerlab.numerics.emulation.policy import load_policy

    if file is not None:
        load_policy(file)
