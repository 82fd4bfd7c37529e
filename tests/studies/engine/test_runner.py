"""A study by name: its record, its folder, its options, and what a user may mistype."""

import dataclasses
import json
import re
import sys
from functools import wraps
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import layerlab
from layerlab import UserError
from layerlab.report.pages.study import language_of
from layerlab.studies.engine import runner
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.record import StudyResult, load_record
from layerlab.studies.engine.runner import StudyRequest, find_study, study
from layerlab.system.locks import lock_folder
from tests.support.oldest import read_csv
from tests.support.refused import refuses

QUICK = {"draws": 8, "progress": False, "threads": 1}


@pytest.fixture(scope="module")
def record():
    return study("rounding-input", **QUICK)


def test_every_study_of_the_issue_is_found_and_says_what_it_is():
    every = studies()
    assert {
        "rounding-depth",
        "rounding-norm",
        "rounding-input",
        "rounding-placement",
        "layernorm-against-rmsnorm",
        "condition-alone",
        "backward",
        "stochastic",
    } <= set(every)
    for name, one in every.items():
        assert name == one.name and re.fullmatch(r"[a-z0-9-]+", name)
        assert one.claim.endswith(".") and one.title and one.cost and one.draws > 0
        assert set(one.domains) == set(one.options)
        assert all(value in one.domains[key] for key, value in one.options.items())
        assert set(one.fast) <= {"draws", *one.options} and bool(one.fast) is not one.fixed


@pytest.mark.full
def test_the_fast_mode_takes_fewer_draws_and_what_is_given_wins():
    fast = {"fast": True, "progress": False, "threads": 1}
    assert study("rounding-input", **fast).settings["draws"] == 400
    assert study("rounding-input", **fast, draws=8).settings == {
        "draws": 8,
        "seed": 0,
        "digits": 16,
    }


@pytest.mark.full
def test_a_record_gives_its_verdict_its_number_and_its_readings(record):
    assert record.verdict in {"holds", "fails", "not decided"}
    assert record.number == record.verdicts[0]["number"]
    assert record.settings == {"draws": 8, "seed": 0, "digits": 16}
    assert record.frame().equals(record.frame("norms")) and len(record.frame()) == 24
    assert record.verdict in repr(record)
    text = "".join(piece for line in record.lines() for piece, _ in line)
    assert record.verdicts[0]["claim"] in text and record.verdicts[1]["said"] in text


@pytest.mark.full
def test_the_same_settings_give_the_same_numbers_and_others_do_not(record):
    again = study("rounding-input", **QUICK)
    assert again.frame().equals(record.frame())
    assert not study("rounding-input", **QUICK, seed=1).frame().equals(record.frame())


def test_a_study_computes_with_what_was_given(tmp_path, monkeypatch):
    usual = find_study("rounding-input")

    @wraps(usual.run)
    def run(work):
        works.append(work)
        return usual.run(work)

    works = []
    watched = dataclasses.replace(usual, run=run, fast={"draws": 4, "digits": 12})
    monkeypatch.setattr(runner, "find_study", lambda name: watched)
    given = {"draws": 8, "seed": 3, "threads": 2, "runs": tmp_path, "fast": True}
    found = study("rounding-input", **given, digits=8, progress=False).to_dict()
    assert {name: getattr(works[0], name) for name in given} == given
    assert works[0].options == {"digits": 8} and works[0].models == usual.models
    assert found["machine"]["threads"] == 2 and found["fast"] is True


def test_a_result_is_of_one_study_its_settings_its_mode_and_its_runs(tmp_path):
    found = dataclasses.replace(find_study("rounding-input"), inputs=str)
    plan = StudyRequest(study=found, draws=8, seed=0, threads=1, options={}, out=tmp_path / "out")
    others = [
        dataclasses.replace(plan, **change)
        for change in (
            {"study": dataclasses.replace(found, name="other")},  # of the same code
            {"seed": 1},
            {"options": {"digits": 8}},
            {"draws": 9},
            {"fast": True},
            {"runs": tmp_path},
        )
    ]
    assert len({plan.key, *(one.key for one in others)}) == 7
    # More draws go on from the batches of fewer.
    assert [one.sessions == plan.sessions for one in others] == [False] * 3 + [True] * 3


