"""One run per folder: the second is told so, and no lock outlives its process."""

import errno
import fcntl
import os
import re
import resource
import signal
import subprocess
import sys

import pytest

from layerlab import UserError
from layerlab.studies.engine.runner import study
from layerlab.system.locks import LOCKLESS, is_locked, lock_folder
from tests.support.refused import refuses

# Another process that holds the lock until it is told to stop.
HOLD = """
import sys
from pathlib import Path
from layerlab.system.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_told_of_the_first_and_writes_nothing(tmp_path):
    with lock_folder(tmp_path / "out"):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(UserError, match="another run is writing to") as error:
            study("rounding-input", draws=8, progress=False, threads=1, out=tmp_path / "out")
        assert "\n" not in str(error.value) and sorted(tmp_path.iterdir()) == before
        with lock_folder(tmp_path / "other"):  # which is another folder's
            pass
    assert not list(tmp_path.iterdir())


def test_folders_whose_long_names_begin_alike_have_a_lock_each(tmp_path):
    one, other = (tmp_path / f"{'long-' * 40}{end}" for end in "ab")
    with lock_folder(one):
        assert is_locked(one) and not is_locked(other)
        with lock_folder(other):
            pass


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="another run is writing to"), lock_folder(tmp_path / "out"):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / ".out.lock").exists(), "left behind by the killed process"
    with lock_folder(tmp_path / "out"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_whose_file_is_gone_is_not_taken_for_one(tmp_path, monkeypatch):
    def late(held, how):
        """As if the holder had removed its file between opening and locking."""
        if not calls:
            (tmp_path / ".out.lock").unlink()
        calls.append(held)
        return taken(held, how)

    calls, taken = [], fcntl.flock
    monkeypatch.setattr(fcntl, "flock", late)
    with lock_folder(tmp_path / "out"):
        assert len(calls) > 1 and (tmp_path / ".out.lock").exists()


@pytest.mark.parametrize("number", sorted(LOCKLESS))
def test_a_disk_without_locks_is_used_and_one_that_cannot_be_written_is_named(
    number, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="type another --out, which is writable"):
        with lock_folder(tmp_path / "file" / "out"):
            pass

    def refused(held, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with lock_folder(tmp_path / "out"), lock_folder(tmp_path / "out"):
        pass
    assert not (tmp_path / ".out.lock").exists()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for inside in ("loop", "loop/out"):
        with pytest.raises(UserError, match="loop is a link to"), lock_folder(tmp_path / inside):
            pass


def test_too_many_open_files_are_no_fault_of_the_folder(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(UserError, match=r"cannot lock .* files; ask for fewer runs at a time"):
            with lock_folder(tmp_path / "out"):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_folder_that_is_a_number_is_refused():
    said = "out is 5; expected the path of a folder: type for example"
    refuses(re.escape(said), study, "rounding-input", draws=8, progress=False, out=5)


def test_who_looks_is_told_of_the_holder_and_takes_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    assert is_locked(folder) is False
    with lock_folder(folder):
        assert is_locked(folder) and is_locked(folder)
    (tmp_path / ".out.lock").write_text("")  # left behind by a killed process
    assert is_locked(folder) is False and (tmp_path / ".out.lock").exists()
    with lock_folder(folder):
        pass
    (tmp_path / ".out.lock").symlink_to(tmp_path / "away")
    assert is_locked(folder) is None

    def refused(held, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / ".out.lock").unlink()
    (tmp_path / ".out.lock").write_text("")
    monkeypatch.setattr(fcntl, "flock", refused)
    assert is_locked(folder) is None


@pytest.mark.parametrize("kind", ["text", "link", "folder", "pipe"])
def test_a_file_with_the_name_of_a_lock_stays(kind, tmp_path):
    lock = tmp_path / ".out.lock"
    (tmp_path / "empty").touch()
    {
        "text": lambda: lock.write_text("mine"),
        "link": lambda: lock.symlink_to(tmp_path / "empty"),
        "folder": lock.mkdir,
        "pipe": lambda: os.mkfifo(lock),
    }[kind]()
    said = r"\.out\.lock is no lock of layerlab, which would have its name; move it away"
    with pytest.raises(UserError, match=said), lock_folder(tmp_path / "out"):
        pass
    assert os.path.lexists(lock) and (kind != "text" or lock.read_text() == "mine")
    (tmp_path / ".left.lock").touch()  # by a process that was killed
    with lock_folder(tmp_path / "left"):
        pass
    assert not (tmp_path / ".left.lock").exists()
