"""A file known by its content, so that what was made of it belongs to it."""

import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

from layerlab.data.text_files import READ, unreadable
from layerlab.system.files import check_regular

# From here on a file is known by its place, size and time, and by its two ends.
LARGE = 1 << 30


def fingerprint(path: Path, *, full: bool = True) -> str:
    """Return a hash of the content of a file.

    Args:
        full: read it; else it is known by its place, size and time.

    Raises:
        UserError: it cannot be read.
    """
    check_regular(path)
    try:
        with path.open("rb") as stream:
            stat = path.stat()
            stamp = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
            if not full:
                return hashlib.blake2b(stamp.encode(errors="surrogateescape")).hexdigest()[:32]
            if stat.st_size < LARGE:
                return hashlib.file_digest(stream, "blake2b").hexdigest()[:32]
            ends = [stream.read(READ), str(path.resolve()).encode()]
            ends.append(f"{stat.st_size} {stat.st_mtime_ns}".encode())
            stream.seek(-READ, io.SEEK_END)
            return hashlib.blake2b(b"\0".join([*ends, stream.read()])).hexdigest()[:32]
    except OSError as error:
        raise unreadable(path, error) from None


def hash_files(files: Iterable[tuple[Path, str]], *, full: bool = True) -> str:
    """Return a hash of the content of files, each with what else counts of it.

    Args:
        full: read them, also where that takes long: they are large together.
    """
    every = list(files)
    full = full or sum(path.stat().st_size for path, _ in every if path.is_file()) < LARGE
    content = hashlib.blake2b(digest_size=16)
    for path, what in every:
        content.update(f"{what}:{fingerprint(path, full=full)}\n".encode(errors="surrogateescape"))
    return content.hexdigest()
