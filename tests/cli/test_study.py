"""`layerlab study` as a user types it, and killed in the middle."""

import json
import os
import signal
import time

import pytest

from layerlab.cli.study import read_options
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.runner import study
from tests.cli.several import several
from tests.support.forked import Forked
from tests.support.refused import refuses

NAME, OPTIONS = "rounding-depth", {"layers": 4, "norm": "rms"}
QUICK = {"draws": 8, "threads": 1, "progress": False}
WORDS = [word for name, value in OPTIONS.items() for word in ("--option", f"{name}={value}")]


# A suite that runs in the background inherits a SIGINT that is ignored.
PROGRAM = """
import signal
from layerlab.__main__ import main

signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def stopped(folder, how, after):
    """Start the command, stop it when so many batches are stored; its exit code and words."""
    typed = ["study", NAME, *WORDS, "--draws", "100000", "--threads", "1", "--out", "out"]
    command = Forked("-c", PROGRAM, *typed, cwd=folder)
    store, limit = folder / ".out.batches", time.monotonic() + 200
    while len([*store.glob("*.npz")]) < after:
        assert command.process.is_alive() and time.monotonic() < limit, "no batch was stored"
        time.sleep(0.01)
    os.kill(command.process.pid, how)
    ended = command.wait(timeout=200)
    return ended.returncode, ended.stderr


@pytest.mark.full
def test_a_study_that_was_interrupted_and_killed_goes_on_where_it_was(tmp_path):
    code, error = stopped(tmp_path, signal.SIGINT, 1)
    assert code == 130
    assert "interrupted; what is finished is kept: type the same command to go on" in error
    assert "Traceback" not in error and not (tmp_path / "out").exists()
    kept = len([*(tmp_path / ".out.batches").glob("*.npz")])
    code, _ = stopped(tmp_path, signal.SIGKILL, kept + 1)
    assert code == -signal.SIGKILL and not (tmp_path / "out").exists()

    settings = {"draws": 64 * (kept + 2), "threads": 1, "progress": False, **OPTIONS}
    finished = study(NAME, out=tmp_path / "out", **settings)
    assert finished.to_dict()["batches"] == {
        "all": kept + 2,
        "kept from an earlier run": pytest.approx(kept + 1.5, abs=0.5),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no batch is left"
    fresh = study(NAME, **settings)
    assert all(finished.frame(name).equals(frame) for name, frame in fresh.frames.items())


@pytest.mark.full
def test_a_study_that_was_terminated_says_what_is_kept(tmp_path):
    code, error = stopped(tmp_path, signal.SIGTERM, 1)
    assert code == 143 and [*(tmp_path / ".out.batches").glob("*.npz")]
    assert "interrupted; what is finished is kept: type the same command to go on" in error


@pytest.mark.full
def test_the_list_one_study_and_mistakes(tmp_path):
    quick = ("study", "rounding-input", "--draws", "8", "--threads", "1")
    listed, run, printed, lost, word, keyword, unknown, none, alone, option = several(
        [
            ("study",),
            quick,
            (*quick, "--json", "-q"),
            ("study", "--draws", "8"),
            ("study", "rounding-input", "--option", "digits"),
            ("study", "rounding-input", "--option", "draws=9"),
            ("study", "rounding-inputs"),
            ("study", "rounding-input", "--model", "llama"),
            ("study", "--all", "--model", "llama"),
            ("study", "attention-lambda", "--option", "model=llama"),
        ],
        tmp_path,
    )
    assert (none.code, alone.code, option.code) == (2, 2, 2)
    assert "study rounding-input reads no model and no text; leave --model" in none.error
    assert "or --json beside --all; expected --all without them" in alone.error
    assert "model is no option of a study; type --model llama" in option.error
    assert "attention-lambda  pangu23, 40 draws, 30 seconds, takes --model" in listed.out
    assert (
        listed.code == 0
        and "rounding-placement" in listed.out
        and "5000" in listed.out
        and "24 runs" in listed.out
    )
    assert run.code == 0 and "100%" in run.error
    assert run.out.startswith(("holds", "fails", "not decided")) and "study.html" in run.out
    assert (tmp_path / "layerlab-studies" / "rounding-input" / "study.html").is_file()
    assert json.loads(printed.out)["study"] == "rounding-input" and printed.error == ""
    assert (lost.code, word.code, keyword.code, unknown.code) == (2, 2, 2, 2)
    assert "settings without a study; expected its name before them" in lost.error
    assert "cannot read the option 'digits'; expected a name and a value" in word.error
    assert "draws is no option of a study; type --draws 9" in keyword.error
    assert "no study is called 'rounding-inputs'" in unknown.error


def test_options_are_read_as_those_of_a_variant_with_an_example_of_a_study():
    assert read_options(["norm=rms", "layers=4", "variance=0.5"]) == {
        "norm": "rms",
        "layers": 4,
        "variance": 0.5,
    }
    refuses("expected a name and a value: type --option norm=rms", read_options, ["=3"])


@pytest.mark.full
@pytest.mark.parametrize("width", [60, 80])
def test_verdicts_are_wrapped_below_their_words_and_a_path_stays_whole(width, tmp_path):
    record = study("rounding-input", out=tmp_path / ("x" * 90), **QUICK)
    whole, wrapped = (one.renderables for one in (record.table(), record.table(width)))
    assert [one.plain.split() for one in whole] == [one.plain.split() for one in wrapped]
    *told, page = (one.plain.split("\n") for one in wrapped)
    assert max(len(line) for lines in told for line in lines) <= width
    assert page == ["The page:", str(record.folder / "study.html")]
    first = wrapped[0]
    assert len(told[0]) > 1 and told[0][1].startswith(" " * 13)
    (word,) = {first.plain[one.start : one.end].strip() for one in first.spans}
    assert word == "not decided"  # so few draws decide nothing


def test_the_list_cuts_nothing_that_one_types(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (found,) = several([("study",)], tmp_path)
    lines = [line.rstrip() for line in found.out.splitlines()]
    assert found.code == 0 and max(map(len, lines)) <= 80 and "…" not in found.out
    for one in studies().values():
        (head,) = [n for n, line in enumerate(lines) if line.startswith(f"{one.name}  ")]
        assert lines[head].endswith(one.cost + ", takes --model" * bool(one.models))
        after = next(
            n for n in range(head + 1, len(lines) + 1) if not lines[n : n + 1] or lines[n][0] != " "
        )
        assert " ".join(line.strip() for line in lines[head + 1 : after]) == one.claim
