import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from layerlab.system.files import check_folder, from_here, write_files, write_folder
from layerlab.system.locks import lock_folder
from tests.support.mounted import room
from tests.support.refused import refuses


def test_a_path_below_the_current_folder_is_named_from_there(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert from_here(tmp_path / "here" / "report" / "report.html") == "report/report.html"
    for elsewhere in (tmp_path / "other", Path("given/as/it/is")):
        assert from_here(elsewhere) == str(elsewhere)
    (tmp_path / "here").rmdir()
    assert from_here(tmp_path / "here" / "x") == str(tmp_path / "here" / "x")


@pytest.mark.parametrize("name", ["out", "out/below"])
def test_no_folder_is_made_where_a_link_leads_to_nothing(name, tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    said = r"out is a link to .*, where nothing is; delete the link, or name another folder"
    work = (
        lambda out: check_folder(out, "model"),
        lambda out: write_folder(out, lambda one: None, "model"),
        lambda out: lock_folder(out).__enter__(),
    )
    for one in work:
        refuses(said, one, tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "elsewhere").mkdir()  # a folder may be reached by a link
    write_folder(tmp_path / "out" / "below", lambda one: None, "model")


@pytest.mark.parametrize("umask", [0o022, 0o007, 0o077])
def test_weights_may_be_read_by_whom_the_umask_lets(umask, tmp_path):
    def fill(empty: Path) -> None:
        (empty / "below").mkdir()
        for place in (empty, empty / "below"):
            save_file({"a": torch.zeros(2)}, place / "model.safetensors")
            (place / "config.json").write_text("{}")

    before = os.umask(umask)
    try:
        out = write_folder(tmp_path / "out", fill, "model")
    finally:
        os.umask(before)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~umask}


def test_of_several_files_all_are_written_or_none(tmp_path):
    write_files(tmp_path, {"numbers.json": "before", "report.html": "before"})
    new = {"numbers.json": "after", "tables/runs.csv": "after", "report.html": "a" * 100}
    with room(64):
        refuses("report.html: no more could be written", write_files, tmp_path, new)
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {
        "numbers.json": "before",
        "report.html": "before",
    }
    with room(64):
        refuses("no more could be", write_files, tmp_path, {"numbers.json": None, "t": "a" * 100})
    assert (tmp_path / "numbers.json").read_text() == "before"
    write_files(tmp_path, {"numbers.json": None, "none.json": None})
    assert not (tmp_path / "numbers.json").exists()
    write_files(tmp_path, new)
    assert all((tmp_path / name).read_text() == text for name, text in new.items())
