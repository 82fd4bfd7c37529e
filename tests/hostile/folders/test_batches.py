"""The hidden folder beside a study's, where it keeps its batches until it is finished."""

import pytest

from layerlab.records.kept import write_kept
from layerlab.studies.engine.runner import StudyRequest, find_study, study
from tests.hostile.attack import typed
from tests.support.refused import refuses

NAME = "0123456789abcdef" * 2


@pytest.mark.parametrize("name", [f"{NAME}.npz", f"{NAME}.json", ""])
def test_no_batch_is_written_through_a_link(name, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    store = tmp_path / ".st.batches"
    if name:
        store.mkdir()
        (store / name).symlink_to(mine / "thesis.tex")
    else:
        store.symlink_to(mine)
    words = ("study", "rounding-input", "--draws", "8", "--out", str(tmp_path / "st"), "-q")
    for more in ((), ("--restart",)):
        typed(*words, *more).refused("is a link to")
    assert [one.name for one in mine.iterdir()] == ["thesis.tex"]
    assert (mine / "thesis.tex").read_text() == "mine"


@pytest.mark.full
@pytest.mark.parametrize("restart", [False, True])
def test_only_batches_are_removed(restart, tmp_path):
    store = tmp_path / ".st.batches"
    store.mkdir()
    for name in (f"{NAME}.npz", f".{NAME}.npz.0a1b2c3d.partial", "notes.txt"):
        (store / name).write_text("mine")
    given = {"draws": 8, "progress": False, "threads": 1, "restart": restart}
    study("rounding-input", out=tmp_path / "st", **given)
    assert [one.name for one in store.iterdir()] == ["notes.txt"]
    (store / "notes.txt").unlink()
    study("rounding-input", out=tmp_path / "st", **{**given, "restart": True})
    assert not store.exists()


def test_batches_beside_a_long_name_that_begins_alike_are_kept(tmp_path):
    one, other = (tmp_path / f"{'长' * 84}{end}" for end in "ab")  # 253 of 255 bytes
    found = find_study("rounding-input")
    store = StudyRequest(study=found, draws=8, seed=0, threads=1, options={}, out=one).store
    store.mkdir()
    (store / f"{NAME}.npz").write_text("mine")
    for restart in (False, True):  # in a new folder, and in place of the one before
        study("rounding-input", draws=8, progress=False, threads=1, out=other, restart=restart)
    assert [one.name for one in store.iterdir()] == [f"{NAME}.npz"]


def test_what_is_kept_is_written_through_no_link(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "a.json").symlink_to(tmp_path / "thesis.tex")
    refuses(r"a\.json is a link to", write_kept, tmp_path / "a.json", {"x": 1})
    assert (tmp_path / "thesis.tex").read_text() == "mine"
