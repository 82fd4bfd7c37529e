"""Checkpoints are told by their names, and only what is one of them is removed."""

import pytest

from layerlab.records.checkpoint_names import (
    is_checkpoint,
    latest,
    list_checkpoints,
    list_parts,
    remove_checkpoints,
    remove_own,
    remove_partials,
)

PARTS = [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)]


def make(folder, *names):
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    return folder


@pytest.fixture
def run(tmp_path):
    """Two checkpoints, and what is none."""
    for update in (9, 30):
        make(tmp_path / f"step-{update:08d}", "model.safetensors", "state.json")
    make(tmp_path / "step-best")
    (tmp_path / "step-00000031").touch()
    return tmp_path


def test_the_newest_is_that_of_the_most_updates(run):
    assert sorted(list_checkpoints(run)) == [
        (update, run / f"step-{update:08d}") for update in (9, 30)
    ]
    assert latest(run) == run / "step-00000030" and latest(run / "step-best") is None


def test_parts_are_those_of_their_process(tmp_path):
    folder = make(tmp_path / "step-00000001", *PARTS, "state.json")
    assert is_checkpoint(folder)
    assert [[one.name for one in list_parts(folder, rank)] for rank in (0, 1, 2)] == [
        *([name] for name in PARTS),
        [],
    ]


def test_what_holds_something_else_too_stays(tmp_path):
    own, mixed = make(tmp_path / "own", *PARTS), make(tmp_path / "mixed", *PARTS, "notes.txt")
    assert is_checkpoint(own) and not is_checkpoint(mixed)
    remove_own([own, mixed])
    assert not own.exists() and {one.name for one in mixed.iterdir()} == {*PARTS, "notes.txt"}


def test_a_kill_leaves_nothing_that_stays(tmp_path):
    make(tmp_path / ".step-00000001.0123abcd.partial", "model.safetensors")
    (tmp_path / ".step-00000002.0123abcd.partial").touch()
    kept = make(tmp_path / ".step-00000003.partial")
    remove_partials(tmp_path, "step-*", "gone")
    assert [*tmp_path.iterdir()] == [kept]


def test_a_folder_goes_with_its_checkpoints_unless_more_lies_in_it(run):
    remove_checkpoints(run)
    assert {one.name for one in run.iterdir()} == {"step-best", "step-00000031"}
    only = run / "only"
    make(only / "step-00000001", "model.safetensors")
    remove_checkpoints(only)
    assert not only.exists()
