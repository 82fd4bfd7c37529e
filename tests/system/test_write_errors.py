import tempfile
from pathlib import Path

import pytest

from layerlab.corpus.shards import WriterProcess
from layerlab.experiments.executors.score_command import run_command
from layerlab.recipes.comparison_sections import Command
from layerlab.system.untrusted.trust import trust
from layerlab.system.write_errors import temporary_folder
from tests.support.mounted import disk
from tests.support.refused import refuses


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
    return tmp_path / "disk"


def test_want_of_room_for_temporary_files_is_told_of_their_folder(place):
    def fill() -> None:
        with temporary_folder() as folder:
            with Path(folder, "text").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    with disk(place, "64k"):
        said = refuses("no space is left on the device; make room there, or set TMPDIR", fill)
        assert f"cannot write temporary files to {place}: " in said and not list(place.iterdir())


def test_where_no_folder_can_be_made_another_is_to_be_set(place):
    place.write_text("in the way")
    refuses("no folder for temporary files can be written to; set TMPDIR to one", open_one)


def test_nor_a_file_for_what_another_process_prints(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    said = "no folder for temporary files can be written to; set TMPDIR to one"
    refuses(said, WriterProcess(tmp_path).start)
    words = Command(run=("python", "-c", "print(1)", "{model}"))
    with trust(False, trust_recipe=True):
        refuses(said, run_command, "one", words, tmp_path, "run")


def test_another_error_inside_stays_what_it_is(place):
    place.mkdir()
    with pytest.raises(FileNotFoundError, match="missing"), temporary_folder():
        Path(place, "missing").read_text()
    assert not list(place.iterdir())


def open_one() -> None:
    with temporary_folder():
        pass
