import signal
from pathlib import Path

import pytest

from layerlab.errors import Interrupted, UserError
from layerlab.report.results import unfinished_report
from layerlab.report.results.report import Report, load_report
from layerlab.report.results.unfinished_report import PAUSE, UnfinishedReport, keep_finished
from layerlab.system.signals import Stopped
from tests.report.support.reading import card, content, frames, measures
from tests.support.refused import refuses


def of(*names: str) -> Report:
    stream = [one for one in measures() if one["name"] == "stream"]
    whole = content(*map(card, names), measures=stream)
    return Report(whole, {"stream": frames(*names)["stream"]})


def fail(folder: Path, error: BaseException, *finished: Report) -> None:
    with keep_finished(folder) as keep:
        for one in finished:
            keep(one)
        raise error


def test_where_the_next_model_fails_the_report_of_those_before_stays(tmp_path):
    wanted = tmp_path / "out"
    bad = UserError("c is damaged; copy it anew")
    said = refuses("^c is damaged; copy it anew; 2 models were ", fail, wanted, bad, of("a", "b"))
    assert said.endswith("finished before: the report is in " + str(tmp_path / "out-unfinished"))
    assert [one["name"] for one in load_report(tmp_path / "out-unfinished").models] == ["a", "b"]
    assert not wanted.exists()


def test_an_earlier_report_is_not_lost_for_half_a_new_one(tmp_path):
    wanted = tmp_path / "out"
    of("a", "b").save(wanted)
    before = (wanted / "report.json").read_bytes()
    refuses("1 model was finished before", fail, wanted, UserError("c"), of("a"))
    assert (wanted / "report.json").read_bytes() == before


@pytest.mark.parametrize(
    ("stop", "code"),
    [(KeyboardInterrupt(), 130), (Stopped(128 + signal.SIGTERM), 143)],
)
def test_an_interruption_keeps_its_code(stop, code, tmp_path):
    with pytest.raises(Interrupted, match="interrupted; 1 model was finished before") as caught:
        fail(tmp_path / "out", stop, of("a"))
    assert caught.value.code == code and (tmp_path / "out-unfinished").exists()


@pytest.mark.parametrize("error", [UserError("c"), KeyboardInterrupt(), MemoryError()])
def test_without_a_finished_model_nothing_is_written(error, tmp_path):
    with pytest.raises(type(error)) as caught:
        fail(tmp_path / "out", error)
    assert caught.value is error and not list(tmp_path.iterdir())


def test_an_error_that_nobody_foresaw_stays_and_keeps_the_report(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fail(tmp_path / "out", ZeroDivisionError(), of("a"))
    assert (tmp_path / "out-unfinished" / "report.json").exists()


def test_what_somebody_else_keeps_under_that_name_stays_and_the_loss_is_said(tmp_path, monkeypatch):
    theirs = tmp_path / "out-unfinished" / "thesis.tex"
    theirs.parent.mkdir()
    theirs.write_text("hard work")
    with keep_finished(tmp_path / "out") as keep, monkeypatch.context() as patch:
        patch.setattr(unfinished_report, "PAUSE", 0)
        keep(of("a"))  # ends no inspection
    said = refuses("^c; 1 model was finished ", fail, tmp_path / "out", UserError("c"), of("a"))
    assert "and the report is lost: " in said and "holds something other than a report" in said
    assert theirs.read_text() == "hard work"


def test_what_is_finished_is_saved_now_and_then(tmp_path):
    finished = UnfinishedReport(tmp_path / "out")

    def count(*names: str) -> int:
        finished.keep(of(*names))
        return len(load_report(finished.folder).models)

    finished.keep(of("a"))
    assert not finished.folder.exists()  # the next one may take a second
    finished.begun -= PAUSE
    assert [count("a", "b"), count("a", "b", "c")] == [2, 2]
    finished.saved -= PAUSE
    assert [count("a", "b", "c"), count("a", "b", "c", "d")] == [3, 3]


def test_with_the_whole_what_was_saved_of_it_goes_and_nothing_else(tmp_path, monkeypatch):
    earlier = UnfinishedReport(tmp_path / "out").folder
    of("a").save(earlier)
    with keep_finished(tmp_path / "out") as keep:
        keep(of("b"))  # and is over before anything was saved
    assert [one["name"] for one in load_report(earlier).models] == ["a"]
    monkeypatch.setattr(unfinished_report, "PAUSE", 0)
    with keep_finished(tmp_path / "out") as keep:
        keep(of("b"))
        assert [one["name"] for one in load_report(earlier).models] == ["b"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("given", "kept"), [(".", "here-unfinished"), ("v1.2", "v1.2-unfinished")])
def test_a_folder_is_named_after_the_one_that_was_asked_for(given, kept, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert UnfinishedReport(Path(given)).folder.name == kept
