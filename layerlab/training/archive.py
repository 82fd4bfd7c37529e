"""The documents of a .tar.gz: its text files, read where they lie and never unpacked."""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from layerlab import UserError

ENDING = ".tar.gz"
TEXTS = (".md", ".txt")


def documents(path: Path) -> Iterator[str]:
    """The .md and .txt files by their names; those that begin with `_` only list others.

    Raises:
        UserError: the archive cannot be read to its end, or a file in it is not UTF-8.
    """
    try:
        with tarfile.open(path) as archive:
            for one in sorted(archive.getmembers(), key=lambda member: member.name):
                stream = archive.extractfile(one) if one.name.endswith(TEXTS) else None
                if stream is not None and not PurePosixPath(one.name).name.startswith("_"):
                    yield _text(stream.read(), f"{path}:{one.name}")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path} is not a whole archive; copy it anew") from None
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}; name another file"
        ) from None


def _text(data: bytes, place: str) -> str:
    """Lines end in a line feed, whatever they ended in."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: byte {error.start} is not UTF-8 text; mend that file") from None
