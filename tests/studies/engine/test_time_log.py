"""The time of a study is that of all sittings that computed its batches."""

import dataclasses
import time

import pytest

from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.time_log import Clock

# More than the study takes.
SLEPT = 3.0


def test_the_next_sitting_counts_on_from_what_was_kept(tmp_path):
    file = tmp_path / "time.json"
    first = Clock(file)
    first._start = (first._start[0] - 100, first._start[1] - 60)
    first.keep()
    second = Clock(file)
    second._start = (second._start[0] - 10, second._start[1] - 6)
    spent = second.spent()
    assert spent["wall seconds"] == pytest.approx(110, abs=1)
    assert spent["processor seconds"] == pytest.approx(66, abs=1)


@pytest.mark.parametrize("left", ["", "[]", "{", '{"wall seconds": "x"}', '{"wall seconds": null}'])
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path, left):
    file = tmp_path / "time.json"
    file.write_text(left)
    assert Clock(file).spent()["wall seconds"] < 1


def test_without_a_file_nothing_is_written(tmp_path):
    Clock().keep()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.full
def test_an_interrupted_study_states_the_time_of_both_sittings(monkeypatch, tmp_path):
    found = studies()["rounding-input"]

    def stops(work):
        time.sleep(SLEPT)
        work.gather(lambda draw: {"x": draw.normal(1)}, batch=4)
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
    assert both > SLEPT > alone
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
