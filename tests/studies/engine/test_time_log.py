"""The time of a study is that of all sittings that computed its batches."""

import dataclasses
import math

import pytest

from layerlab.errors import DamageWarning
from layerlab.records.kept import write_kept
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.time_log import Clock

# Seconds, more than the study takes.
BEFORE = 1000


def test_the_next_sitting_counts_on_from_what_was_kept(tmp_path):
    file = tmp_path / "time.json"
    first = Clock(file)
    first._start = (first._start[0] - 100, first._start[1] - 60)
    first.keep()
    second = Clock(file)
    second._start = (second._start[0] - 10, second._start[1] - 6)
    spent = second.seconds_spent()
    assert spent["wall seconds"] == pytest.approx(110, abs=1)
    assert spent["processor seconds"] == pytest.approx(66, abs=1)


@pytest.mark.parametrize("left", ["", "[]", "{", '{"wall seconds": 9, "processor seconds": 9}'])
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path, left):
    (tmp_path / "time.json").write_text(left)
    nothing_counts(tmp_path / "time.json")


@pytest.mark.parametrize("wall", ["x", None, -1.0, math.nan, math.inf, 10**400, [1]])
def test_no_time_that_was_sealed_anew_is_a_traceback(tmp_path, wall):
    write_kept(tmp_path / "time.json", {"wall seconds": wall, "processor seconds": 1.0})
    nothing_counts(tmp_path / "time.json")


def nothing_counts(file):
    with pytest.warns(DamageWarning, match="time.json does not count: "):
        clock = Clock(file)
    assert clock.seconds_spent()["wall seconds"] < 1


def test_without_a_file_nothing_is_written(tmp_path):
    Clock().keep()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.full
def test_an_interrupted_study_states_the_time_of_both_sittings(monkeypatch, tmp_path):
    found = studies()["rounding-input"]

    def stops(work):
        wall, processor = work.clock._start
        work.clock._start = (wall - BEFORE, processor)
        work.sample(lambda draw: {"x": draw.normal(1)}, batch=4)
        raise KeyboardInterrupt

    def chosen(run):
        one = dataclasses.replace(found, run=run)
        monkeypatch.setattr("layerlab.studies.engine.runner.studies", lambda: {one.name: one})
        monkeypatch.setattr("layerlab.studies.engine.runner.fingerprint", lambda module: "code")

    settings = {"draws": 8, "out": tmp_path / "out", "progress": False, "threads": 1}
    chosen(stops)
    with pytest.raises(KeyboardInterrupt):
        study("rounding-input", **settings)
    chosen(found.run)
    both = study("rounding-input", **settings).to_dict()["time"]["wall seconds"]
    alone = study("rounding-input", **settings, restart=True).to_dict()["time"]["wall seconds"]
    assert both > BEFORE > alone
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
