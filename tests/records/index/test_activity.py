"""Who is still at work: a lock says so, and where there are none, what was written lately."""

import os

from layerlab.records.index import activity
from layerlab.records.index.activity import FRESH, state_of_unfinished


def test_without_locks_what_was_written_lately_counts(tmp_path, monkeypatch):
    journal = tmp_path / "events.jsonl"
    journal.write_text("")
    assert state_of_unfinished(tmp_path, [journal]) == "interrupted"
    monkeypatch.setattr(activity, "is_locked", lambda folder: None)
    assert state_of_unfinished(tmp_path, [tmp_path / "gone", journal]) == "running"
    past = journal.stat().st_mtime - FRESH - 1
    os.utime(journal, (past, past))
    assert state_of_unfinished(tmp_path, [journal]) == "interrupted"
