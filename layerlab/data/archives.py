"""Files inside archives: read where they lie, never unpacked, and no more of them than is wanted.

What a name inside says of places is never followed: links, absolute names and `..` are left out and
named.
"""

import bz2
import gzip
import logging
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, ParamSpec, TypeVar

import typer

from layerlab.console.tables import printable
from layerlab.data.charset import refuse_zeros
from layerlab.errors import UserError
from layerlab.system.files import check_regular
from layerlab.system.untrusted.trust import add_options

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
# How much of one file is unpacked where nobody said: so many bytes, or so many times its own. Text
# unpacks to three to ten times what it is, a bomb to a thousand times.
LIMIT, MOST, TIMES = "LAYERLAB_MAX_BYTES", 2**28, 20
PIECE = 2**20
# Bytes that a row or a line counts beside its own: of empty ones a file of nothing holds millions.
ROW = 64
TEXTS = (".md", ".txt")
OPTION = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Most bytes that a file may unpack to.  [default: 256 MiB, or 20 x it]",
    ),
]
_PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zX": lzma.open}
_LOG = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # of zipfile: a member is encrypted, or packed in a way it does not know
    ValueError,
    gzip.BadGzipFile,
)


def is_archive(path: Path) -> bool:
    """Return whether a file is, by its name, an archive that can be read."""
    return path.name.lower().endswith(ENDINGS)


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Read the names and contents of the wanted files, in the order of their names.

    Args:
        wanted: tells by the name.

    Raises:
        UserError: the archive cannot be read, is encrypted, holds one name twice, or unpacks to
            more than is allowed.
    """
    check_regular(path)
    allowance, before = Allowance(path), ""
    try:
        if path.name.lower().endswith(".zip"):
            found = _of_zip(path, wanted)
        else:
            found = _of_tar(path, wanted, allowance)
        for name, stream in found:
            if name == before:
                raise UserError(
                    f"{path} holds {name!a} twice, and programs differ in which of them they take; "
                    "pack it anew with one"
                )
            before = name
            with stream:
                yield name, allowance.read(stream)
    except (*_BROKEN, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, and not of bz2
            raise UserError(f"cannot read {path}: {error.strerror}; name another file") from None
        message = " ".join(str(error).split())[:200] or "it ends too early"
        raise UserError(
            f"cannot read the archive {path}: {message}; copy it anew, whole and without a password"
        ) from None


def read_documents(path: Path) -> Iterator[str]:
    """Read the .md and .txt files of an archive; those that begin with `_` only list others.

    Raises:
        UserError: as `read_members`, or a file is not UTF-8.
    """

    def is_wanted(name: str) -> bool:
        return name.endswith(TEXTS) and not PurePosixPath(name).name.startswith("_")

    for name, data in read_members(path, is_wanted):
        try:
            text = refuse_zeros(data).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}:{name}: byte {error.start} is not UTF-8 text; mend that file"
            ) from None
        # Lines end in a line feed, whatever they ended in.
        yield text.replace("\r\n", "\n").replace("\r", "\n")


class Allowance:
    """The number of bytes that may still be unpacked of a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.most = path, _most(path)
        self.left = self.most

    def read(self, stream: IO[bytes]) -> bytes:
        """Read all of a stream, piece by piece.

        Raises:
            UserError: it is more than is left.
        """
        found = bytearray()
        while piece := stream.read(PIECE):
            found += self.take(piece)
        return bytes(found)

    def take(self, piece: bytes) -> bytes:
        """Count a piece that was unpacked, and return it.

        Raises:
            UserError: it is more than is left.
        """
        self.spend(len(piece))
        return piece

    def spend(self, size: int) -> None:
        """Count bytes that were unpacked.

        Raises:
            UserError: they are more than are left.
        """
        self.left -= size
        self.check(0)

    def reach(self, position: int) -> None:
        """Check that a file may be unpacked up to this place.

        Raises:
            UserError: it is more than is allowed of the whole file.
        """
        self.check(position - self.most + self.left)

    def check(self, size: int) -> None:
        """Check that so many more bytes may be unpacked.

        Raises:
            UserError: it is more than is left.
        """
        if size > self.left:
            raise UserError(
                f"{self.path} unpacks to more than {self.most:,} bytes; if that is meant, type "
                f"--max-bytes {4 * self.most} (in Python max_bytes={4 * self.most}), or set {LIMIT}"
            )


