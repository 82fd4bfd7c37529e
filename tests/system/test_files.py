from pathlib import Path

from layerlab.system.files import from_here


def test_a_path_below_the_current_folder_is_named_from_there(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert from_here(tmp_path / "here" / "report" / "report.html") == "report/report.html"
    for elsewhere in (tmp_path / "other", Path("given/as/it/is")):
        assert from_here(elsewhere) == str(elsewhere)
    (tmp_path / "here").rmdir()
    assert from_here(tmp_path / "here" / "x") == str(tmp_path / "here" / "x")
