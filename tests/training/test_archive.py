"""A text that lies in an archive: its files are documents, and a damaged one is said to be so."""

import io
import tarfile
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.training.archive import documents
from layerlab.training.section import Source
from layerlab.training.source import KEPT, opened

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


def test_text_files_are_documents_in_the_order_of_their_names(tmp_path: Path) -> None:
    found = list(documents(archive(tmp_path / "law.tar.gz", FILES)))
    assert found == ["第一条", "# Two\nlines\n"]


def test_the_law_of_the_data_folder_is_a_source(tmp_path: Path, monkeypatch) -> None:
    archive(tmp_path / KEPT["law-zh"], FILES)
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    text = opened(Source(text="law-zh"))
    assert text.name == "law-zh" and text.notes == ()
    assert [piece.text for piece in text.pieces()] == ["第一条", "# Two\nlines\n"]


def test_where_the_law_is_absent_another_text_is_read_and_that_is_said(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    found = opened(Source(text="law-zh"))
    assert found.name == "python-docs" and "law-zh is not here" in found.notes[0]


def test_all_statutes_are_read(data: Path) -> None:
    found = [piece.text for piece in opened(Source(text="law-zh")).pieces()]
    assert len(found) == 359 and sum(map(len, found)) > 3_000_000


def test_a_damaged_archive_and_a_file_of_another_encoding_are_named(tmp_path: Path) -> None:
    whole = archive(tmp_path / "law.tar.gz", FILES)
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(UserError, match="is not a whole archive; copy it anew"):
        list(documents(broken))
    other = archive(tmp_path / "other.tar.gz", {"x.md": "法".encode("gbk")})
    with pytest.raises(UserError, match=r"x\.md: byte 0 is not UTF-8 text; mend that file"):
        list(documents(other))
    with pytest.raises(UserError, match=r"cannot read .*; name another file"):
        list(documents(tmp_path / "none.tar.gz"))
