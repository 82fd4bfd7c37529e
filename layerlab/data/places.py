"""Find texts and benchmarks: as given, or in the data folder."""

import os
from pathlib import Path

from layerlab.errors import UserError
from layerlab.validation import expand_home, short_repr


def data_folder() -> Path:
    """Return the folder of larger data: LAYERLAB_DATA, or the one beside the project."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("LAYERLAB_DATA") or beside)


def list_shown(folder: Path) -> list[Path]:
    """Return the files in a folder and below, in an order that does not depend on the machine.

    What is hidden is left out: editors and notebooks keep copies there of what lies beside them.
    """
    paths = (
        path
        for path in folder.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    return sorted(path for path in paths if path.is_file())


def find_text(name: str) -> Path:
    """Find a file or folder as it is given, or by its place in the data folder.

    Raises:
        UserError: it is in neither.
    """
    for path in (expand_home(name), data_folder() / name):
        if path.exists():
            return path
    raise UserError(
        f"there is no file or folder {short_repr(name)}, nor is it in the data folder "
        f"{str(data_folder())!r}; name one, or set LAYERLAB_DATA"
    )