def test_a_command_names_what_is_not_usual():
    drawn, trained = find_study("rounding-input"), find_study("norm-placement")

    def words(found, **given):
        usual = {"draws": found.draws, "seed": 0, "options": found.options}
        command = StudyRequest(study=found, threads=1, **{**usual, **given}).command
        return command.removeprefix(f"layerlab study {found.name}").split()

    elsewhere = Path("elsewhere")
    assert words(drawn) == words(trained) == words(drawn, runs=elsewhere) == []
    assert words(trained, runs=elsewhere) == ["--runs", "elsewhere"]
    assert words(drawn, fast=True, draws=400) == ["--fast"]
    changed = words(drawn, draws=9, seed=2, options={"digits": 8})
    assert changed == ["--draws", "9", "--seed", "2", "--option", "digits=8"]


def test_the_fast_mode_takes_fewer_draws_of_models_that_are_named(monkeypatch):
    monkeypatch.setattr(runner, "run_study", lambda plan, progress: plan)
    fast = {"fast": True, "threads": 1}
    assert study("path-length", **fast).draws == 120
    named = study("path-length", **fast, device="cpu", dtype="float32")
    assert named.draws == 16 and study("path-length", **fast, draws=7, device="cpu").draws == 7
    assert [(one.device, one.dtype) for one in named.given.values()] == [("cpu", "float32")]


def test_a_study_takes_a_device_of_its_own_and_all_the_draws_there_are(monkeypatch):
    monkeypatch.setattr(runner, "run_study", lambda plan, progress: plan)
    assert study("latency-measured", device="cpu").options == {"width": 1024, "device": "cpu"}
    for name, draws in (("saliency-repeat", 72), ("ablation-noise", 1), ("batch-confound", 3)):
        assert study(name, draws=draws).draws == draws


