"""A run goes on from its own checkpoints alone, and with the journal that they rely on."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlab.console.progress import NullProgress
from layerlab.training import manifest
from layerlab.training.checkpoints import checkpoint
from layerlab.training.run_spec import RunSpec
from layerlab.training.trainer import Trainer
from tests.support.refused import refuses
from tests.training.support import killed


@pytest.fixture(scope="module")
def place(cached: Path) -> Path:
    return cached


def run_of(place: Path, **settings: Any) -> RunSpec:
    return killed.run_of(killed.recipe(place, **settings))


@pytest.fixture(scope="module")
def half(place: Path) -> Path:
    """A run that was killed at update 7, with checkpoints of 3 and 6."""
    training = killed.begun(run_of(place), place / "half")
    while training.update < 7:
        training.advance()
    return place / "half"


@pytest.fixture
def folder(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def lines(folder: Path) -> list[str]:
    return (folder / "events.jsonl").read_text().splitlines(keepends=True)


def rewrite(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    (folder / "events.jsonl").write_text("".join(change(lines(folder))))


def counted(folder: Path, update: int) -> int:
    state = folder / "checkpoints" / f"step-{update:08}" / "state.json"
    return int(json.loads(state.read_text())["counters"]["events"])


def age(folder: Path) -> None:
    """Make the checkpoints those of an earlier version, which kept no more than a count."""
    for file in folder.glob("checkpoints/*/state.json"):
        body = json.loads(file.read_text())
        del body["self"]
        for name in ("run", "journal", "sittings"):
            del body["counters"][name]
        file.write_text(json.dumps({**body, "self": checkpoint._seal(body)}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train.seed": 2}, "its name is 'llama-s"),
        ({"train.learning_rate": 1e-4}, "its name is 'llama-s"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_stays(place, half, tmp_path, settings, said):
    """Its weights have the same sizes: by them alone, nobody could tell."""
    other = run_of(place, **settings)
    killed.begun(other, tmp_path / "run")
    shutil.copytree(half / "checkpoints", tmp_path / "run" / "checkpoints")
    told = refuses(
        "step-00000006 is of another run", Trainer, other, tmp_path / "run", NullProgress()
    )
    assert said in told and other.name in told
    assert told.endswith("move it away, and the same command does without it")
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2


def test_a_name_is_not_all_that_a_run_is_known_by(place, folder):
    """The hash in it is short: two of 80,000 runs may well share it."""
    file = folder / "checkpoints" / "step-00000006" / "state.json"
    body = json.loads(file.read_text())
    del body["self"]
    body["counters"]["run"]["recipe"] = "0" * 12
    file.write_text(json.dumps({**body, "self": checkpoint._seal(body)}))
    refuses(
        "is of another run: its recipe is '000000000000', not", killed.begun, run_of(place), folder
    )


def forge(found: list[str]) -> list[str]:
    return [one.replace('"nats":', '"nats":1') if '"evaluation"' in one else one for one in found]


def test_a_journal_that_was_changed_costs_the_checkpoints_that_rely_on_it(place, half, folder):
    early, late = counted(folder, 3), counted(folder, 6)
    rewrite(folder, lambda found: [*found[:early], *forge(found[early:late]), *found[late:]])
    training = killed.begun(run_of(place), folder)
    assert training.update == 3
    note, _ = killed.notes(folder)
    assert note == (
        f"checkpoint step-00000006 cannot be used: one of the {late} events in events.jsonl that "
        "it relies on was changed; the one before it is used"
    )
    assert lines(folder)[:early] == lines(half)[:early]
    assert [json.loads(one)["kind"] for one in lines(folder)[early:]] == ["note", "note"]


CHANGES: dict[str, tuple[Callable[[list[str]], list[str]], int]] = {
    "cut": (lambda found: found[:2], 2),
    "torn": (lambda found: [*found[:1], found[1][:20]], 1),
    "gone": (lambda found: [], 0),
    "garbled": (lambda found: [*found[:1], "#" + found[1], *found[2:]], 3),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("aged", [False, True], ids=["now", "earlier version"])
def test_events_that_are_gone_are_not_made_up_for_by_later_ones(place, folder, aged, name):
    change, left = CHANGES[name]
    assert counted(folder, 3) == 4
    if aged:
        age(folder)
    rewrite(folder, change)
    before = lines(folder)
    told = refuses(r"no checkpoint in .* can be used \(step-", killed.begun, run_of(place), folder)
    assert (
        f"(step-00000003: {left} of the 4 events in events.jsonl that it relies on are left)"
        in told
    )
    assert told.endswith("put the file back, or delete that folder to train anew")
    assert lines(folder) == before
    assert len(list((folder / "checkpoints").iterdir())) == 2


def test_a_checkpoint_is_on_the_disk_after_the_events_that_it_relies_on(place, folder, monkeypatch):
    """Power may fail between any two of them."""
    training = killed.begun(run_of(place), folder)
    forced, fsync = list[str](), os.fsync

    def record(file: int) -> None:
        forced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", record)
    training.advance()
    training.checkpoint()
    assert forced[:2] == ["events.jsonl", "run"] and "state.json" in forced[2:]
    assert "events.jsonl" not in forced[2:]


def test_a_manifest_that_was_taken_away_does_not_hide_other_versions(place, folder, monkeypatch):
    (folder / "manifest.json").unlink()
    monkeypatch.setattr(manifest, "versions", lambda: {"torch": "2.99.0"})
    killed.begun(run_of(place), folder)
    assert "and is 2.99.0" in killed.notes(folder)[-1]
    assert len(json.loads((folder / "manifest.json").read_text())["sittings"]) == 2


def test_a_session_that_only_a_manifest_tells_of_is_in_no_run(place, folder):
    file = folder / "manifest.json"
    found = json.loads(file.read_text())
    two = [{"update": at, "machine": {}, "versions": {"torch": str(at)}} for at in (0, 3)]
    file.write_text(json.dumps({**found, "sittings": two}))
    killed.begun(run_of(place), folder)
    assert json.loads(file.read_text()) == found


def test_a_checkpoint_of_an_earlier_version_is_believed_with_a_note(place, folder):
    age(folder)
    training = killed.begun(run_of(place), folder)
    assert training.update == 6
    assert killed.notes(folder) == [
        "checkpoint step-00000006 is of an earlier version, which did not keep what run it is of, "
        "nor a hash of its journal: both are believed",
        "resumed after update 6",
    ]
