"""Checks of a request for a tokenizer: which one, and its size; without torch."""

import re
from pathlib import Path

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.records.checkpoint_names import ADAPTER, BASE
from layerlab.records.parse import read_json
from layerlab.system.hub import fetch_files
from layerlab.validation import expand_home, short_repr

# The files of a tokenizer on the Hub, and in a folder.
FILES = ["*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py"]
# Those of them without which there is none.
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
# The tokenizer of another vocabulary, as a folder of results.
WHAT = "vocabulary"
# Questions of the data folder, in place of a text.
JEC_QA = "jec-qa"
_SIZE = re.compile(r"(\+?)(\d{1,9})")


def find_tokenizer(given: str) -> Path:
    """Find the file or folder of a tokenizer: as given, of a built-in model, or of the Hub.

    An adapter without one has that of its model.

    Raises:
        UserError: there is none.
    """
    path = _find(given)
    base = _name_model(path)
    if base is None:
        return path
    try:
        return _find(base)
    except UserError as error:
        raise UserError(f"{given!r} is an adapter without a tokenizer: {error}") from None


def _name_model(folder: Path) -> str | None:
    """Return the model that an adapter names, where no tokenizer lies beside the adapter."""
    if any(one for pattern in VOCABULARIES for one in folder.glob(pattern)):
        return None
    try:
        base = read_json(folder / ADAPTER)[BASE]
    except (OSError, ValueError, LookupError, TypeError):  # no adapter, or none of a model
        return None
    return base if isinstance(base, str) and base.strip() else None


def _find(given: str) -> Path:
    path = expand_home(given)
    if path.exists():
        return path
    return builtin.path(given) if given in builtin.NAMES else _fetch(given)


def _fetch(name: str) -> Path:
    """Return the folder of a name of the Hub, with the files of its tokenizer."""
    try:
        return fetch_files(name, FILES)
    except UserError as error:
        raise UserError(
            f"there is no tokenizer {name!r}: {error}; "
            'expected a folder, a file, a name of the Hub, or tokenizer = "train"'
        ) from None


def parse_size(size: str) -> tuple[bool, int]:
    """Parse a size: whether entries are added, and how many are added or left.

    Raises:
        UserError: it is neither.

    Example:
        >>> parse_size("+1600"), parse_size("8000")
        ((True, 1600), (False, 8000))
    """
    found = _SIZE.fullmatch(size.strip())
    if not found or not int(found[2]):
        raise UserError(
            f"cannot read the size {short_repr(size)}; type +1600 to add so many entries, or 8000 "
            "to cut down to so many"
        )
    return bool(found[1]), int(found[2])
