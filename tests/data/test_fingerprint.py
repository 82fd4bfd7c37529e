"""Files known by their content."""

from layerlab.data import fingerprint as module
from layerlab.data.fingerprint import fingerprint
from layerlab.data.sources import open_source
from layerlab.recipes.training_sections import Source
from tests.support.refused import refuses


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    refuses(r"cannot read .*; name another file", fingerprint, tmp_path)


def test_the_identity_of_a_file_follows_its_content(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("one")
    a, b = (open_source(Source(text=str(tmp_path / name))).identity for name in ("a.txt", "b.txt"))
    assert a == b
    (tmp_path / "b.txt").write_text("two")
    assert open_source(Source(text=str(tmp_path / "b.txt"))).identity != a
    monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(module, "READ", 1)
    large = fingerprint(tmp_path / "a.txt")
    assert large == fingerprint(tmp_path / "a.txt") != fingerprint(tmp_path / "b.txt")
    (tmp_path / "a.txt").write_text("ode")
    assert fingerprint(tmp_path / "a.txt") != large
