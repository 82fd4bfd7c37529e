"""`layerlab runs` as a user types it."""

import json
import re
from pathlib import Path

from tests.hostile.attack import typed
from tests.training.support.drawn import recipe, record, runs, write

RUN = runs(recipe())[0]


def test_the_table_the_page_and_json(tmp_path, monkeypatch):
    write(tmp_path / "out", record(RUN, 3.5))
    monkeypatch.chdir(tmp_path)
    shown = typed("runs", "--html", "all.html")
    assert shown.code == 0 and not shown.err
    assert re.search(rf"run +finished +{RUN.name}\n  3\.5000 nats per token", shown.out)
    assert f"\n  out/{RUN.name}\n" in shown.out
    assert shown.out.endswith("1 run\nThe page: all.html\n")
    assert (tmp_path / "all.html").is_file()
    printed = typed("runs", "out", "--json")
    assert json.loads(printed.out)["entries"][0]["folder"] == RUN.name


def test_the_newest_twenty_are_printed_and_all_where_they_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(21):
        place = tmp_path / f"study-{number}"
        place.mkdir()
        (place / "study.json").write_text(json.dumps({"study": "gain", "verdicts": []}))
    few, every = typed("runs"), typed("runs", "--all")
    assert few.out.count("no verdict") == 20 and every.out.count("no verdict") == 21
    assert few.out.endswith("21 studies\nThe newest 20 of 21; --all shows the others.\n")
    assert every.out.endswith("21 studies\n")
    assert len(json.loads(typed("runs", "--json").out)["entries"]) == 21


def test_a_name_in_a_file_steers_no_terminal(tmp_path, monkeypatch):
    evil = "a\x1b]0;owned\x07\ud83d"
    (tmp_path / "study.json").write_text(json.dumps({"study": evil, "verdicts": [{"word": evil}]}))
    monkeypatch.chdir(tmp_path)
    for words in ((), ("--json",), ("--html", "x.html"), ("--html", "x.html", "--lang", "zh")):
        done = typed("runs", *words).survived()
        assert done.code == 0
        assert not [one for one in done.out if not one.isprintable() and one != "\n"]


def test_mistakes_get_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed("runs", "gone").refused("no folder at 'gone'; expected one that layerlab wrote into")
    typed("runs", "--lang", "fr").refused("there is no page in 'fr'")
    Path("notes.html").write_text("mine")
    typed("runs", "--html", "notes.html").refused("is no page of layerlab runs")
    assert typed("runs").out.startswith("Nothing of layerlab's is in .;")
