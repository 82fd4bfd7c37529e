"""`layerlab adapt vocabulary`, from words on a command line to a folder; and the source's table."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import typer
from transformers import AutoTokenizer

from layerlab.cli.adapt.group import Stages
from layerlab.tokenization.published_rates import TABLE, questions
from layerlab.tokenization.vocabulary.change import VocabularyRequest, change, parse_size
from tests.adaptation.bpe import GENERAL, LAW, bytewise
from tests.support.forked import python
from tests.support.reader import write_jec_qa
from tests.support.refused import refuses

QUESTION = {"passage": None, "question": "被告人的行为是？", "options": ["(A)盗窃", "(B)诈骗"]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    """A folder with a tokenizer, texts, and a data folder that has JEC-QA in its own form."""
    bytewise().save_pretrained(tmp_path / "base")
    (tmp_path / "law.txt").write_text("\n".join(LAW), "utf-8")
    rows = "".join(json.dumps({"text": text}) + "\n" for text in GENERAL)
    (tmp_path / "general.jsonl").write_text(rows, "utf-8")
    (tmp_path / "terms.txt").write_text("被告人\n\n有期徒刑\n", "utf-8")
    data = tmp_path / "data"
    bytewise().save_pretrained(data / "tokenizers" / "small")
    (data / "tokenizers" / "empty").mkdir()
    write_jec_qa(data, QUESTION)
    monkeypatch.setenv("LAYERLAB_DATA", str(data))
    return tmp_path


def typed(place: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "100"}
    return python("-m", "layerlab", "adapt", *map(str, words), cwd=place, env=env)


def asked(place: Path, size: str, *more: object) -> list[object]:
    files = ["--tokenizer", "base", "--corpus", "law.txt"]
    return ["vocabulary", *files, "--size", size, "--out", "out", *more]


def test_a_vocabulary_is_extended_and_proved(place):
    against = ["--against", "general.jsonl", "--against", "jec-qa"]
    said = typed(place, *asked(place, "+20", *against, "--terms", "terms.txt"))
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("proved\n332 entries are now 352: 20 added, 0 removed\n")
    assert "published: pangu23, Table 7" in said.stdout and "empty is left out" in said.stdout
    assert "extending it" in said.stderr
    found = json.loads((place / "out" / "proof.json").read_text("utf-8"))
    assert found["holds"] and found["terms"]["terms"] == 2
    names = [one["name"] for one in found["texts"]]
    assert names == ["law.txt, by line", "general.jsonl", "jec-qa"]
    # One file of text has no other boundary than its lines.
    assert [one["new"]["texts"] for one in found["texts"]] == [len(LAW), len(GENERAL), 2]
    page = (place / "out" / "proof.html").read_text("utf-8")
    for told in ("The proof holds: 20 entries added", "law.txt, by line", "pangu23", "<!doctype"):
        assert told in page, told
    rows = found["published"]["rows"]
    assert [row["tokenizer"] for row in rows if row["published"]] == [
        row.tokenizer for row in TABLE
    ]
    assert [row["tokenizer"] for row in rows[len(TABLE) :]] == ["small", "this base", "this one"]
    assert rows[-1]["rate"] == found["texts"][2]["new"]["tokens_per_character"]
    words = AutoTokenizer.from_pretrained(place / "out")
    assert len(words) == 352 and not (place / "out" / "kept.json").exists()
    # The same again takes the place of what was there.
    said = typed(place, *asked(place, "+20", "--json", "--quiet"))
    assert (said.returncode, said.stderr) == (0, "")
    assert json.loads(said.stdout)["published"] == {}


@pytest.mark.full
def test_a_text_that_is_read_in_place_of_another_is_called_so(place):
    said = typed(place, *asked(place, "+4", "--against", "law-zh", "--json", "--quiet"))
    names = [one["name"] for one in json.loads(said.stdout)["texts"]]
    assert names == ["law.txt, by line", "python-docs in place of law-zh"]


def test_a_vocabulary_is_cut_down(place):
    said = typed(place, *asked(place, "280"))
    assert "332 entries are now 280: 0 added, 52 removed" in said.stdout, said.stderr
    kept = json.loads((place / "out" / "kept.json").read_text("utf-8"))
    words = AutoTokenizer.from_pretrained(place / "out")
    base = bytewise()
    assert words.convert_ids_to_tokens(range(280)) == base.convert_ids_to_tokens(kept)


@pytest.mark.full
def test_what_cannot_be_done_is_one_line(place, monkeypatch):
    def refused(*words: object) -> str:
        said = typed(place, *words)
        assert said.returncode == 2 and not (place / "out").exists()
        return said.stderr.splitlines()[-1]

    for size in ("1.5", "+4k", "-3", "+0", ""):
        assert f"cannot read the size {size!r}; type +1600 to add" in refused(*asked(place, size))
    assert "cannot prune a vocabulary of 332 entries to 9,000" in refused(*asked(place, "9000"))
    (place / "law.txt").write_bytes("Angeklagte Müller".encode("latin1"))
    assert "is probably Latin 1: type: iconv -f latin1 -t utf-8" in refused(*asked(place, "+4"))
    (place / "law.txt").write_bytes("第一条　为了保护民事主体的合法权益".encode("gb18030"))
    assert "is probably GB 18030: type: iconv -f gb18030" in refused(*asked(place, "+4"))
    (place / "law.txt").write_text("")
    assert "holds no text; give one with words in it" in refused(*asked(place, "+4"))
    (place / "law.txt").write_text("\n".join(LAW), "utf-8")
    (place / "terms.txt").write_text("\n")
    said = refused(*asked(place, "+4", "--terms", "terms.txt"))
    assert said.endswith("terms.txt holds no terms; write one on each line")
    assert "there is no text 'jec-qa'" in refused(*asked(place, "+4", "--corpus", "jec-qa"))
    monkeypatch.setenv("LAYERLAB_DATA", str(place))
    said = refused(*asked(place, "+4", "--against", "jec-qa"))
    assert "jec-qa is not here: LAYERLAB_DATA names no folder with agieval" in said
    assert "type layerlab adapt vocabulary --help" in refused("vocabulary")


def test_a_word_that_is_no_stage_goes_to_the_recipe():
    app = typer.Typer(cls=Stages)
    given: list[str] = []
    app.command("other")(lambda: given.append("other"))
    app.command("recipe")(lambda name: given.append(name))
    for words in (["other"], ["mine.toml"], ["recipe", "other"]):
        app(words, standalone_mode=False)
    assert given == ["other", "mine.toml", "other"]


def test_a_folder_of_other_things_is_not_replaced(place):
    (place / "out").mkdir()
    (place / "out" / "mine.txt").write_text("mine")
    assert typed(place, *asked(place, "+4")).returncode == 2
    assert (place / "out" / "mine.txt").read_text() == "mine"


def test_sizes_are_read():
    assert parse_size(" +12 ") == (True, 12) and parse_size("12") == (False, 12)


def test_questions_are_read_with_their_options(place, monkeypatch):
    assert questions() == ["被告人的行为是？\n(A)盗窃\n(B)诈骗"] * 2
    (place / "data" / "agieval" / "agieval-v1.tar.gz").write_bytes(b"no archive")
    refuses("jec-qa is not here", questions)


def test_the_real_questions_are_read(data):
    found = questions()
    assert len(found) == 2000 and all("(A)" in text for text in found)


def test_the_published_table_adds_up():
    entries = {row.tokenizer: row.entries for row in TABLE}
    assert list(entries) == ["LLaMA2", "InternLM", "Baichuan2", "PanGu", "YunShan"]
    assert entries["YunShan"] - entries["PanGu"] == 9545 and all(row.published for row in TABLE)


def test_the_share_that_is_done_is_told(place):
    told: list[tuple[str, float]] = []
    law = (str(place / "law.txt"),)
    request = VocabularyRequest(tokenizer=str(place / "base"), size="+5", corpus=law)
    change(request, place / "out", [].append, tell=lambda *news: told.append(news))
    by_part = {what: [share for name, share in told if name == what] for what, _ in told}
    counted, learned, proved = by_part.values()
    assert list(by_part)[:2] == ["counting words", "learning merges"]
    assert counted == [1.0] and proved[-1] == 1.0 and learned[-1] == 1.0
    assert learned == sorted(learned) and proved == sorted(proved)
