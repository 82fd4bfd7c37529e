"""A run that goes on with other versions says so for ever."""

import json
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.console.progress import NullProgress
from layerlab.experiments.plan.arm_checks import PATHS
from layerlab.experiments.plan.equal_terms import VariedSettings, check_equal_terms, settings
from layerlab.records.result import read_result
from layerlab.records.run import SHARED
from layerlab.system.hardware import SHARED_DEVICE
from layerlab.training import manifest, trainer
from tests.records.test_events import room
from tests.support.refused import refusal, refuses
from tests.training.support import killed

ONE, OTHER = {"torch": "2.13.0"}, {"torch": "2.99.0"}


def session(run: Any, folder: Path, until: int) -> dict[str, Any]:
    """Train so far and leave a checkpoint, or come to the end; what the manifest then is."""
    training = trainer.Trainer(run, folder, NullProgress())
    training.start()
    while training.update < until:
        training.advance()
    training.finish() if training.done else training.checkpoint()
    return dict(json.loads((folder / "manifest.json").read_text()))


@pytest.fixture
def run(tmp_path: Path, cache: Path) -> Any:
    return killed.run_of(killed.recipe(tmp_path, **{"train.max_steps": 6, "run.save_steps": 100}))


def test_a_run_of_two_versions_is_told_and_refused(tmp_path, run, monkeypatch):
    monkeypatch.setattr(manifest, "versions", lambda: ONE)
    assert "sittings" not in session(run, tmp_path / "run", 2)
    assert "sittings" not in session(run, tmp_path / "run", 3)
    monkeypatch.setattr(manifest, "versions", lambda: OTHER)
    found = session(run, tmp_path / "run", 6)
    had = [(one["update"], one["versions"]) for one in found["sittings"]]
    assert had == [(0, ONE), (3, OTHER)] and found["versions"] == OTHER
    told = killed.notes(tmp_path / "run")[-1]
    assert told.startswith("from update 3 on versions.torch was 2.13.0 and is 2.99.0: ")
    said = refusal(check_equal_terms, [found], VariedSettings())
    assert f"is '2.13.0' in {run.name} at first and '2.99.0' in {run.name} from" in said
    assert said.endswith(
        'make them equal, or type compare.allowed_differences = ["versions.torch"]'
    )
    assert [one.path for one in check_equal_terms([found], VariedSettings(differ=("versions.*",)))]
    # Two runs that are mixed alike are no better than one.
    refuses(
        r"versions\.torch",
        check_equal_terms,
        [found, {**found, "run": "another"}],
        VariedSettings(),
    )


def test_whatever_a_manifest_has_can_be_declared_in_a_plan(tmp_path, run):
    found = session(run, tmp_path / "run", 6)
    beside = {path for path in found if path != "recipe"}
    beside = set(settings({name: found[name] for name in beside}))
    assert beside | {"sittings"} == set(PATHS)


@pytest.mark.full
def test_a_run_that_shared_its_device_in_one_sitting_says_so_for_ever(tmp_path, run, monkeypatch):
    found = []
    for until, shared in ((2, "0"), (4, "1"), (6, "0")):
        monkeypatch.setenv(SHARED_DEVICE, shared)
        found.append(session(run, tmp_path / "run", until))
    assert [one[SHARED] for one in found] == [False, True, True]
    assert "sittings" not in found[-1]
    result = read_result(tmp_path / "run") or {}
    assert result["tokens_per_second"] is None and result["seconds"] > 0


@pytest.mark.full
def test_back_on_the_first_version_the_one_between_is_not_forgotten(tmp_path, run, monkeypatch):
    for until, now in ((2, ONE), (4, OTHER), (5, ONE), (6, ONE)):
        monkeypatch.setattr(manifest, "versions", lambda now=now: now)
        found = session(run, tmp_path / "run", until)
    assert [one["update"] for one in found["sittings"]] == [0, 2, 4]
    told = [text for text in killed.notes(tmp_path / "run") if "versions" in text]
    assert [text.split(" on ")[0] for text in told] == ["from update 2", "from update 4"]
    refuses(r"in .* from update 2", check_equal_terms, [found], VariedSettings())


def test_a_checkpoint_that_lists_no_sittings_believes_the_manifest(tmp_path, run, monkeypatch):
    """As those of earlier versions; where that is gone too, nothing is known of any."""
    monkeypatch.setattr(manifest, "versions", lambda: ONE)
    for folder in (tmp_path / "kept", tmp_path / "gone"):
        training = trainer.Trainer(run, folder, NullProgress())
        training.start()
        training.advance()
        training.sessions = []
        training.checkpoint()
    (tmp_path / "gone" / "manifest.json").unlink()
    monkeypatch.setattr(manifest, "versions", lambda: OTHER)
    kept, gone = (session(run, tmp_path / name, 2) for name in ("kept", "gone"))
    assert [(one["update"], one["versions"]) for one in kept["sittings"]] == [(0, ONE), (1, OTHER)]
    assert "sittings" not in gone


def test_a_sitting_that_left_no_checkpoint_is_in_no_run(tmp_path, run, monkeypatch):
    for now in (OTHER, ONE):
        monkeypatch.setattr(manifest, "versions", lambda now=now: now)
        trainer.Trainer(run, tmp_path / "run", NullProgress()).start()
    session(run, tmp_path / "run", 2)
    monkeypatch.setattr(manifest, "versions", lambda: OTHER)
    trainer.Trainer(run, tmp_path / "run", NullProgress()).start()
    monkeypatch.setattr(manifest, "versions", lambda: ONE)
    assert "sittings" not in session(run, tmp_path / "run", 6)


def test_a_checkpoint_counts_on_events_that_are_written(tmp_path, run):
    training = trainer.Trainer(run, tmp_path / "run", NullProgress())
    with room(training.journal.file.stat().st_size), pytest.raises(UserError, match="begins anew"):
        training.note("no room")
        training.checkpoint()