def limit_archives(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that reads archives the option `--max-bytes`."""
    return add_options(command, limit_unpacked, {"max_bytes": (OPTION, None)})


def read_within_limit(function: Callable[P, T]) -> Callable[P, T]:
    """Let a public function unpack as much of a file as its argument `max_bytes` says."""

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> T:
        most: Any = given.get("max_bytes")
        with limit_unpacked(most):
            return function(*args, **given)

    return call


@contextmanager
def limit_unpacked(max_bytes: int | None) -> Iterator[None]:
    """Let files unpack to so many bytes while the block runs; as usual where it is None.

    The limit is put into the environment, where the processes of runs find it too.

    Raises:
        UserError: it is below 1.
    """
    if max_bytes is not None and max_bytes < 1:
        raise UserError(f"max_bytes is {max_bytes}; expected a number of bytes from 1")
    before = os.environ.get(LIMIT)
    if max_bytes is not None:
        os.environ[LIMIT] = str(max_bytes)
    try:
        yield
    finally:
        os.environ.pop(LIMIT, None)
        if before is not None:
            os.environ[LIMIT] = before


def _most(path: Path) -> int:
    given = os.environ.get(LIMIT, "")
    if given and not (given.isascii() and given.isdigit() and len(given) < 20 and int(given)):
        raise UserError(
            f"{LIMIT} is {given[:40]!r}; expected a number of bytes: type {LIMIT}={MOST}"
        )
    if given:
        return int(given)
    return max(MOST, TIMES * path.stat().st_size if path.exists() else 0)


def _of_zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        for one in sorted(archive.infolist(), key=lambda one: one.filename):
            name = one.filename
            link = (one.external_attr >> 28) == 0o12
            if not one.is_dir() and wanted(name) and _inside(path, name, link):
                # Python unpacks the others a piece at a time that may be of any size.
                if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"{name!a} is packed by bzip2 or LZMA, and not by deflate")
                yield name, archive.open(one)


class _CountingTar:
    """A tar as it is unpacked: names, and files that nobody wants, count as well."""

    def __init__(self, stream: IO[bytes], allowance: "Allowance") -> None:
        self.stream, self.allowance = stream, allowance
        self.tell = stream.tell

    def seek(self, position: int) -> int:
        """Go to a place that is within the limit: all that lies before is unpacked."""
        self.allowance.reach(position)
        return self.stream.seek(position)

    def read(self, size: int) -> bytes:
        """Read so many bytes, if they are within the limit."""
        self.allowance.reach(self.tell() + size)
        return self.stream.read(size)


def _of_tar(
    path: Path, wanted: Callable[[str], bool], allowance: "Allowance"
) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        start = file.read(4)
    unpacked: Any = next((one for magic, one in _PACKED.items() if start.startswith(magic)), open)
    with unpacked(path, "rb") as stream:
        counted: Any = _CountingTar(stream, allowance)
        with tarfile.open(fileobj=counted, mode="r:") as archive:
            members = sorted(archive.getmembers(), key=lambda one: one.name)
            stream.seek(archive.offset)
            _check_end(stream, allowance)
            for one in members:
                link = not one.isfile()
                if not one.isdir() and wanted(one.name) and _inside(path, one.name, link):
                    yield one.name, archive.extractfile(one)


def _check_end(stream: IO[bytes], allowance: "Allowance") -> None:
    """Read a tar from the end of its last member on, which also compares the sums of what packs it.

    Python takes a header that is damaged for the end, and what packs a tar says only at its own end
    that it was damaged.

    Raises:
        TarError: it does not end there, in two blocks of zeros or more.
    """
    position, size = stream.tell(), 0
    while block := stream.read(tarfile.RECORDSIZE):
        size += len(block)
        allowance.reach(position + size)
        if block.strip(b"\0"):
            raise tarfile.ReadError(
                f"what stands at byte {position:,} is neither a file nor its end"
            )
    if size < 2 * tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"it ends too early, at byte {position + size:,}")


def _inside(path: Path, name: str, link: bool) -> bool:
    member = PurePosixPath(name.replace("\\", "/"))
    why = "a link or a device" if link else ""
    why = "its name leads outside" if member.is_absolute() or ".." in member.parts else why
    if why:
        _LOG.warning("%s: %a is left out (%s)", printable(str(path)), name[:200], why)
    return not why
