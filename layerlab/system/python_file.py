"""A Python file of the user's own, read as bytes; nothing of it runs here."""

from os import PathLike
from pathlib import Path

from layerlab.errors import UserError
from layerlab.system.files import check_size


def read_python_file(path: str | PathLike[str]) -> tuple[Path, bytes]:
    """Return the path and the bytes of a Python file.

    Raises:
        UserError: there is no such file, it is no Python file, or it is too large to be one.
    """
    file = Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise UserError(
            f"no Python file at {file}; expected a file that ends in MEASURES = (Measure(...),) or "
            "in PARTS and VARIANTS: type --load my_idea.py"
        )
    check_size(file)
    return file, file.read_bytes()
