"""A sealed folder is what was written: each file that is another, gone or new is named."""

import json

import pytest

from layerlab.records.file_digests import FILE, check_seal, extra_files, hash_folder, seal_folder
from layerlab.records.parse import seal


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inside").mkdir()
    for name in ("a.txt", "inside/b.txt", ".hidden"):
        (tmp_path / name).write_text(name)
    seal_folder(tmp_path, kind="model")
    return tmp_path


def test_what_was_written_is_found_again(folder):
    assert check_seal(folder)["kind"] == "model" and extra_files(folder) == []
    (folder / ".hidden").write_text("changed")
    assert set(check_seal(folder)["files"]) == {"a.txt", "inside/b.txt"}
    assert set(hash_folder(folder, leave=["in*"])) == {"a.txt", FILE}


@pytest.mark.parametrize("name", ["a.txt", "inside/b.txt"])
def test_a_file_that_is_another_or_gone_is_named(name, folder):
    (folder / name).write_text("changed")
    with pytest.raises(ValueError, match=f"^{name} is not what was written$"):
        check_seal(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"^{name} is missing$"):
        check_seal(folder)


def test_a_file_too_many_is_named(folder):
    (folder / "inside" / "c.txt").touch()
    assert extra_files(folder) == ["inside/c.txt"]
    with pytest.raises(ValueError, match=r"^inside/c\.txt was not there when it was written$"):
        check_seal(folder)


def test_what_a_kill_has_left_anywhere_is_no_part_of_a_folder(folder):
    (folder / "inside" / ".run.lock").touch()
    (folder / "inside" / ".model.0a1b2c3d.partial").mkdir()
    (folder / "inside" / ".model.0a1b2c3d.partial" / "weights").write_text("half")
    (folder / "inside" / ".kept").write_text("kept")
    assert {*hash_folder(folder)} == {"a.txt", FILE, "inside/b.txt", "inside/.kept"}


def test_a_table_without_files_is_none(folder):
    (folder / FILE).write_text(json.dumps(seal({"files": ["a.txt"]})))
    with pytest.raises(ValueError, match="names no files"):
        check_seal(folder)