def test_a_folder_holds_page_tables_and_settings(tmp_path):
    found = study("rounding-input", **QUICK, out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "batches are gone"
    held = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    held.discard("norms.svg")  # is there where the extra `figures` is
    assert held == {"study.html", "study.json", "tables/norms.csv"}
    content = json.loads((tmp_path / "out" / "study.json").read_text())
    assert content["settings"]["draws"] == 8 and content["time"]["processor seconds"] >= 0
    assert read_csv(tmp_path / "out" / "tables" / "norms.csv").equals(found.frame())
    page = (tmp_path / "out" / "study.html").read_text()
    assert found.verdicts[0]["claim"] in page and "Content-Security-Policy" in page
    assert not re.search(r'(?:src|href)="https?:', page.split("<script")[0])


@pytest.mark.full
def test_a_finished_study_is_read_and_not_run_again(tmp_path, monkeypatch):
    first = study("rounding-input", **QUICK, out=tmp_path / "out")
    found = find_study("rounding-input")

    @wraps(found.run)
    def counted(work):
        calls.append(work.draws)
        return found.run(work)

    calls = []
    watched = dataclasses.replace(found, run=counted)
    monkeypatch.setattr(runner, "find_study", lambda name: watched)
    assert study("rounding-input", **QUICK, out=tmp_path / "out").to_dict() == first.to_dict()
    assert calls == []
    study("rounding-input", **QUICK, out=tmp_path / "out", restart=True)
    study("rounding-input", **{**QUICK, "draws": 9}, out=tmp_path / "out")
    assert calls == [8, 9]


@pytest.mark.parametrize("restart", [False, True])
def test_a_restart_takes_no_batch_of_before(restart, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(runner, "_record", None)  # interrupted before it is written
        with pytest.raises(TypeError):
            study("rounding-input", **QUICK, out=tmp_path / "out")
    found = study("rounding-input", **QUICK, out=tmp_path / "out", restart=restart).to_dict()
    assert found["batches"] == {"all": 8, "kept from an earlier run": 0 if restart else 8}


def test_what_another_run_wrote_in_the_meantime_is_read_in_the_language_asked_for(
    tmp_path, monkeypatch
):
    def late(folder):
        first.append(study("rounding-input", **QUICK, out=folder, lang="zh").to_dict())
        return lock_folder(folder)

    first = []
    calls = iter((late, lock_folder))
    monkeypatch.setattr(runner, "lock_folder", lambda folder: next(calls)(folder))
    found = study("rounding-input", **QUICK, out=tmp_path / "out")
    assert [found.to_dict()] == first and language_of(tmp_path / "out" / "study.html") == "en"


def test_a_page_keeps_hostile_text_as_text(record, tmp_path):
    content = record.to_dict()
    content["claim"] = content["remarks"] = ["</script><img src=x onerror=alert(1)>"]
    content["pictures"][0]["title"] = "</script><b>"
    StudyResult(content).save(tmp_path / "out")
    page = (tmp_path / "out" / "study.html").read_text()
    assert "<img src=x" not in page and "</script><b>" not in page


def kaleido(monkeypatch, write):
    """Stand in for the extra: what it is told to write, `write` does."""
    fake = SimpleNamespace(__spec__=object(), write_fig_from_object_sync=write)
    monkeypatch.setitem(sys.modules, "kaleido", fake)


def test_pictures_are_drawn_where_they_are_asked_for(record, tmp_path, monkeypatch):
    def write(orders, **options):
        for order in orders:
            drawn.append(order)
            Path(order["path"]).write_bytes(order["opts"]["format"].encode())

    drawn = []
    kaleido(monkeypatch, write)
    monkeypatch.setattr(layerlab.studies.engine.record, "check_drawing", lambda kind: None)
    record.save(tmp_path / "out")
    assert not drawn
    record.save(tmp_path / "out", figures="svg")
    assert (tmp_path / "out" / "norms.svg").read_bytes() == b"svg" and len(drawn) == 1
    record.save(tmp_path / "out", figures="pdf")  # its own pictures may be replaced
    assert (tmp_path / "out" / "norms.pdf").read_bytes() == b"pdf"
    assert not (tmp_path / "out" / "norms.svg").exists()


def test_a_picture_that_cannot_be_drawn_is_one_line(record, tmp_path, monkeypatch):
    def write(*args, **options):
        raise RuntimeError("no browser")

    kaleido(monkeypatch, write)
    monkeypatch.setattr(layerlab.studies.engine.record, "check_drawing", lambda kind: None)
    record.save(tmp_path / "out")
    refuses("the figures were not drawn: no browser", record.save, tmp_path / "out", figures="svg")
    assert (tmp_path / "out" / "study.html").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    with monkeypatch.context() as patched:
        patched.setattr(runner, "_compute", None)  # before any work
        refuses("name a new or an empty folder", study, "rounding-input", **QUICK, out=tmp_path)
    study("rounding-input", **QUICK, out=tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something other than a study"):
        study("rounding-input", **QUICK, out=tmp_path / "out", seed=1)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_record_of_another_schema_or_none_is_no_record(tmp_path):
    assert load_record(tmp_path) is None
    (tmp_path / "study.json").write_text('{"schema": 99}')
    assert load_record(tmp_path) is None
    (tmp_path / "study.json").write_text("[")
    assert load_record(tmp_path) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "rounding-deph"}, "no study is called 'rounding-deph'; did you mean"),
        ({"draws": 2}, "draws is 2; expected a whole number at least 4"),
        (
            {"draws": 2.5},
            "expected a whole number at least 4 and at most 10000000: type for example",
        ),
        ({"threads": 0}, "threads is 0; expected a whole number"),
        ({"seed": -1}, "seed is -1; expected a whole number"),
        ({"digit": 8}, "has no option 'digit'; did you mean 'digits'"),
        ({"digits": 60}, "option digits is 60; expected a whole number at least 4"),
        ({"digits": "many"}, "option digits is 'many'; expected a whole number"),
        (
            {"name": "saliency-repeat", "draws": 73},
            "has 72 different texts, and draws is 73: type draws=72, or fewer",
        ),
        (
            {"name": "fewer-layers", "draws": 9},
            "has 1 exact count, and draws is 9; leave draws out",
        ),
        ({"name": "tokenizer-table", "draws": 25}, "has 24 different files of code, and draws is"),
    ],
)
def test_what_a_user_may_mistype_is_one_line(given, said):
    refuses(re.escape(said), layerlab.study, **{"name": "rounding-input", **QUICK, **given})


def test_memory_that_runs_out_is_one_line(monkeypatch):
    usual = find_study("rounding-input")

    @wraps(usual.run)
    def run(work):
        raise MemoryError

    short = dataclasses.replace(usual, run=run)
    monkeypatch.setattr(runner, "find_study", lambda name: short)
    refuses("type --device auto, or fewer --threads", study, "rounding-input", **QUICK)


def test_a_table_that_is_not_there_is_named(record):
    refuses("this study has no table 'norm'; did you mean 'norms'", record.frame, "norm")


def test_two_studies_of_one_name_are_an_error(monkeypatch):
    from layerlab.studies.budzinskiy25 import figure1_depth, figure2_spectral_norm

    monkeypatch.setattr(figure2_spectral_norm, "STUDY", figure1_depth.STUDY)
    refuses("two studies are called 'rounding-depth'", studies)


def test_numbers_of_a_record_survive_the_file(record, tmp_path):
    frame = record.frame()
    frame.loc[0, "mean"], frame.loc[1, "mean"] = np.inf, np.nan
    StudyResult(record.to_dict(), {"norms": frame}).save(tmp_path / "out")
    back = load_record(tmp_path / "out")
    assert back is not None and back.frame().equals(frame)
