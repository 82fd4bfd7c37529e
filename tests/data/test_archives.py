"""Files in archives: those that are wanted, never more than is allowed; all else is named."""

import bz2
import gzip
import io
import logging
import lzma
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pandas
import pytest

from layerlab import UserError
from layerlab.data.archives import ENDINGS, LIMIT, read_documents, read_members
from layerlab.data.sources import open_source
from layerlab.recipes.paths import KEPT
from layerlab.recipes.training_sections import Source
from tests.support.refused import refuses

FILES = {
    "b/second.md": b"# Two\r\nlines\r\n",
    "a/first.md": "\ufeff第一条".encode(),
    "a/_index.md": b"a list of others",
    "a/picture.png": b"\x89PNG",
}


def archive(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as made:
        made.addfile(tarfile.TarInfo("a"))
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return path


def test_text_files_are_documents_in_the_order_of_their_names(tmp_path):
    found = read_documents(archive(tmp_path / "law.tar.gz", FILES))
    assert list(found) == ["第一条", "# Two\nlines\n"]


def test_the_law_of_the_data_folder_is_a_source(tmp_path, monkeypatch):
    archive(tmp_path / KEPT["law-zh"], FILES)
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    text = open_source(Source(text="law-zh"))
    assert text.name == "law-zh" and text.notes == ()
    assert [piece.text for piece in text.pieces()] == ["第一条", "# Two\nlines\n"]


def test_where_the_law_is_absent_another_text_is_read_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    found = open_source(Source(text="law-zh"))
    assert found.name == "python-docs" and "law-zh is not here" in found.notes[0]


def test_all_statutes_are_read(data):
    found = [piece.text for piece in open_source(Source(text="law-zh")).pieces()]
    assert len(found) == 359 and sum(map(len, found)) > 3_000_000


def test_a_damaged_archive_and_a_file_of_another_encoding_are_named(tmp_path):
    whole = archive(tmp_path / "law.tar.gz", FILES)
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(whole.read_bytes()[:-40])
    refuses(r"cannot read the archive .*broken.*; copy it anew", list, read_documents(broken))
    other = archive(tmp_path / "other.tar.gz", {"x.md": "法".encode("gbk")})
    refuses(r"x\.md: byte 0 is not UTF-8 text; mend that file", list, read_documents(other))
    refuses(r"cannot read .*; name another file", list, read_documents(tmp_path / "none.tar.gz"))


def packed(path: Path, files: dict[str, bytes]) -> Path:
    """An archive of the kind that its ending says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            for name, content in files.items():
                made.writestr(name, content)
        return path
    how = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".txz": "w:xz", ".bz2": "w:bz2"}
    with tarfile.open(path, how.get(path.suffix, "w")) as made:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return path


def read(path: Path) -> dict[str, bytes]:
    return dict(read_members(path, lambda name: name.endswith(".csv")))


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_kind_is_read_and_only_what_is_wanted(ending, tmp_path):
    given = {"sub/b.csv": b"2", "a.csv": b"1", "c.bin": b"\0" * 999}
    path = packed(tmp_path / f"all{ending}", given)
    assert list(read(path).items()) == [("a.csv", b"1"), ("sub/b.csv", b"2")]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_bomb_is_not_unpacked(ending, tmp_path, monkeypatch):
    path = packed(tmp_path / f"bomb{ending}", {"a.csv": b"0" * 600_000, "b.csv": b"0" * 600_000})
    monkeypatch.setenv("LAYERLAB_MAX_BYTES", "1000000")
    said = r"unpacks to more than 1,000,000 bytes; if that is meant, type --max-bytes 4000000"
    refuses(said, read, path)
    # Of a tar all of it counts: heads, and what fills it up.
    monkeypatch.setenv("LAYERLAB_MAX_BYTES", "1200000" if ending == ".zip" else "1220000")
    assert sum(map(len, read(path).values())) == 1_200_000


@pytest.mark.parametrize("given", ["x", "-1", "0", "1e9", "9" * 30, "\u0663"])
def test_a_limit_that_is_none_is_one_line(given, tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_MAX_BYTES", given)
    with pytest.raises(UserError, match="expected a number of bytes: type LAYERLAB_MAX_BYTES="):
        read(packed(tmp_path / "a.zip", {}))


def test_names_that_lead_elsewhere_are_left_out_and_named(tmp_path, caplog):
    outside = ("/etc/a.csv", "../b.csv", "x/../../c.csv", "..\\d.csv")
    zipped = packed(tmp_path / "a.zip", dict.fromkeys((*outside, "fine.csv"), b"1"))
    with zipfile.ZipFile(zipped, "a") as made:
        link = zipfile.ZipInfo("link.csv")
        link.external_attr = 0o120777 << 16
        made.writestr(link, "/etc/passwd")
    tarred = packed(tmp_path / "a.tar", dict.fromkeys((*outside, "fine.csv"), b"1"))
    kinds = {"sym.csv": tarfile.SYMTYPE, "hard.csv": tarfile.LNKTYPE, "pipe.csv": tarfile.FIFOTYPE}
    with tarfile.open(tarred, "a") as made:
        for name, kind in kinds.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            made.addfile(entry)
    with caplog.at_level(logging.WARNING):
        assert read(zipped) == read(tarred) == {"fine.csv": b"1"}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 5 + 7 and all("is left out (" in line for line in said)
    assert sum("a link or a device" in line for line in said) == 4


def flagged(path: Path, place: int, value: bytes) -> Path:
    """A zip whose two headers say something else of its first member."""
    data = bytearray(path.read_bytes())
    first, second = data.find(b"PK\x03\x04"), data.find(b"PK\x01\x02")
    data[first + place : first + place + 2] = value
    data[second + place + 2 : second + place + 4] = value
    path.write_bytes(bytes(data))
    return path


def test_what_cannot_be_unpacked_is_one_line(tmp_path):
    content = {"a.csv": bytes(range(256)) * 40}
    locked = flagged(packed(tmp_path / "locked.zip", content), 6, b"\1\0")
    strange = flagged(packed(tmp_path / "strange.zip", content), 8, b"\x63\0")
    broken = packed(tmp_path / "broken.tar.xz", content)
    broken.write_bytes(broken.read_bytes()[:60] + b"\xff" * 40 + broken.read_bytes()[100:])
    other = tmp_path / "other.tar"
    other.write_bytes(lzma.compress(b"no archive at all"))
    for path, said in (
        (locked, "is encrypted"),
        (strange, "is packed by bzip2 or LZMA, and not by deflate"),
        (broken, ""),
        (other, ""),
    ):
        refuses(rf"cannot read the archive .*{said}.*;", read, path)


def test_where_nobody_said_how_much_it_is_a_measure_of_the_file(tmp_path, monkeypatch):
    """What compresses a thousand times is no text, whatever it is packed in."""
    monkeypatch.setattr("layerlab.data.archives.MOST", 1000)
    text = "".join(map(str, range(9999)))
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"0" * 9_999_999))
    packed(tmp_path / "bomb.zip", {"a.csv": b"0" * 9_999_999})
    pandas.DataFrame({"text": ["0" * 99_999] * 99}).to_parquet(tmp_path / "bomb.parquet")
    pandas.DataFrame({"text": [text]}).to_parquet(tmp_path / "text.parquet")
    for name in ("text.txt.gz", "text.parquet"):
        pieces = open_source(Source(text=str(tmp_path / name))).pieces()
        assert "".join(one.text for one in pieces) == text
    for name in ("bomb.txt.gz", "bomb.parquet"):
        with pytest.raises(UserError, match="unpacks to more than"):
            list(open_source(Source(text=str(tmp_path / name))).pieces())
    refuses("unpacks to more than", read, tmp_path / "bomb.zip")


def header(name: str, size: int, kind: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


ZEROS = bytes(1 << 20)


@pytest.mark.parametrize(
    "content",
    [
        [header("././@LongLink", 1 << 30, b"L"), *4 * [ZEROS], header("a.txt", 0, b"0")],
        [header("unwanted.bin", 8 << 20, b"0"), *8 * [ZEROS], header("a.txt", 0, b"0")],
        [header("a", 0, b"0") * 16_000],
    ],
    ids=["a long name", "what nobody wants", "names without end"],
)
@pytest.mark.parametrize(
    "opener",
    [gzip.open, *(pytest.param(one, marks=pytest.mark.full) for one in (bz2.open, lzma.open))],
)
def test_what_is_passed_over_counts_as_well(opener, content, tmp_path, monkeypatch):
    monkeypatch.setenv(LIMIT, "4000000")
    file = tmp_path / "x.tar.gz"
    with opener(file, "wb") as stream:
        for piece in (*content, bytes(1024)):
            stream.write(piece)
    with pytest.raises(UserError, match=r"unpacks to more than 4,000,000 bytes; if that is meant"):
        list(read_members(file, lambda name: name.endswith(".txt")))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_python_unpacks_without_measure_is_refused(method, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(UserError, match=r"a\.txt. is packed by bzip2 or LZMA, and not by"):
        list(read_members(tmp_path / "x.zip", lambda name: True))


def test_the_name_of_an_archive_steers_no_terminal(tmp_path, caplog):
    place = tmp_path / "e\x1b[31mvil"
    place.mkdir()
    with tarfile.open(place / "x.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../a.txt"))
    assert list(read_members(place / "x.tar", lambda name: True)) == []
    assert "is left out (its name leads outside)" in caplog.text and "\x1b" not in caplog.text


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("ending", [".tar.gz", ".zip"])
def test_a_name_that_stands_twice_is_refused(ending, tmp_path):
    path = tmp_path / f"twice{ending}"
    if ending == ".zip":
        with zipfile.ZipFile(path, "w") as made:
            for content in ("one", "two"):
                made.writestr("a.md", content)
    else:
        with tarfile.open(path, "w:gz") as packed:
            for content in (b"one", b"two"):
                entry = tarfile.TarInfo("a.md")
                entry.size = len(content)
                packed.addfile(entry, io.BytesIO(content))
    refuses(r"holds 'a\.md' twice, and programs differ in which", list, read_documents(path))


TARS = [one for one in ENDINGS if one != ".zip"]
LONG = {f"{number}.csv": f"{number}, ".encode() * 300 for number in range(9)}


def repack(path: Path, change: Any) -> None:
    """Change the tar inside an archive, whose sums are then those of the changed one."""
    opener: Any = {"z": gzip.open, "2": bz2.open}.get(path.name[-1], open)
    if path.suffix in (".xz", ".txz"):
        opener = lzma.open
    with opener(path, "rb") as stream:
        given = bytearray(stream.read())
    with opener(path, "wb") as stream:
        stream.write(change(given))


def is_refused(path: Path) -> str:
    with pytest.raises(
        UserError, match=r"^cannot read the archive .*; copy it anew, whole"
    ) as told:
        read(path)
    assert "\n" not in str(told.value)
    return str(told.value)


def damage(given: bytearray) -> bytearray:
    given[given.index(b"5.csv") + 150] ^= 1
    return given


def blank(given: bytearray) -> bytearray:
    place = given.index(b"5.csv")
    given[place : place + 512] = bytes(512)
    return given


@pytest.mark.parametrize("ending", TARS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (damage, "is neither a file nor its end"),
        (blank, "is neither a file nor its end"),
        (lambda given: given[: given.index(b"5.csv")], "it ends too early, at byte"),
        (lambda given: given[: given.index(b"5.csv") + 99], "is neither a file nor its end"),
        (lambda given: given.rstrip(b"\0") + bytes(512), "it ends too early, at byte"),
        (lambda given: given + given, "is neither a file nor its end"),
    ],
    ids=["damaged", "blank", "cut between files", "cut in a header", "half an end", "two tars"],
)
def test_a_tar_whose_later_files_are_lost_is_refused(change, said, ending, tmp_path):
    """Python takes for the end what is no header, whatever follows."""
    path = packed(tmp_path / f"a{ending}", LONG)
    repack(path, change)
    assert said in is_refused(path)


@pytest.mark.parametrize("ending", TARS)
def test_the_end_of_a_tar_may_be_filled_up(ending, tmp_path, monkeypatch):
    path = packed(tmp_path / f"a{ending}", LONG)
    repack(path, lambda given: given.rstrip(b"\0") + bytes(10**6))
    assert read(path) == LONG
    monkeypatch.setenv(LIMIT, "1000000")
    refuses("unpacks to more than 1,000,000 bytes", read, path)


@pytest.mark.parametrize("ending", [one for one in TARS if one != ".tar"])
def test_of_a_packed_tar_no_flipped_bit_is_believed(ending, tmp_path):
    """Its sums are compared, of whatever file the bit is; a few bits stand for nothing."""
    path = packed(tmp_path / f"a{ending}", LONG)
    given, refused = path.read_bytes(), 0
    for place in range(40, len(given), len(given) // 40):
        path.write_bytes(given[:place] + bytes([given[place] ^ 4]) + given[place + 1 :])
        try:
            assert read(path) == LONG
        except UserError as error:
            assert str(error).startswith("cannot read the archive")
            refused += 1
    assert refused > 30
