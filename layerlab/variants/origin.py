"""Files from outside the package: what they were when they were read, and which a model needs.

A model that is built from such a file records its name and SHA-256, and a checkpoint carries it.
It never runs by itself: `require` says which file to load.
"""

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from layerlab.errors import UserError

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
    """

    module: str
    path: Path
    name: str
    source: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def text(self) -> str:
        """What Python reads there, as a file in UTF-8 would say it."""
        return COOKIE.sub(r"\1utf-8", importlib.util.decode_source(self.source))


def check_unchanged(file: Path, source: bytes, saved: Mapping[str, str], model: str) -> None:
    """Raise, before it runs, where a file is not the one that a model was saved with.

    Args:
        saved: SHA-256 by name, as the configuration of the model has it.

    Source: Own.

    Raises:
        UserError: names the file and both hashes.
    """
    digest, expected = hashlib.sha256(source).hexdigest(), saved.get(file.name)
    if expected is not None and expected != digest:
        raise UserError(
            f"{str(file)!r} has SHA-256 {digest[:SHOWN]}..., but {model!r} was saved with "
            f"{expected[:SHOWN]}... of that name; nothing was run: " + _way(Path(model) / file.name)
        )


def _way(carried: Path) -> str:
    """What to type for a file beside a model."""
    path = repr(str(carried))
    way = f"type --load {path}, or in Python layerlab.load({path})"
    return way if carried.is_file() else "load the one saved with it"


def require(files: Mapping[str, str], folder: str) -> None:
    """Make sure that the files of a model are loaded, byte for byte.

    Args:
        files: SHA-256 by name, as the configuration has it.
        folder: where the model came from.

    Source: Own.

    Raises:
        UserError: one is not loaded, or another one of its name is.
    """
    from layerlab.variants.inventory import origins  # it needs this module

    loaded = {one.digest: one for one in origins()}
    names = {one.name: one for one in loaded.values()}
    for name, digest in files.items():
        if digest in loaded:
            continue
        way = _way(Path(folder) / Path(name).name)
        if name in names:
            other = names[name]
            raise UserError(
                f"{name!r} as loaded from {other.path} has SHA-256 {other.digest[:SHOWN]}..., but "
                f"this model was saved with {digest[:SHOWN]}...; {way} instead"
            )
        raise UserError(
            f"this model needs the file {name!r} with SHA-256 {digest[:SHOWN]}..., which is not "
            f"loaded; read it, and if you trust it, {way}"
        )
