"""Events on a disk that is full: nothing is lost, and what to do is said in a line."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.records.events import FILE, EventLog, read


@contextmanager
def room(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond so many bytes: the system itself refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def texts(folder: Path) -> list[str]:
    lines = (folder / FILE).read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def test_events_wait_for_room_and_come_in_order_and_once(tmp_path: Path) -> None:
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
def test_a_checkpoint_finds_no_room_and_the_user_is_told(tmp_path: Path, kept: bool) -> None:
    if kept:
        (tmp_path / "checkpoints" / "step-00000120").mkdir(parents=True)
    journal = EventLog(tmp_path, 0)
    journal.write("note", 1, text="before")
    with room((tmp_path / FILE).stat().st_size), pytest.raises(UserError) as told:
        journal.write("note", 2, text="first")
        journal.settle()
    said = str(told.value)
    assert said.startswith(f"cannot write {tmp_path / FILE}: File too large; ") and "\n" not in said
    expected = (
        "make room there, then type the same command, which goes on from update 120"
        if kept
        else "make room there, then type the same command, which begins anew"
    )
    assert said.endswith(expected)
    # The same command goes on from there.
    EventLog(tmp_path, 1).write("note", 2, text="again")
    assert texts(tmp_path) == ["before", "again"]


def test_what_room_does_not_mend_is_told_at_once(tmp_path: Path) -> None:
    journal = EventLog(tmp_path, 0)
    (tmp_path / FILE).unlink()
    with pytest.raises(UserError, match="No such file or directory; make room there"):
        journal.write("note", 1, text="lost")
