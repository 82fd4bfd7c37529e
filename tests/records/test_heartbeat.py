"""The last update of a journal, read from its end and no further than that."""

import json
import os

import pytest

from layerlab.records.heartbeat import MOST, Heartbeat, last_update


def event(kind: str, update: int) -> str:
    return json.dumps({"kind": kind, "update": update}) + "\n"


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
    assert sign.news() == {"kind": "train", "update": 1} and sign.silent() > 99
    os.utime(journal)
    assert sign.news() is None and sign.silent() < 1
