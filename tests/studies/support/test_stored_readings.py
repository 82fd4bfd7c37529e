"""Readings that are folded into one file come back as they were, or not at all."""

import pytest

from layerlab.errors import DamageWarning
from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.support.stored_readings import fold_readings, hash_readings
from tests.support.refused import refuses


@pytest.fixture
def twins(tmp_path):
    folder = tmp_path / "twins"
    for number in range(3):
        write_kept(folder / f"depth-{number}.json", {"nats": number + 0.5, "name": "盘古"})
    return folder


def test_what_was_folded_comes_back_to_the_byte(twins):
    before = {file.name: file.read_bytes() for file in twins.iterdir()}
    hashes = hash_readings(twins.parent)
    fold_readings(twins.parent)
    twins.rename(twins.with_name("away"))
    assert hash_readings(twins.parent) == hashes and len(hashes) == 3
    assert {file.name: file.read_bytes() for file in twins.iterdir()} == before
    assert read_kept(twins / "depth-2.json") == {"nats": 2.5, "name": "盘古"}


def test_a_folder_that_is_there_is_left_alone(twins):
    fold_readings(twins.parent)
    write_kept(twins / "depth-0.json", {"nats": 7.0})
    hash_readings(twins.parent)
    assert read_kept(twins / "depth-0.json") == {"nats": 7.0}


def test_no_reading_is_lost_by_folding(twins):
    fold_readings(twins.parent)
    folded = twins.with_suffix(".json").read_bytes()
    (twins / "depth-1.json").unlink()
    refuses("would lose them; move", fold_readings, twins.parent)
    assert twins.with_suffix(".json").read_bytes() == folded


def test_a_folded_file_that_was_changed_brings_nothing_back(twins):
    fold_readings(twins.parent)
    twins.rename(twins.with_name("away"))
    file = twins.with_suffix(".json")
    file.write_text(file.read_text("utf-8").replace("1.5", "1.25"), "utf-8")
    with pytest.warns(DamageWarning, match="does not count"):
        assert hash_readings(twins.parent) == []
    assert not twins.exists()


def test_readings_that_cannot_be_unpacked_are_refused(twins):
    fold_readings(twins.parent)
    twins.rename(twins.with_name("away"))
    twins.symlink_to(twins.with_name("nowhere"))
    refuses("is a link to .*nowhere', where nothing is", hash_readings, twins.parent)
