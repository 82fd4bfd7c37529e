"""The chain of a ledger: what was changed in it is seen and named, and no line is lost."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.ledger.chain import (
    FILE,
    HEAD,
    START,
    append_line,
    begin_chain,
    hold_ledger,
    read_chain,
    wait_for_writer,
)
from layerlab.system.files import write_file
from tests.support.refused import refuses

LINES = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    chain = begin_chain(tmp_path / "own", {"kind": "campaign"})
    for number in range(2, LINES + 1):
        chain = append_line(chain, {"kind": "trial", "name": f"größer {number}"})
    return tmp_path / "own"


def lines(folder: Path) -> list[str]:
    return (folder / FILE).read_text("utf-8").splitlines(keepends=True)


def write(folder: Path, given: list[str]) -> None:
    (folder / FILE).write_text("".join(given), "utf-8")


def test_lines_are_read_as_they_were_written(folder):
    chain = read_chain(folder)
    assert [one["line"] for one in chain.lines] == [1, 2, 3, 4, 5]
    assert chain.lines[2]["name"] == "größer 3" and not chain.cut
    assert chain.digest == json.loads((folder / HEAD).read_text())["digest"]
    assert chain.lines[1]["before"] == chain.lines[0]["digest"]


@pytest.mark.parametrize("place", range(LINES))
def test_a_changed_line_is_named(folder, place):
    given = lines(folder)
    given[place] = given[place].replace('"kind":"', '"kind":"x')
    write(folder, given)
    refuses(f"line {place + 1} of .* was changed after it was written", read_chain, folder)


@pytest.mark.parametrize("place", range(LINES))
def test_a_removed_line_is_named(folder, place):
    given = lines(folder)
    write(folder, given[:place] + given[place + 1 :])
    refuses(f"line {place + 1} was removed", read_chain, folder)


@pytest.mark.parametrize(
    ("order", "line", "place"), [([0, 1, 3, 2, 4], 4, 3), ([0, 1, 2, 1, 3, 4], 2, 4)]
)
def test_lines_that_changed_places_or_were_put_in_between_are_named(folder, order, line, place):
    given = lines(folder)
    write(folder, [given[one] for one in order])
    refuses(f"line {line} stands in place {place}: lines were moved", read_chain, folder)


def test_a_line_of_another_ledger_is_named(folder, tmp_path):
    other = append_line(begin_chain(tmp_path / "b", {"kind": "campaign", "x": 1}), {"kind": "y"})
    given = lines(folder)
    write(folder, [given[0], lines(other.folder)[1], *given[2:]])
    refuses("line 2 does not follow the one before it, which is of an", read_chain, folder)


def test_a_ledger_that_was_rewritten_beside_its_head_is_named(folder, tmp_path):
    other = begin_chain(tmp_path / "b", {"kind": "campaign"})
    for number in range(2, LINES + 1):
        other = append_line(other, {"kind": "trial", "name": f"better {number}"})
    write(folder, lines(other.folder))
    refuses(r"line 5 of .* is not the one that head\.json tells of", read_chain, folder)


def test_a_head_that_is_gone_or_changed_is_named(folder):
    (folder / HEAD).write_text("{}")
    refuses(r"head\.json was changed; copy the ledger back", read_chain, folder)
    (folder / HEAD).unlink()
    refuses(r"head\.json is gone, which tells how many lines", read_chain, folder)
    write(folder, lines(folder)[:1])  # not even where one line is left, as of a new one
    refuses(r"head\.json is gone, which tells how many lines", read_chain, folder)


def test_a_process_that_was_killed_before_the_first_line_may_begin_again(folder):
    (folder / FILE).unlink()
    refuses("has a ledger already", begin_chain, folder, {"kind": "campaign"})
    (folder / HEAD).write_text(json.dumps({"lines": 0, "digest": START}))
    assert begin_chain(folder, {"kind": "campaign"}).lines == read_chain(folder).lines


def tell_of(folder: Path, known: int) -> None:
    """Set the head back to so many lines, as it is while the next is written."""
    head = json.loads(lines(folder)[known - 1])
    (folder / HEAD).write_text(json.dumps({"lines": known, "digest": head["digest"]}))


@pytest.mark.parametrize("cut", [1, 3, 40, 1_000])
def test_a_line_that_the_head_tells_of_was_not_cut_off_while_it_was_written(folder, cut):
    given = lines(folder)
    write(folder, [*given[:-1], given[-1].rstrip("\n")[:-cut]])
    refuses(r"line 5 was removed from the end of .* or cut off after", read_chain, folder)


def test_a_line_that_was_cut_off_is_kept_in_the_one_that_goes_on(folder):
    given = lines(folder)
    tell_of(folder, LINES - 1)
    write(folder, [*given[:-1], given[-1][:40]])
    chain = read_chain(folder)
    assert len(chain.lines) == LINES - 1 and chain.cut == given[-1][:40]
    append_line(chain, {"kind": "trial", "name": "again"})
    after = read_chain(folder)
    assert len(after.lines) == LINES and not after.cut
    assert after.lines[-1]["cut"] == given[-1][:40]
    assert lines(folder)[:-1] == given[:-1]


def test_a_line_without_its_line_break_is_whole(folder):
    (folder / FILE).write_text("".join(lines(folder)).rstrip("\n"), "utf-8")
    chain = read_chain(folder)
    assert len(chain.lines) == LINES and not chain.cut
    append_line(chain, {"kind": "trial"})
    assert [one["line"] for one in read_chain(folder).lines] == [1, 2, 3, 4, 5, 6]


def test_a_process_that_was_killed_before_the_head_was_written_loses_nothing(folder):
    head = json.loads(lines(folder)[-2])
    (folder / HEAD).write_text(json.dumps({"lines": LINES - 1, "digest": head["digest"]}))
    assert len(read_chain(folder).lines) == LINES


def test_a_ledger_that_lost_its_lines_is_told_to_be_empty(folder):
    (folder / FILE).write_text("")
    refuses("is empty; copy the ledger back from where it is whole", read_chain, folder)


@pytest.mark.parametrize("lines", ["1e999", "NaN", "[]", '"many"'])
def test_a_head_that_counts_nothing_is_told_to_be_changed(folder, lines):
    (folder / HEAD).write_text(f'{{"lines": {lines}, "digest": "x"}}')
    refuses("head.json was changed; copy the ledger back", read_chain, folder)


def refuse_heads(monkeypatch: pytest.MonkeyPatch, written: int = 0) -> None:
    """Let the head fail after so many that are written, as on a disk that is full."""
    left = iter(range(written))

    def write(path: Path, content: str | bytes) -> Path:
        if path.name == HEAD and next(left, None) is None:
            raise UserError(f"cannot write {path}: No space left on device")
        return write_file(path, content)

    monkeypatch.setattr("layerlab.ledger.chain.write_file", write)


@pytest.mark.parametrize("cut", ["", '{"line": 6, "bef'])
def test_a_line_that_is_told_to_have_failed_does_not_count(folder, monkeypatch, cut):
    with (folder / FILE).open("a") as stream:
        stream.write(cut)
    before = (folder / FILE).read_bytes()
    refuse_heads(monkeypatch)
    refuses("cannot write", append_line, read_chain(folder), {"kind": "trial"})
    assert (folder / FILE).read_bytes() == before
    monkeypatch.undo()
    assert append_line(read_chain(folder), {"kind": "trial"}).lines[-1]["line"] == LINES + 1


@pytest.mark.parametrize("written", [0, 1])
def test_a_ledger_that_is_told_to_have_failed_is_none(written, tmp_path, monkeypatch):
    refuse_heads(monkeypatch, written)
    refuses("cannot write", begin_chain, tmp_path / "new", {"kind": "campaign"})
    assert not [one for one in tmp_path.rglob("*") if one.is_file()]


def test_no_ledger_is_replaced_and_none_is_found_where_none_is(folder):
    with pytest.raises(UserError, match="has a ledger already, and none is ever replaced"):
        begin_chain(folder, {"kind": "campaign"})
    with pytest.raises(UserError, match=r"there is no ledger in .*: it has no ledger\.jsonl; type"):
        read_chain(folder / "other")


@pytest.mark.full
def test_processes_that_add_at_once_lose_nothing(folder):
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from layerlab.ledger.chain import append_line, hold_ledger, read_chain\n"
        f"folder = Path({str(folder)!r})\n"
        "for number in range(20):\n"
        "    with hold_ledger(folder):\n"
        "        append_line(read_chain(folder), {'kind': 'trial', 'by': sys.argv[1]})\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("a", "b", "c")]
    assert [one.wait(timeout=300) for one in started] == [0, 0, 0]
    found = [one.get("by") for one in read_chain(folder).lines]
    assert len(found) == LINES + 60 and all(found.count(name) == 20 for name in "abc")
    assert not list(folder.parent.glob(".*.lock"))


@pytest.mark.full
def test_a_process_that_is_killed_while_it_adds_loses_nothing(folder):
    code = (
        "from pathlib import Path\n"
        "from layerlab.ledger.chain import append_line, hold_ledger, read_chain\n"
        f"folder = Path({str(folder)!r})\n"
        "for number in range(10**6):\n"
        "    with hold_ledger(folder):\n"
        "        append_line(read_chain(folder), {'kind': 'trial', 'number': number})\n"
        "    print(number, flush=True)\n"
    )
    for wanted in (1, 3, 8):
        before = len(read_chain(folder).lines)
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(wanted)]
        process.kill()
        told += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        with hold_ledger(folder):
            chain = read_chain(folder)
            # What was told as written is there; one more may be.
            whole = sum(one.endswith("\n") for one in told)
            assert len(chain.lines) - before in (whole, whole + 1)
            append_line(chain, {"kind": "trial"})
    read_chain(folder)


def test_a_ledger_is_not_written_through_a_link(folder, tmp_path):
    (tmp_path / "elsewhere").write_bytes((folder / FILE).read_bytes())
    (folder / FILE).unlink()
    (folder / FILE).symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(UserError, match=re.escape("is a link to")),
        hold_ledger(folder),
    ):
        append_line(read_chain(folder), {"kind": "trial"})


def test_whoever_reads_waits_for_one_that_writes(folder):
    held, written = threading.Event(), threading.Event()

    def add():
        with hold_ledger(folder):
            held.set()
            time.sleep(0.2)
            written.set()

    writer = threading.Thread(target=add)
    writer.start()
    assert held.wait(60)
    wait_for_writer(folder)
    assert written.is_set()
    writer.join()
