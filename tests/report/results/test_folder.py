import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from layerlab import UserError
from layerlab.report.pages import inspection
from layerlab.report.results.report import load_report
from tests.report.support import reading
from tests.support.refused import refuses

report = partial(reading.report, only=("attention", "gain"))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.full
def test_a_folder_holds_the_page_the_data_and_the_tables(tmp_path):
    folder = report().save(tmp_path / "new" / "deep")
    assert {"report.html", "report.json", "tables/gain.csv", "tables/gain.parquet"} <= set(
        tree(folder)
    )
    assert names(tmp_path / "new") == ["deep"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~mask


def test_an_earlier_report_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    report().save(target)
    later = report(created="later")
    later.save(target)
    assert load_report(target) == later
    assert names(tmp_path) == ["out"]


def test_a_table_of_the_users_own_is_never_lost(tmp_path):
    report().save(tmp_path / "out")
    precious = tmp_path / "out" / "tables" / "mine.csv"
    precious.write_text("a\n1\n")
    refuses("something other than a report", report().save, tmp_path / "out")
    assert precious.read_text() == "a\n1\n"


@pytest.mark.parametrize("content", ["{}", "[]", "not json", '{"schema": 1, "measures": 5}'])
def test_a_file_that_only_looks_like_a_report_is_kept(tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text(content)
    refuses("something other than a report", report().save, tmp_path / "out")
    assert (tmp_path / "out" / "report.json").read_text() == content


def test_a_folder_with_anything_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    refuses("something other than a report; name a new", report().save, tmp_path)
    report().save(tmp_path / "out")
    (tmp_path / "out" / "my notes.txt").write_text("mine")
    before = tree(tmp_path)
    refuses("something other", report().save, tmp_path / "out")
    assert tree(tmp_path) == before


def test_a_file_where_a_folder_is_needed_is_refused(tmp_path):
    (tmp_path / "file").write_text("text")
    refuses("it is a file; name a folder", report().save, tmp_path / "file")
    refuses("a part of the path is a file", report().save, tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "text"


def test_the_current_folder_is_not_pulled_away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses("name a folder inside it, such as report", report().save, ".")
    assert report().save("here") == tmp_path / "here"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a\0b", "a name cannot hold a null byte"),
        ("x" * 300, "the name is too long; name another place"),
    ],
)
def test_an_impossible_name_is_one_clear_line(tmp_path, name, line):
    refuses(line, report().save, tmp_path / name)
    refuses(line, report().to_html, tmp_path / name)


def failing(error: BaseException) -> Any:
    def write(self: pd.DataFrame, *args: Any, **kwargs: Any) -> None:
        raise error

    return write


@pytest.mark.few(2)
@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (OSError(28, "No space left on device"), UserError),
        (PermissionError(13, "Permission denied"), UserError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failure_in_the_middle_leaves_what_was_there(tmp_path, monkeypatch, error, seen, earlier):
    target = tmp_path / "deep" / "out"
    if earlier:
        report().save(target)
    before = tree(tmp_path)
    monkeypatch.setattr(pd.DataFrame, "to_parquet", failing(error))
    with pytest.raises(seen) as raised:
        report(created="later").save(target)
    assert tree(tmp_path) == before
    assert names(tmp_path) == (["deep"] if earlier else [])
    if isinstance(raised.value, UserError):
        assert str(raised.value).startswith(f"cannot write {target}: ")


def test_a_failure_of_the_last_rename_brings_the_earlier_report_back(tmp_path, monkeypatch):
    report().save(tmp_path / "out")
    before, rename = tree(tmp_path), Path.rename

    def broken(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial") and target.name == "out" and (self / "tables").exists():
            monkeypatch.setattr(Path, "rename", rename)
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    refuses("Input/output error", report(created="later").save, tmp_path / "out")
    assert tree(tmp_path) == before


def test_a_page_that_cannot_be_drawn_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "render", failing(RuntimeError("no page")))
    with pytest.raises(RuntimeError, match="no page"):
        report().save(tmp_path / "out")
    assert names(tmp_path) == []


def test_a_page_alone_is_written_whole(tmp_path, monkeypatch):
    mine = tmp_path / "mine.html"
    mine.write_text("my notes")
    refuses(r"mine\.html is there and is no page of layerlab", report().to_html, mine)
    assert mine.read_text() == "my notes"
    path = report().to_html(tmp_path / "deep" / "page.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    refuses("it is a folder; give a file name", report().to_html, tmp_path / "deep")
    monkeypatch.setattr(Path, "replace", failing(OSError(28, "full")))
    refuses("no space is left on the device", report().to_html, tmp_path / "deep" / "page.html")
    assert names(tmp_path / "deep") == ["page.html"]


def test_a_killed_run_leaves_no_report(tmp_path):
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from layerlab.report.results.folder import write_folder\n"
        "def fill(folder):\n"
        "    (folder / 'report.json').write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
        "write_folder(Path(sys.argv[1]), fill)"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "out"], check=False)
    assert not (tmp_path / "out").exists()
    report().save(tmp_path / "out")
    assert load_report(tmp_path / "out") == report()
