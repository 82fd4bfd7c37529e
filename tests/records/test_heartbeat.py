"""The last update of a journal, read from its end and no further than that."""

import json
import os

import pytest

from layerlab.records.heartbeat import MOST, Heartbeat, last_update


def event(kind: str, update: int) -> str:
    return json.dumps({"kind": kind, "update": update}) + "\n"


def note(update: int, text: str) -> str:
    return json.dumps({"kind": "note", "update": update, "text": text}) + "\n"


def test_the_last_update_stands_before_other_events_and_lines_that_are_cut_off(tmp_path):
    journal = tmp_path / "events.jsonl"
    deep = "[" * 9_999 + "\n"
    journal.write_text(event("train", 1) + event("train", 2) + event("note", 2) + deep + '{"ki')
    assert last_update(journal) == {"kind": "train", "update": 2}
    assert last_update(tmp_path / "gone") is None


@pytest.mark.full
def test_only_the_end_of_a_journal_is_read(tmp_path):
    journal = tmp_path / "events.jsonl"
    journal.write_text(event("train", 1) + event("note", 1) * (MOST // 20))
    assert last_update(journal) is None


def test_a_journal_that_is_touched_is_alive_and_has_no_news(tmp_path):
    journal = tmp_path / "events.jsonl"
    journal.write_text(event("train", 1))
    sign = Heartbeat(tmp_path)
    sign.silent()
    sign._since -= 100
    assert sign.news() == [{"kind": "train", "update": 1}] and sign.silent() > 99
    os.utime(journal)
    assert not sign.news() and sign.silent() < 1


def test_a_note_is_news_once_also_where_a_journal_is_cut(tmp_path):
    journal = tmp_path / "events.jsonl"
    about_texts, earlier = note(0, "short"), note(1, "earlier")
    journal.write_text(about_texts + event("train", 1) + earlier)
    sign = Heartbeat(tmp_path)
    trained = "".join(event("train", update) for update in range(2, 8))
    journal.write_text(about_texts + event("train", 1) + earlier + trained + note(7, "no space"))
    assert [one.get("text", one["update"]) for one in sign.news()] == ["no space", 7]
    with journal.open("a") as stream:
        stream.write(note(7, "more") + note(7, "again"))
    assert [one.get("text", one["update"]) for one in sign.news()] == ["more", "again", 7]
    resumed = event("train", 1) + earlier + event("train", 2) + note(2, "other processes")
    journal.write_text(about_texts + resumed + event("train", 3))
    assert [one.get("text", one["update"]) for one in sign.news()] == ["other processes", 3]
    with journal.open("a") as stream:
        stream.write(event("train", 4))
    assert sign.news() == [{"kind": "train", "update": 4}]
