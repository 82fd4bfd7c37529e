"""Files from outside the package: what they were when they were read, and which a model needs.

A model that is built from such a file records its name and SHA-256, and a checkpoint carries it.
It never runs by itself: `inventory.require` says which file to load.
"""

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from layerlab.errors import UserError
from layerlab.variants.renamed import update_imports

SHOWN = 16  # digits of a hash that a message shows
# A file may name its encoding in one of its first two lines (PEP 263).
COOKIE = re.compile(r"\A((?:[^\n]*\n)??[ \t\f]*#[^\n]*?coding[:=][ \t]*)([-\w.]+)", re.ASCII)


@dataclass(frozen=True)
class Origin:
    """A file as it was read.

    Attributes:
        module: the module that it became.
        path: where it lay.
        name: what a checkpoint calls it.
        source: its bytes.
        helpers: SHA-256 of the modules that it imports and that are not installed, by name.
    """

    module: str
    path: Path
    name: str
    source: bytes
    helpers: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the file's bytes."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def text(self) -> str:
        """Return what Python reads in the file, as a file in UTF-8 would say it."""
        found = COOKIE.sub(r"\1utf-8", importlib.util.decode_source(self.source))
        return update_imports(found)


def check_unchanged(file: Path, source: bytes, saved: Mapping[str, str], model: str) -> None:
    """Refuse a file, before it runs, that is not the one that a model was saved with.

    Args:
        saved: SHA-256 by name, as the configuration of the model has it.

    Raises:
        UserError: names the file and both hashes.
    """
    digest, expected = hashlib.sha256(source).hexdigest(), saved.get(file.name)
    if expected is not None and expected != digest:
        raise UserError(
            f"{str(file)!r} has SHA-256 {digest[:SHOWN]}..., but {model!r} was saved with "
            f"{expected[:SHOWN]}... of that name; nothing was run: "
            + way_to_load(Path(model) / file.name)
        )


def way_to_load(carried: Path) -> str:
    """Say what to type for a file beside a model."""
    path = repr(str(carried))
    way = f"type --load {path}, or in Python layerlab.load({path})"
    return way if carried.is_file() else "load the one saved with it"
