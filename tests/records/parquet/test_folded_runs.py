"""Runs in two files: the same bytes again, and nothing outside the folder."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.records.parquet.folded_runs import CURVES, MANIFESTS, TEXTS, fold_runs, unfold_runs
from tests.support.refused import refuses

JOURNAL = "events.jsonl"


def make_run(place: Path, name: str, journal: bytes) -> None:
    folder = place / "runs" / name
    folder.mkdir(parents=True)
    for file in TEXTS:
        (folder / file).write_bytes(f'{{"of": "{name}", "in": "{file}"}}\r\n'.encode())
    (folder / JOURNAL).write_bytes(journal)


def bytes_in(place: Path) -> dict[str, bytes]:
    files = (one for one in (place / "runs").rglob("*") if one.is_file())
    return {one.relative_to(place).as_posix(): one.read_bytes() for one in files}


@given(
    journals=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=3)
)
def test_unfolded_runs_have_the_bytes_that_were_folded(journals, tmp_path_factory):
    place = tmp_path_factory.mktemp("folded")
    for number, journal in enumerate(journals):
        make_run(place, f"run-{number}", journal.encode())
    before = bytes_in(place)
    assert fold_runs(place) == len(journals)
    (place / "runs").rename(place / "away")
    unfold_runs(place)
    assert bytes_in(place) == before


def test_curves_are_drawn_from_the_folded_file(tmp_path):
    lines = '{"kind":"train","update":2,"loss":7.5}\n{"kind":"note","text":"x"}\ncut'
    make_run(tmp_path, "a", lines.encode())
    fold_runs(tmp_path)
    table = pd.read_parquet(tmp_path / CURVES)
    assert table["kind"].fillna("").tolist() == ["train", "note", ""]
    assert table["update"][0] == 2 and table["text"].str.cat(sep="\n") == lines


def fold_alone(folder):
    """Fold the runs of a comparison, and leave the two files alone."""
    fold_runs(folder)
    (folder / "runs").rename(folder / "away")


def check_folding(folder):
    before = bytes_in(folder)
    fold_alone(folder)
    unfold_runs(folder)
    assert bytes_in(folder) == before


@pytest.mark.parametrize(
    "line", ['{"update": true}', f'{{"update": {1 << 70}}}', '{"kind": "\\ud800", "update": 1}']
)
def test_lines_that_no_column_can_hold_are_folded_as_they_are(line, tmp_path):
    make_run(tmp_path, "a", f'{{"kind": "train", "update": 1}}\n{line}\n'.encode())
    check_folding(tmp_path)


def test_a_text_that_is_no_unicode_is_one_line(tmp_path):
    make_run(tmp_path, "a", b"")
    fold_alone(tmp_path)
    texts = pa.array([b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"run": ["a"], "text": texts}), tmp_path / CURVES)
    refuses("cannot unfold .*UTF8.*; get the file again", unfold_runs, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_unfinished_runs_are_not_folded_and_runs_that_lie_there_stay(tmp_path):
    make_run(tmp_path, "a", b"")
    make_run(tmp_path, "b", b"")
    (tmp_path / "runs" / "b" / "result.json").unlink()
    assert fold_runs(tmp_path) == 1
    (tmp_path / "runs" / "a" / JOURNAL).write_bytes(b"own")
    unfold_runs(tmp_path)
    assert bytes_in(tmp_path)[f"runs/a/{JOURNAL}"] == b"own"


def test_a_comparison_of_which_nothing_is_finished_is_not_folded(tmp_path):
    refuses("no run in .* is finished, so there is none to fold", fold_runs, tmp_path)
    make_run(tmp_path, "a", b"")
    (tmp_path / "runs" / "a" / "result.json").unlink()
    refuses("no run in .* is finished, so there is none to fold", fold_runs, tmp_path)
    assert not (tmp_path / MANIFESTS).exists()


def test_runs_that_lie_in_the_files_alone_are_not_lost(tmp_path):
    make_run(tmp_path, "a", b"")
    make_run(tmp_path, "b", b"")
    fold_runs(tmp_path)
    before = (tmp_path / MANIFESTS).read_bytes()
    (tmp_path / "runs").rename(tmp_path / "away")
    make_run(tmp_path, "c", b"")
    refuses("holds 2 runs that are not in .*, the first 'a'", fold_runs, tmp_path)
    assert (tmp_path / MANIFESTS).read_bytes() == before
    for name in ("a", "b"):
        (tmp_path / "away" / name).rename(tmp_path / "runs" / name)
    assert fold_runs(tmp_path) == 3


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "..", "a/b", ""])
def test_a_run_is_unfolded_into_its_own_folder_only(tmp_path, name):
    make_run(tmp_path, "a", b"")
    fold_runs(tmp_path)
    table = pd.read_parquet(tmp_path / MANIFESTS)
    table.assign(run=name).to_parquet(tmp_path / MANIFESTS, index=False)
    (tmp_path / "runs").rename(tmp_path / "away")
    refuses("is no name of a folder", unfold_runs, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_files_that_are_damaged_are_named_on_one_line(tmp_path):
    make_run(tmp_path, "a", b"")
    fold_alone(tmp_path)
    whole = (tmp_path / CURVES).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"PAR1" * 20):
        (tmp_path / CURVES).write_bytes(damaged)
        refuses("get the file again from where it came", unfold_runs, tmp_path)
    pd.DataFrame({"run": ["a"], "text": [None]}).to_parquet(tmp_path / CURVES, index=False)
    refuses("a value is missing", unfold_runs, tmp_path)


def test_a_run_that_is_no_text_is_not_folded(tmp_path):
    make_run(tmp_path, "a", b"\xff")
    refuses("take the run out of", fold_runs, tmp_path)
    assert not (tmp_path / MANIFESTS).exists()


def test_scores_are_folded_where_a_run_has_them(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path, name, b"")
    (tmp_path / "runs" / "b" / "scores.json").write_bytes(b'{"of": "b"}\r\n')
    check_folding(tmp_path)
