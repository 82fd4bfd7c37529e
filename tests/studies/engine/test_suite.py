"""All studies in turn: each in its folder, failures named, one page of what holds."""

import dataclasses
import re
from io import StringIO

import pytest
from rich.console import Console

from layerlab import UserError
from layerlab.errors import Interrupted
from layerlab.studies.engine import suite
from layerlab.studies.engine.crash_report import report_crash
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.suite import every
from tests.cli.several import several
from tests.support.forked import BEFORE, python

LISTED = """
import sys
from layerlab.cli.app import app
from layerlab.console.ending import run_app

sys.modules["transformers"] = None  # whoever imports it is refused
sys.argv = ["layerlab", "study"]
sys.exit(run_app(app))
"""


def broken(work):
    raise UserError("nothing <b>works</b>; type something else")


@pytest.fixture
def few(monkeypatch):
    """Two studies that run, and one that cannot."""
    found = studies()
    lost = dataclasses.replace(found["stochastic"], name="lost", run=broken)
    chosen = {name: found[name] for name in ("rounding-input", "low-precision")} | {"lost": lost}
    monkeypatch.setattr(suite, "studies", lambda: chosen)
    monkeypatch.setattr("layerlab.studies.engine.runner.studies", lambda: chosen)


@pytest.mark.full
def test_each_study_has_its_folder_and_a_failure_does_not_stop_the_others(few, tmp_path):
    found = every(out=tmp_path, runs=tmp_path / "none", fast=True, progress=False)
    assert found.failed == ["lost"] and [len(part.verdicts) for part in found.parts] == [2, 4, 0]
    assert {path.name for path in tmp_path.iterdir()} == {
        "rounding-input",
        "low-precision",
        "what-holds.html",
    }
    page = found.page.read_text()
    assert all(one["claim"] in page for part in found.parts for one in part.verdicts)
    assert "nothing &lt;b&gt;works&lt;/b&gt;" in page and 'href="rounding-input/study.html"' in page
    said = "holds: 1, right by less than was asked: 0, fails: 1, not decided: 4"
    assert f'<p class="kicker">Claims of the sources: {said}</p>' in page
    assert (
        "Claims of our own" not in page and "Judged on: single random layers of width 10." in page
    )
    assert "This page is the fast mode&#39;s" in page or "This page is the fast mode's" in page
    told = f"layerlab study --all --fast --runs {tmp_path / 'none'}"
    assert told in re.sub("</?span>", "", page) and "random initialisations: 400 · " in page
    console = Console(record=True, width=100, file=StringIO())
    console.print(found.table())
    said = console.export_text()
    counted = "holds: 1, smaller than asked: 0, fails: 1, not decided: 4"
    assert f"claims of the sources: {counted}" in said and "claims of our own: holds: 0" in said
    assert "lost: nothing <b>works</b>; type something else" in said


@pytest.mark.full
def test_what_is_finished_is_not_run_again(few, tmp_path):
    settings = {"out": tmp_path, "runs": tmp_path / "none", "fast": True, "progress": False}
    first, second = every(**settings), every(**settings)
    created = [
        [part.record.to_dict()["created"] for part in found.parts if part.record]
        for found in (first, second)
    ]
    assert created[0] == created[1]


def test_a_format_that_no_picture_has_is_refused_in_one_clear_line(tmp_path):
    (refused,) = several([("study", "unit-ball", "--figures", "gif")], tmp_path)
    assert refused.code == 2 and refused.error == (
        "layerlab: Invalid value for '--figures': 'gif' is not one of 'svg', 'png', 'pdf'; "
        "type layerlab study --help\n"
    )


@pytest.mark.full
def test_the_list_of_studies_loads_no_transformers(tmp_path):
    said = python("-c", LISTED, cwd=tmp_path, server=BEFORE)
    assert said.returncode == 0 and "unit-ball" in said.stdout, said.stderr


def test_a_name_beside_all_is_refused(tmp_path):
    beside = [["stochastic"], ["--draws", "9"], ["--json"]]
    for refused in several([("study", "--all", *words) for words in beside], tmp_path):
        assert refused.code == 2
        told = "a name, --draws, --option, --model, --text, --device, --dtype or --json beside"
        assert f"{told} --all; expected" in refused.error
    assert [*tmp_path.iterdir()] == []


def stopped(error):
    def run(work):
        raise error

    return run


@pytest.fixture
def accident(monkeypatch):
    """A suite of a study that breaks off, and one behind it."""
    found = studies()

    def chosen(error):
        first = dataclasses.replace(found["stochastic"], name="a-lost", run=stopped(error))
        both = {"a-lost": first, "rounding-input": found["rounding-input"]}
        monkeypatch.setattr(suite, "studies", lambda: both)
        monkeypatch.setattr("layerlab.studies.engine.runner.studies", lambda: both)

    return chosen


@pytest.mark.full
def test_an_unforeseen_error_leaves_its_traceback_and_the_night_goes_on(accident, tmp_path):
    accident(ZeroDivisionError("of two\n<i>lines</i>"))
    settings = {"out": tmp_path, "fast": True, "progress": False, "threads": 1}
    found = every(**settings)
    assert found.failed == ["a-lost"] and found.parts[1].record is not None
    file = tmp_path / "a-lost" / "error.txt"
    said = f"ZeroDivisionError: of two <i>lines</i>; its traceback is in {file}"
    assert found.parts[0].error == said
    assert "raise error\nZeroDivisionError: of two" in file.read_text()
    assert "ZeroDivisionError: of two &lt;i&gt;lines" in found.page.read_text()
    # The traceback is in nobody's way once the study runs.
    names = {"name": "a-lost", "run": studies()["rounding-input"].run}
    mended = {"a-lost": dataclasses.replace(studies()["rounding-input"], **names)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "studies", lambda: mended)
        patch.setattr("layerlab.studies.engine.runner.studies", lambda: mended)
        assert every(**settings).failed == [] and not file.exists()


def test_a_traceback_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder would be")
    said = report_crash(MemoryError(), tmp_path / "taken")
    assert said.startswith("MemoryError; its traceback could not be written (")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Interrupted("interrupted"), SystemExit(143)])
def test_who_stops_the_suite_stops_it(accident, tmp_path, stop):
    accident(stop)
    with pytest.raises(type(stop)):
        every(out=tmp_path, fast=True, progress=False, threads=1)
    assert not (tmp_path / "what-holds.html").exists()
