"""Events on a disk that is full: nothing is lost, and what to do is said in a line."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.records.events import FILE, EventLog, find_misfit, read
from tests.support.mounted import room
from tests.support.refused import refuses


def texts(folder: Path) -> list[str]:
    lines = (folder / FILE).read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def test_events_wait_for_room_and_come_in_order_and_once(tmp_path):
    journal = EventLog(tmp_path, 0)
    journal.write("note", 1, text="before")
    # A part of the next line still finds room.
    with room((tmp_path / FILE).stat().st_size + 20):
        journal.write("note", 2, text="first")
        journal.write("note", 3, text="second")
        assert [one["update"] for one in read(tmp_path)] == [1]
    journal.write("note", 4, text="after")
    journal.settle()
    assert texts(tmp_path) == ["before", "first", "second", "after"]
    assert journal.count == 4


@pytest.mark.parametrize("kept", [True, False])
def test_a_checkpoint_finds_no_room_and_the_user_is_told(tmp_path, kept):
    if kept:
        (tmp_path / "checkpoints" / "step-00000120").mkdir(parents=True)
    journal = EventLog(tmp_path, 0)
    journal.write("note", 1, text="before")
    with room((tmp_path / FILE).stat().st_size), pytest.raises(UserError) as told:
        journal.write("note", 2, text="first")
        journal.settle()
    said = str(told.value)
    assert "\n" not in said
    assert said.startswith(f"cannot write {tmp_path / FILE}: no more could be written, for want of")
    expected = (
        "make room there, then type the same command, which goes on from update 120"
        if kept
        else "make room there, then type the same command, which begins anew"
    )
    assert said.endswith(expected)
    # The same command goes on from there.
    EventLog(tmp_path, 1).write("note", 2, text="again")
    assert texts(tmp_path) == ["before", "again"]


def test_what_room_does_not_mend_is_told_at_once(tmp_path):
    journal = EventLog(tmp_path, 0)
    (tmp_path / FILE).unlink()
    refuses("No such file or directory; make room there", journal.write, "note", 1, text="lost")


def test_a_journal_is_known_again_up_to_its_mark_and_no_further(tmp_path):
    journal = EventLog(tmp_path, 0)
    for update in (1, 2):
        journal.write("note", update, text="caf\u00e9")
    mark = journal.mark()
    journal.write("note", 3, text="later")
    journal.settle()
    assert mark["events"] == 2 and find_misfit(tmp_path, mark) is None
    again = EventLog(tmp_path, 2)
    assert again.mark() == mark and texts(tmp_path) == ["caf\u00e9"] * 2
    again.write("note", 3, text="later")
    assert again.mark() != mark and find_misfit(tmp_path, again.mark()) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            '{"update":1}\n{"update":3}\n',
            "one of the 2 events in events.jsonl that it relies on was changed",
        ),
        ('{"update":1}\n', "1 of the 2 events in events.jsonl that it relies on are left"),
        (
            '{"update":1}\n{"update":2}',
            "1 of the 2 events in events.jsonl that it relies on are left",
        ),
        (
            '{"update":1}\n[2]\n{"update":2}\n',
            "1 of the 2 events in events.jsonl that it relies on are left",
        ),
        (None, "0 of the 2 events in events.jsonl that it relies on are left"),
    ],
)
def test_what_became_of_the_events_of_a_checkpoint_is_said(tmp_path, content, said):
    mark = {"events": 2, "journal": hashlib.sha256(b'{"update":1}\n{"update":2}\n').hexdigest()}
    (tmp_path / FILE).write_text('{"update":1}\n{"update":2}\n')
    assert find_misfit(tmp_path, mark) is None
    (tmp_path / FILE).unlink()
    if content is not None:
        (tmp_path / FILE).write_text(content)
    assert (found := find_misfit(tmp_path, mark)) is not None and said in found


def test_a_journal_that_is_no_file_or_is_not_counted_is_said(tmp_path):
    (tmp_path / FILE).mkdir()
    assert "which it relies on, cannot be read (Is a directory)" in (
        find_misfit(tmp_path, {"events": 1}) or ""
    )
    for count in (None, "2", -1):
        assert find_misfit(tmp_path, {"events": count}) == "it counts no events"
    refuses(r"cannot write .*: Is a directory", EventLog, tmp_path, 0)


def test_a_copy_by_hard_links_does_not_change_with_the_run(tmp_path):
    journal, copy = EventLog(tmp_path / "run", 0), tmp_path / "copy.jsonl"
    for update in range(5):
        journal.write("train", update)
    os.link(journal.file, copy)
    before = copy.read_bytes()
    EventLog(tmp_path / "run", 2).write("train", 9)
    assert copy.read_bytes() == before and len(list(read(tmp_path / "run"))) == 3
    assert sorted(one.name for one in (tmp_path / "run").iterdir()) == ["events.jsonl"]


def test_a_sign_of_life_changes_the_time_of_the_journal_and_once_a_second(tmp_path):
    journal = EventLog(tmp_path, 0)
    journal.write("note", 1, text="before")
    for beaten in (True, False):
        os.utime(journal.file, (0, 0))
        journal.beat()
        assert (journal.file.stat().st_mtime > 0) is beaten
    assert texts(tmp_path) == ["before"]
    journal.file.unlink()
    journal._beaten = 0.0
    journal.beat()
    assert not journal.file.exists()
